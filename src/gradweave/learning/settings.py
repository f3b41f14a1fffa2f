"""The agents' learning settings, which are available without JAX."""

import dataclasses

from gradweave.common.checks import (
    check_above_zero,
    check_at_least_one,
    check_not_below_zero,
    check_share,
)


@dataclasses.dataclass(frozen=True)
class PPO:
    """Settings of an agent's learning."""

    learning_rate: float = 3e-3
    epochs: int = 2
    minibatches: int = 4
    clip_ratio: float = 0.2
    """ε: how far the probability ratio of an action may move from 1 in one update."""
    entropy_coefficient: float = 1e-3
    """Weight of the entropy bonus."""
    value_coefficient: float = 0.5
    """Weight of the critic's loss."""
    discount: float = 1.0
    """Discount per round. With 0, an episode of the agent is one round, as for workload scheduling
    in the paper."""
    gae_lambda: float = 0.95
    """λ of the generalised advantage estimate."""
    max_gradient_norm: float = 0.5
    """Norm to which gradients are clipped."""

    def __post_init__(self) -> None:
        check_above_zero(self, "learning_rate", "clip_ratio", "max_gradient_norm")
        check_at_least_one(self, "epochs", "minibatches")
        check_not_below_zero(self, "entropy_coefficient", "value_coefficient")
        check_share(self, "discount", "gae_lambda")
