"""Generalised advantage estimates over episodes that end within the steps."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


def advantages(
    reward: Float[Array, "T *B"],
    value: Float[Array, "T *B"],
    following: Float[Array, "T *B"],
    done: Bool[Array, "T *#B"],
    discount: float,
    smoothing: float,
) -> Float[Array, "T *B"]:
    """How much better each action was than the critic expected.

    A_t = δ_t + γλ (1 − done_t) A_{t+1} with δ_t = r_t + γ v_t − V_t.

    Source: Schulman et al. 2016, equation 16.

    Args:
        reward: r of each step.
        value: V that the critic gave the view before the step.
        following: v that it gives what the step led to: V of the next view; where an episode ended,
            0, or what the critic gave its last view if time alone ended it.
        done: where an episode ended, over which no advantage is carried.
        discount: γ.
        smoothing: λ.
    """

    def back(later: Array, step: tuple[Array, Array]) -> tuple[Array, Array]:
        error, goes_on = step
        advantage = error + discount * smoothing * goes_on * later
        return advantage, advantage

    error = reward + discount * following - value
    goes_on = 1.0 - done.astype(jnp.float32)
    return jax.lax.scan(back, jnp.zeros_like(error[0]), (error, goes_on), reverse=True)[1]
