"""Measures of the efficiency and the fairness of utilities."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

_LEAST = 1e-9
"""Utilities up to this size count as 0."""


class Fairness(eqx.Module):
    """Measures of the utilities of some agents, their mean rewards per step."""

    utilisation: Float[Array, "*B"]
    """Sum of the utilities. For one resource that gives 1 per step, the share of steps it is used.
    """
    variation: Float[Array, "*B"]
    """Coefficient of variation: sample standard deviation (divisor A − 1) over mean; 0 if all are
    0."""
    least: Float[Array, "*B"]
    greatest: Float[Array, "*B"]
    jain: Float[Array, "*B"]
    """Jain's index, (Σ u)² / (A Σ u²): from 1/A, if one agent has everything, to 1; 1 if all are 0.
    """


def fairness(utility: Float[Array, "*B A"]) -> Fairness:
    """The measures of utilities.

    Source: Jiang and Lu 2019, section 3.1; Jain et al. 1984.

    >>> found = fairness(jnp.array([1.0, 0.0, 0.0, 0.0]))
    >>> float(found.variation), float(found.jain)
    (2.0, 0.25)
    """
    agents, mean = utility.shape[-1], utility.mean(-1)
    spread = jnp.square(utility - mean[..., None]).sum(-1) / max(agents - 1, 1)
    squares = jnp.square(utility).sum(-1)
    nothing = squares <= _LEAST**2
    return Fairness(
        utilisation=utility.sum(-1),
        variation=jnp.where(nothing, 0.0, jnp.sqrt(spread) / jnp.where(nothing, 1.0, mean)),
        least=utility.min(-1),
        greatest=utility.max(-1),
        jain=jnp.where(
            nothing, 1.0, jnp.square(utility.sum(-1)) / jnp.where(nothing, 1.0, agents * squares)
        ),
    )


def summary(returns: np.ndarray, lengths: np.ndarray) -> dict[str, float]:
    """Means of the measures over episodes.

    Args:
        returns: returns of the agents, [episodes, A].
        lengths: numbers of steps, [episodes].
    """
    found = fairness(jnp.asarray(returns / lengths[:, None]))
    return {name: float(np.mean(value)) for name, value in figures(found).items()}


def figures(found: Fairness) -> dict[str, Any]:
    """The measures by name."""
    return {
        "utilisation": found.utilisation,
        "variation": found.variation,
        "least": found.least,
        "greatest": found.greatest,
        "jain": found.jain,
    }
