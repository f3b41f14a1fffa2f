"""Running moments of returns, by which critics learn values near 0 whatever a game pays.

Source: Yu et al. 2022 (MAPPO), value normalisation; van Hasselt et al. 2016 (PopArt) without the
rescaling of the output layer.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from gradweave.marl.sets import Sets, mean_of_each, number

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
        """Counts the returns of an update.

        Args:
            returns: as many on every device.
            axis: of the devices, which all get the moments of all; None for one device.
        """
        own = np.array(self.sets)
        mean = mean_of_each(returns, self.sets)
        variance = mean_of_each(jnp.square(returns - mean[own]), self.sets)
        if axis is not None:
            # Gathered rather than `pmean`: added up in the same order in any number of processes.
            every_mean, every_variance = jax.lax.all_gather((mean, variance), axis)
            mean = every_mean.mean(0)
            variance = (every_variance + jnp.square(every_mean - mean)).mean(0)
        updates = self.updates + 1
        log_decay = float(np.log(DECAY))
        weight = np.float32(1.0 - DECAY) / -jnp.expm1(updates * log_decay)
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
