"""What actors draw actions from. Actions that are not available have no odds at all."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

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


def draw(key: PRNGKeyArray, odds: Float[Array, "*B U"]) -> Int[Array, "*B"]:
    """An action for each row of `log_odds`."""
    return jax.random.categorical(key, odds)


def of_action(odds: Float[Array, "*B U"], action: Int[Array, "*B"]) -> Float[Array, "*B"]:
    """Logarithm of the odds of the actions that were taken."""
    return jnp.take_along_axis(odds, action[..., None], axis=-1)[..., 0]


def entropy(odds: Float[Array, "*B U"]) -> Float[Array, "*B"]:
    """Entropy of each row of `log_odds`, in nats; what cannot happen adds nothing."""
    return -(jnp.exp(odds) * jnp.where(odds > NEVER / 2, odds, 0.0)).sum(-1)


def gaussian_draw(
    key: PRNGKeyArray, mean: Float[Array, "*B U"], log_spread: Float[Array, "*#B U"]
) -> Float[Array, "*B U"]:
    """A value of each component, independent of the others."""
    return mean + jnp.exp(log_spread) * jax.random.normal(key, mean.shape)


def gaussian_of_action(
    mean: Float[Array, "*B U"],
    log_spread: Float[Array, "*#B U"],
    action: Float[Array, "*B U"],
    real: Bool[Array, "*#B U"],
) -> Float[Array, "*B"]:
    """Logarithm of the density of the actions that were taken, over components that exist."""
    away = (action - mean) * jnp.exp(-log_spread)
    return jnp.where(real, -0.5 * jnp.square(away) - log_spread - _HALF_LOG_TAU, 0.0).sum(-1)


def gaussian_entropy(
    log_spread: Float[Array, "*#B U"], real: Bool[Array, "*B U"]
) -> Float[Array, "*B"]:
    """Differential entropy in nats, over components that exist."""
    return jnp.where(real, log_spread + 0.5 + _HALF_LOG_TAU, 0.0).sum(-1)
