"""Distributions of actions: categorical under a mask, or normal with independent components."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

NEVER = -1e9
"""Replaces log 0; finite, so that gradients that involve it stay finite."""
_HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)


def log_probabilities(
    scores: Float[Array, "*B U"], available: Bool[Array, "*#B U"] | None
) -> Float[Array, "*B U"]:
    """Log-probabilities of discrete actions.

    Args:
        scores: score of each action.
        available: which actions are available, at least one; all by default.
    """
    return jax.nn.log_softmax(scores if available is None else jnp.where(available, scores, NEVER))


def sample(uniform: Float[Array, "*B"], log_p: Float[Array, "*B U"]) -> Int[Array, "*B"]:
    """An action for each row of `log_probabilities`.

    Args:
        uniform: numbers in [0, 1), one per action drawn; the Gumbel trick would need U of them.
        log_p: log-probability of each action.
    """
    cumulative = jnp.cumsum(jnp.exp(log_p), axis=-1)
    # The first cumulative sum above the number. An action of probability 0 adds nothing to the sum,
    # so it is never the first.
    return (cumulative > uniform[..., None] * cumulative[..., -1:]).argmax(-1)


def of_action(log_p: Float[Array, "*B U"], action: Int[Array, "*B"]) -> Float[Array, "*B"]:
    """Log-probability of the actions that were taken."""
    return jnp.take_along_axis(log_p, action[..., None], axis=-1)[..., 0]


def entropy(log_p: Float[Array, "*B U"]) -> Float[Array, "*B"]:
    """Entropy of each row of `log_probabilities`, in nats."""
    return -(jnp.exp(log_p) * jnp.where(log_p > NEVER / 2, log_p, 0.0)).sum(-1)


def gaussian_sample(
    normal: Float[Array, "*B U"], mean: Float[Array, "*B U"], log_std: Float[Array, "*#B U"]
) -> Float[Array, "*B U"]:
    """A value of each component.

    Args:
        normal: numbers from the standard normal distribution.
        mean: mean of each component.
        log_std: logarithm of the standard deviation.
    """
    return mean + jnp.exp(log_std) * normal


def gaussian_log_density(
    mean: Float[Array, "*B U"],
    log_std: Float[Array, "*#B U"],
    action: Float[Array, "*B U"],
    real: Bool[Array, "*#B U"],
) -> Float[Array, "*B"]:
    """Log-density of the actions taken, over components that exist."""
    z = (action - mean) * jnp.exp(-log_std)
    return jnp.where(real, -0.5 * jnp.square(z) - log_std - _HALF_LOG_TAU, 0.0).sum(-1)


def gaussian_entropy(
    log_std: Float[Array, "*#B U"], real: Bool[Array, "*B U"]
) -> Float[Array, "*B"]:
    """Differential entropy in nats, over components that exist."""
    return jnp.where(real, log_std + 0.5 + _HALF_LOG_TAU, 0.0).sum(-1)
