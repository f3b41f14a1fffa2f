"""How the agents learn, in numbers: known without JAX."""

import dataclasses

from gradweave.checks import (
    check_above_zero,
    check_at_least_one,
    check_not_below_zero,
    check_share,
)


@dataclasses.dataclass(frozen=True)
class PPO:
    """How an agent learns from a record."""

    learning_rate: float = 3e-3
    epochs: int = 2
    minibatches: int = 4
    clip: float = 0.2
    """How far the odds of an action may move in one update, as a share."""
    entropy: float = 1e-3
    value: float = 0.5
    """Weight of the critic's error."""
    discount: float = 1.0
    """By round. 0: an episode of the agent is one round, as workload scheduling's is in the
    paper."""
    smoothing: float = 0.95
    """λ of the generalised advantage estimate."""
    gradient_norm: float = 0.5
    """What gradients are cut off at."""

    def __post_init__(self) -> None:
        check_above_zero(self, "learning_rate", "clip", "gradient_norm")
        check_at_least_one(self, "epochs", "minibatches")
        check_not_below_zero(self, "entropy", "value")
        check_share(self, "discount", "smoothing")
