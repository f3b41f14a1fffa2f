"""Settings of independent Q-learning, VDN and QMIX, checked at construction."""

import dataclasses
from typing import Any

from gradweave.common.checks import check_above_zero, check_at_least_one, check_share
from gradweave.errors import OptionError
from gradweave.marl.config import Activation, Sharing, check_network


@dataclasses.dataclass(frozen=True)
class QLearning:
    """How values of actions are learned from a replay buffer."""

    environments: int = 16
    """Number of games in parallel, over all devices."""
    rollout: int = 25
    """Steps of each game per update, and of each row of the replay buffer."""
    replay_size: int = 100_000
    """Steps in the replay buffer, over all games and devices."""
    batch_size: int = 32
    """Rows per optimizer step, over all devices."""
    epochs: int = 4
    """Optimizer steps per update."""
    learning_rate: float = 1e-3
    decay: bool = True
    """Whether the learning rate decays linearly to 0 over the optimizer steps of the training."""
    discount: float = 0.99
    td_lambda: float = 0.0
    """λ of the returns that are learned: 0 looks one step ahead, 1 looks to the end of the row.

    Source: Peng and Williams 1994.
    """
    target_update_rate: float = 0.02
    """τ, the share by which the target network moves towards the learning network per optimizer
    step."""
    epsilon: float = 1.0
    """ε, the initial share of random actions."""
    epsilon_final: float = 0.05
    """Final share of random actions."""
    epsilon_fraction: float = 0.5
    """Share of the training after which the share of random actions is at its final value."""
    max_gradient_norm: float = 10.0
    """Norm to which gradients are clipped after the devices have combined them."""
    reward_scale: float = 1.0
    """Factor applied to rewards."""
    hidden: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers."""
    recurrent: bool = False
    """Whether a gated recurrent unit of the same width follows the last hidden layer."""
    activation: Activation = "relu"
    parameter_sharing: Sharing = "shared"
    """Which agents share parameters: all of them, those of a team, or none. QMIX's mixing network
    is always shared."""
    mixing_width: int = 32
    """Width of QMIX's mixing network."""
    counterfactual: bool = True
    """Whether each row is learned from a second time with the reward machines started in random
    states, if agents have any."""

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
        """Environment steps per update, over all games and devices."""
        return self.environments * self.rollout

    def check_devices(self, devices: int) -> None:
        """Refuses settings that cannot be divided evenly among the devices.

        Raises:
            OptionError: the games, or the rows, cannot be divided evenly.
        """
        for name in ("environments", "batch_size"):
            if getattr(self, name) % devices:
                raise OptionError(
                    f"{name}: expected a multiple of the {devices} devices, "
                    f"got {getattr(self, name)}"
                )


Q_DEFAULTS: dict[str, dict[str, Any]] = {
    "spread": {"discount": 0.9, "max_gradient_norm": 1.0},
    # An agent that acts at random sends false signals, and listeners learn this from later returns
    # of recent steps. Hence few random actions, returns to the end of the row, and a short replay
    # buffer.
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
"""Defaults that differ from those of `QLearning`, per family of games."""
