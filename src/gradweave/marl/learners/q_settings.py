"""How independent Q-learning, VDN and QMIX learn: settings, checked where they are made."""

import dataclasses
from typing import Any

from gradweave.checks import check_above_zero, check_at_least_one, check_share
from gradweave.errors import OptionError
from gradweave.marl.config import Activation, Sharing, check_network


@dataclasses.dataclass(frozen=True)
class QLearning:
    """How values of actions are learned from a memory of what was played."""

    environments: int = 16
    """Games side by side, of all devices together."""
    rollout: int = 25
    """Steps of each game in an update; what is remembered and learned from are rows of so many."""
    remembered: int = 100_000
    """Steps that are remembered, of all games on all devices together; the oldest are forgotten."""
    batch: int = 32
    """Rows that a step of the optimizer learns from, of all devices together."""
    epochs: int = 4
    """Steps of the optimizer in an update."""
    learning_rate: float = 1e-3
    decay: bool = True
    """Whether the learning rate falls to 0, by as much with each step of the optimizer."""
    discount: float = 0.99
    trace: float = 0.0
    """λ of the returns that are learned: 0 looks one step ahead, 1 to the end of the row.

    Source: Peng and Williams 1994.
    """
    target_rate: float = 0.02
    """By how much the target network follows, with each step of the optimizer."""
    explore: float = 1.0
    """Share of actions taken at random at first."""
    explore_last: float = 0.05
    explore_until: float = 0.5
    """Share of the training over which it falls from the one to the other."""
    gradient_norm: float = 10.0
    """What gradients are cut off at, after devices have combined them."""
    reward_scale: float = 1.0
    """What rewards are multiplied by before they are learned from."""
    hidden: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers."""
    recurrent: bool = False
    """Whether a gated recurrent unit as wide as the last hidden layer follows it."""
    activation: Activation = "relu"
    parameters: Sharing = "shared"
    """Whether all agents have one set of parameters, those of a team have, or each agent has;
    QMIX's mixing network is one for all."""
    mixing: int = 32
    """Width of QMIX's mixing network."""

    def __post_init__(self) -> None:
        check_above_zero(self, "learning_rate", "gradient_norm", "reward_scale", "target_rate")
        check_at_least_one(
            self, "environments", "rollout", "remembered", "batch", "epochs", "mixing"
        )
        check_share(
            self, "discount", "trace", "target_rate", "explore", "explore_last", "explore_until"
        )
        check_network(self.hidden, self.activation, self.parameters)
        if self.remembered < self.steps:
            raise OptionError(
                f"remembered: expected at least the {self.steps} steps of an update, got "
                f"{self.remembered}"
            )

    @property
    def steps(self) -> int:
        """Steps of an update, of all games on all devices together."""
        return self.environments * self.rollout

    def check_devices(self, devices: int) -> None:
        """Refuses settings that cannot be divided among devices.

        Raises:
            OptionError: where games or rows do not come out even.
        """
        for name in ("environments", "batch"):
            if getattr(self, name) % devices:
                raise OptionError(
                    f"{name}: expected a multiple of the {devices} devices, "
                    f"got {getattr(self, name)}"
                )


Q_DEFAULTS: dict[str, dict[str, Any]] = {
    "spread": {"discount": 0.9, "gradient_norm": 1.0},
    # Whoever acts at random says what is not so, and who listens learns that from later returns of
    # what was played lately: few random actions, returns to the end, and a short memory.
    "switch_riddle": {
        "recurrent": True,
        "hidden": (32,),
        "rollout": 20,
        "remembered": 640,
        "batch": 16,
        "epochs": 2,
        "learning_rate": 3e-3,
        "discount": 1.0,
        "trace": 1.0,
        "explore": 0.05,
        "explore_last": 0.02,
    },
    "overcooked": {"rollout": 50, "trace": 0.8},
    "overcooked_v2": {"rollout": 50, "trace": 0.8},
    "hanabi": {"rollout": 40, "hidden": (256, 256), "learning_rate": 5e-4},
    "smax": {"rollout": 50, "trace": 0.6},
}
"""What differs from `QLearning`'s own defaults, by family of games."""
