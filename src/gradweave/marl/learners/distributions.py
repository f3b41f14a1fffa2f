"""What actors draw actions from. Actions that are not available have no odds at all."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

NEVER = -1e9
"""Stands for the logarithm of no odds; finite, so that gradients beside it are."""
_HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)


def log_odds(
    scores: Float[Array, "*B U"], available: Bool[Array, "*#B U"] | None
) -> Float[Array, "*B U"]:
    """Logarithms of the odds of discrete actions.

    Args:
        scores: of each.
        available: which can be taken, at least one; all if not given.
    """
    return jax.nn.log_softmax(scores if available is None else jnp.where(available, scores, NEVER))


def draw(uniform: Float[Array, "*B"], odds: Float[Array, "*B U"]) -> Int[Array, "*B"]:
    """An action for each row of `log_odds`.

    Args:
        uniform: in [0, 1), one number for each action, where the Gumbel trick takes U.
        odds: of each action.
    """
    cumulative = jnp.cumsum(jnp.exp(odds), axis=-1)
    # The first sum above the number: what has no odds adds nothing, so it is never the first.
    return (cumulative > uniform[..., None] * cumulative[..., -1:]).argmax(-1)


def of_action(odds: Float[Array, "*B U"], action: Int[Array, "*B"]) -> Float[Array, "*B"]:
    """Logarithm of the odds of the actions that were taken."""
    return jnp.take_along_axis(odds, action[..., None], axis=-1)[..., 0]


def entropy(odds: Float[Array, "*B U"]) -> Float[Array, "*B"]:
    """Entropy of each row of `log_odds`, in nats; what cannot happen adds nothing."""
    return -(jnp.exp(odds) * jnp.where(odds > NEVER / 2, odds, 0.0)).sum(-1)


def gaussian_draw(
    normal: Float[Array, "*B U"], mean: Float[Array, "*B U"], log_std: Float[Array, "*#B U"]
) -> Float[Array, "*B U"]:
    """A value of each component.

    Args:
        normal: of the standard normal distribution.
        mean: of each component.
        log_std: logarithm of its standard deviation.
    """
    return mean + jnp.exp(log_std) * normal


def gaussian_of_action(
    mean: Float[Array, "*B U"],
    log_std: Float[Array, "*#B U"],
    action: Float[Array, "*B U"],
    real: Bool[Array, "*#B U"],
) -> Float[Array, "*B"]:
    """Logarithm of the density of the actions that were taken, over components that exist."""
    away = (action - mean) * jnp.exp(-log_std)
    return jnp.where(real, -0.5 * jnp.square(away) - log_std - _HALF_LOG_TAU, 0.0).sum(-1)


def gaussian_entropy(
    log_std: Float[Array, "*#B U"], real: Bool[Array, "*B U"]
) -> Float[Array, "*B"]:
    """Differential entropy in nats, over components that exist."""
    return jnp.where(real, log_std + 0.5 + _HALF_LOG_TAU, 0.0).sum(-1)
