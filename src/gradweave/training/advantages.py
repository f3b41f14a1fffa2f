"""Generalised advantage estimation over episodes that end within the steps."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


def advantages(
    reward: Float[Array, "T *B"],
    value: Float[Array, "T *B"],
    next_value: Float[Array, "T *B"],
    done: Bool[Array, "T *#B"],
    discount: float,
    gae_lambda: float,
) -> Float[Array, "T *B"]:
    """How much better each action was than the critic expected.

    A_t = δ_t + γλ (1 − done_t) A_{t+1} with δ_t = r_t + γ V(s_{t+1}) − V(s_t).

    Source: Schulman et al. 2016, equation 16.

    Args:
        reward: r_t.
        value: V(s_t).
        next_value: V(s_{t+1}); where an episode ended, 0, or the value of its last state if only
            a time limit ended it.
        done: where an episode ended, over which no advantage is carried.
        discount: γ.
        gae_lambda: λ.
    """

    def step(later: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        error, continues = now
        advantage = error + discount * gae_lambda * continues * later
        return advantage, advantage

    error = reward + discount * next_value - value
    continues = 1.0 - done.astype(jnp.float32)
    return jax.lax.scan(step, jnp.zeros_like(error[0]), (error, continues), reverse=True)[1]
