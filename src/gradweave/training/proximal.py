"""Settings of proximal policy optimisation, which are available without JAX."""

import dataclasses

from gradweave.common.checks import (
    check_above_zero,
    check_at_least_one,
    check_not_below_zero,
    check_share,
)


@dataclasses.dataclass(frozen=True)
class Proximal:
    """Settings of every learner that maximises the clipped objective (Schulman et al. 2017)."""

    epochs: int = 4
    """Number of passes over the steps of an update."""
    minibatches: int = 4
    """Minibatches per epoch and device; each makes one optimizer step."""
    learning_rate: float = 1e-3
    discount: float = 0.99
    gae_lambda: float = 0.95
    """λ of the generalised advantage estimate."""
    clip_ratio: float = 0.2
    """ε: how far the probability ratio of an action may move from 1 in one update."""
    entropy_coefficient: float = 0.01
    """Weight of the entropy bonus."""
    value_coefficient: float = 0.5
    """Weight of the critic's loss."""
    max_gradient_norm: float = 0.5
    """Norm to which gradients are clipped after the devices have combined them."""

    def __post_init__(self) -> None:
        check_above_zero(self, "learning_rate", "clip_ratio", "max_gradient_norm")
        check_at_least_one(self, "epochs", "minibatches")
        check_not_below_zero(self, "entropy_coefficient", "value_coefficient")
        check_share(self, "discount", "gae_lambda")
