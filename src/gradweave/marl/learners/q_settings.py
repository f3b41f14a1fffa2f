"""How independent Q-learning, VDN and QMIX learn: settings, checked where they are made."""

import dataclasses
from typing import Any

from gradweave.checks import check_above_zero, check_at_least_one, check_share
from gradweave.errors import OptionError
from gradweave.marl.config import Activation, Sharing, check_network


@dataclasses.dataclass(frozen=True)
class QLearning:
    """How values of actions are learned from a replay buffer."""

    environments: int = 16
    """Games side by side, of all devices together."""
    rollout: int = 25
    """Steps of each game in an update; the replay buffer has rows of so many."""
    replay_size: int = 100_000
    """Steps in the replay buffer, of all games on all devices together."""
    batch_size: int = 32
    """Rows that a step of the optimizer learns from, of all devices together."""
    epochs: int = 4
    """Steps of the optimizer in an update."""
    learning_rate: float = 1e-3
    decay: bool = True
    """Whether the learning rate falls to 0, by as much with each step of the optimizer."""
    discount: float = 0.99
    td_lambda: float = 0.0
    """λ of the returns that are learned: 0 looks one step ahead, 1 to the end of the row.

    Source: Peng and Williams 1994.
    """
    target_update_rate: float = 0.02
    """τ: the share by which the target network moves with each step of the optimizer."""
    epsilon: float = 1.0
    """ε: share of random actions, at first."""
    epsilon_final: float = 0.05
    """Share of random actions once it has fallen."""
    epsilon_fraction: float = 0.5
    """Share of the training over which it falls."""
    max_gradient_norm: float = 10.0
    """Norm to which gradients are clipped, after devices have combined them."""
    reward_scale: float = 1.0
    """Factor of rewards."""
    hidden: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers."""
    recurrent: bool = False
    """Whether a gated recurrent unit as wide as the last hidden layer follows it."""
    activation: Activation = "relu"
    parameter_sharing: Sharing = "shared"
    """Whether all agents share parameters, those of a team, or none; QMIX's mixing network is
    one for all."""
    mixing_width: int = 32
    """Width of QMIX's mixing network."""
    counterfactual: bool = True
    """Whether, where agents have reward machines, each row is learned from a second time with the
    machines begun in a random state."""

    def __post_init__(self) -> None:
        check_above_zero(
            self, "learning_rate", "max_gradient_norm", "reward_scale", "target_update_rate"
        )
        check_at_least_one(
            self, "environments", "rollout", "replay_size", "batch_size", "epochs", "mixing_width"
        )
        check_share(
            self,
            "discount",
            "td_lambda",
            "target_update_rate",
            "epsilon",
            "epsilon_final",
            "epsilon_fraction",
        )
        check_network(self.hidden, self.activation, self.parameter_sharing)
        if self.replay_size < self.steps:
            raise OptionError(
                f"replay_size: expected at least the {self.steps} steps of an update, got "
                f"{self.replay_size}"
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
        for name in ("environments", "batch_size"):
            if getattr(self, name) % devices:
                raise OptionError(
                    f"{name}: expected a multiple of the {devices} devices, "
                    f"got {getattr(self, name)}"
                )


Q_DEFAULTS: dict[str, dict[str, Any]] = {
    "spread": {"discount": 0.9, "max_gradient_norm": 1.0},
    # Whoever acts at random says what is not so, and who listens learns that from later returns of
    # what was played lately: few random actions, returns to the end, and a short memory.
    "switch_riddle": {
        "recurrent": True,
        "hidden": (32,),
        "rollout": 20,
        "replay_size": 640,
        "batch_size": 16,
        "epochs": 2,
        "learning_rate": 3e-3,
        "discount": 1.0,
        "td_lambda": 1.0,
        "epsilon": 0.05,
        "epsilon_final": 0.02,
    },
    "overcooked": {"rollout": 50, "td_lambda": 0.8},
    "overcooked_v2": {"rollout": 50, "td_lambda": 0.8},
    "hanabi": {"rollout": 40, "hidden": (256, 256), "learning_rate": 5e-4},
    "smax": {"rollout": 50, "td_lambda": 0.6},
    "worlds": {"discount": 0.95, "epsilon_fraction": 0.6},
}
"""What differs from `QLearning`'s own defaults, by family of games."""
