"""Generalised advantage estimates, and the clipped objective that they weight."""

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
    weight: Float[Array, "T *B"] | None = None,
) -> Float[Array, "T *B"]:
    """How much better each action was than the critic expected.

    A_t = w_t (δ_t + γλ (1 − done_t) A_{t+1}) with δ_t = r_t + γ V(s_{t+1}) − V(s_t).

    Without weights this is the generalised advantage estimate. For actions that another policy μ
    took, use w_t = min(1, π(a_t) / μ(a_t)): then A_t + V(s_t) is V-trace's target with ρ̄ = c̄ = 1,
    and A_t the advantage of such a sample.

    Source: Schulman et al. 2016, equation 16; Espeholt et al. 2018, equation 1 and remark 2.

    Args:
        reward: r_t.
        value: V(s_t).
        next_value: V(s_{t+1}); at the end of an episode 0, or the value of its last state if only a
            time limit ended it.
        done: whether an episode ended with the step; no advantage is carried across.
        discount: γ.
        gae_lambda: λ.
        weight: w_t; 1 by default.
    """

    def step(later: Array, now: tuple[Array, Array, Array | None]) -> tuple[Array, Array]:
        error, continues, weight = now
        advantage = error + discount * gae_lambda * continues * later
        if weight is not None:
            advantage = weight * advantage
        return advantage, advantage

    error = reward + discount * next_value - value
    continues = 1.0 - done.astype(jnp.float32)
    return jax.lax.scan(step, jnp.zeros_like(error[0]), (error, continues, weight), reverse=True)[1]


def clipped_objective(
    ratio: Float[Array, "*B"], advantage: Float[Array, "*B"], clip_ratio: float
) -> Float[Array, "*B"]:
    """The clipped objective of actions, equation 7 of Schulman et al. 2017.

    Args:
        ratio: probability of each action now, relative to that when it was taken.
        advantage: advantages of the actions.
        clip_ratio: ε.
    """
    clipped = jnp.clip(ratio, 1.0 - clip_ratio, 1.0 + clip_ratio)
    return jnp.minimum(ratio * advantage, clipped * advantage)
