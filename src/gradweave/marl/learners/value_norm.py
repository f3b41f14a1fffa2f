"""Running moments of returns, by which critics learn values near 0 whatever a game pays.

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
"""β: what is left of an update's weight after another one."""
LEAST_VARIANCE = 1e-2
"""Below which returns count as all alike."""


class ValueNorm(eqx.Module):
    """Exponential moving mean and variance of returns, debiased.

    Kept as moments that are debiased already: update t moves them by (1 − β) / (1 − β^t), which is
    the same as dividing the moving sums by 1 − β^t, and exact in float32 where that is tiny.
    """

    mean: Float[Array, " N"]
    """Of each set of parameters: agents who learn by the same critic have moments together."""
    variance: Float[Array, " N"]
    updates: Int[Array, ""]
    """t: counted so far."""
    sets: Sets = eqx.field(static=True)

    @staticmethod
    def zero(sets: Sets) -> "ValueNorm":
        """Nothing yet: values count as they are."""
        sizes = number(sets)
        return ValueNorm(jnp.zeros(sizes), jnp.ones(sizes), jnp.zeros((), jnp.int32), sets)

    def normalise(self, value: Float[Array, "*B A"]) -> Float[Array, "*B A"]:
        """What critics learn, of returns."""
        mean, deviation = self._of_agents()
        return (value - mean) / deviation

    def denormalise(self, value: Float[Array, "*B A"]) -> Float[Array, "*B A"]:
        """Returns, of what critics say."""
        mean, deviation = self._of_agents()
        return value * deviation + mean

    def add(self, returns: Float[Array, "*B A"], axis: str | None = None) -> "ValueNorm":
        """Counts the returns of an update, but for devices where some are not finite.

        Once an update, where Yu et al. count once a minibatch.

        Args:
            returns: as many on every device.
            axis: of the devices, which all get the moments of all; None for one device.
        """
        own = np.array(self.sets)
        mean = mean_of_each(returns, self.sets)
        variance = mean_of_each(jnp.square(returns - mean[own]), self.sets)
        # Gathered rather than `pmean`: added up in the same order in any number of processes.
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
    """Over the devices that count; 0 of none."""
    return jnp.where(counted, values, 0.0).sum(0) / jnp.maximum(counted.sum(0), 1)
