"""Running moments of returns, with which critics learn values near 0 for any scale of rewards.

Source: Yu et al. 2022 (MAPPO), value normalisation; van Hasselt et al. 2016 (PopArt) without the
rescaling of the output layer.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from gradweave.marl.learners.sets import Sets, mean_of_each, number

DECAY = 0.99999
"""β, the factor by which an update's weight decays with each later update."""
LEAST_VARIANCE = 1e-2
"""Lower limit of the variance, for returns that hardly differ."""


class ValueNorm(eqx.Module):
    """Exponential moving mean and variance of returns, debiased.

    The stored moments are debiased already: update t moves them by (1 − β) / (1 − β^t). This equals
    dividing the moving sums by 1 − β^t, and stays accurate in float32 while that is tiny.
    """

    mean: Float[Array, " N"]
    """One entry per set of parameters: agents with the same critic share moments."""
    variance: Float[Array, " N"]
    updates: Int[Array, ""]
    """t, the number of updates so far."""
    sets: Sets = eqx.field(static=True)

    @staticmethod
    def zero(sets: Sets) -> "ValueNorm":
        """No returns yet; values are not changed."""
        sizes = number(sets)
        return ValueNorm(jnp.zeros(sizes), jnp.ones(sizes), jnp.zeros((), jnp.int32), sets)

    def normalise(self, value: Float[Array, "*B A"]) -> Float[Array, "*B A"]:
        """Maps returns to the values that critics learn."""
        mean, deviation = self._of_agents()
        return (value - mean) / deviation

    def denormalise(self, value: Float[Array, "*B A"]) -> Float[Array, "*B A"]:
        """Maps values of critics to returns."""
        mean, deviation = self._of_agents()
        return value * deviation + mean

    def add(self, returns: Float[Array, "*B A"], axis: str | None = None) -> "ValueNorm":
        """Adds the returns of an update, without devices where some are not finite.

        This happens once per update; Yu et al. do it once per minibatch.

        Args:
            returns: returns, the same number on every device.
            axis: axis of the devices, which all get the moments of all, or None for one device.
        """
        own = np.array(self.sets)
        mean = mean_of_each(returns, self.sets)
        variance = mean_of_each(jnp.square(returns - mean[own]), self.sets)
        # Gathered instead of `pmean`, so that the order of summation does not depend on the
        # processes.
        every = mean[None], variance[None]
        every = every if axis is None else jax.lax.all_gather((mean, variance), axis)
        finite = jnp.isfinite(every[0] + every[1])
        mean = _mean_of(every[0], finite)
        variance = _mean_of(every[1] + jnp.square(every[0] - mean), finite)
        updates = self.updates + 1
        log_decay = float(np.log(DECAY))
        weight = np.float32(1.0 - DECAY) / -jnp.expm1(updates * log_decay)
        weight = jnp.where(finite.any(0), weight, 0.0)
        moved = mean - self.mean
        return ValueNorm(
            self.mean + weight * moved,
            (1.0 - weight) * (self.variance + weight * jnp.square(moved)) + weight * variance,
            updates,
            self.sets,
        )

    def _of_agents(self) -> tuple[Float[Array, " A"], Float[Array, " A"]]:
        own = np.array(self.sets)
        deviation = jnp.sqrt(jnp.maximum(self.variance, LEAST_VARIANCE))
        return self.mean[own], deviation[own]


def _mean_of(values: Float[Array, "D N"], counted: Bool[Array, "D N"]) -> Float[Array, " N"]:
    """Mean over the devices that count; 0 if none do."""
    return jnp.where(counted, values, 0.0).sum(0) / jnp.maximum(counted.sum(0), 1)
