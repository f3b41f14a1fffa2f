"""Objectives for agents that share resources.

Each objective is a number per agent and step. An objective of utilities describes the episode so
far, so a controller is rewarded with its value at the end of a choice. An objective of rewards
accumulates, so the controller is rewarded with its mean over the choice.

- ``fair_efficient``: min(1, ū/c) / (ε + |u_i/ū − 1|), of the agent's utility and its estimate of ū.
- ``own``: the agent's reward, which is independent learning.
- ``average``: the mean of all agents' rewards.
- ``minimum``: the smallest utility.
- ``inequity_aversion``: u_i − 5/(A−1) Σ max(u_j − u_i, 0) − 0.05/(A−1) Σ max(u_i − u_j, 0).
- ``alpha_fair``: Σ_j r_j / (u_j + δ)^α / A, a step's contribution to Σ u^(1−α) / (1−α).
- ``jain``: the mean of all agents' rewards, minus a penalty if Jain's index is below a goal.

``fair_efficient`` needs messages about the mean utility only, and ``own`` needs no messages.
``average`` and ``alpha_fair`` are means of a number per agent. Agents estimate them with the same
messages as the mean utility, and each learns from its estimate; with the exact mean, from the true
value, as if every agent knew it. The other objectives use the exact utilities of all agents; the
messages that this would take are not counted.

Source: Jiang and Lu 2019 (fair-efficient, and the objectives it is compared with); Hughes et al.
2018 (inequity aversion); Mo and Walrand 2000 (α-fairness).
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from gradweave.marl.fairness.measures import fairness
from gradweave.marl.fairness.settings import FEN, MEANS

ENVY, GUILT = 5.0, 0.05
"""α and β of inequity aversion."""
OF_UTILITIES = ("fair_efficient", "minimum", "inequity_aversion")
"""Objectives that describe the episode so far."""
_LEAST_UTILITY = 1e-2
"""δ of the objective ``alpha_fair``, which keeps the value of the first reward finite."""


def apart(utility: Float[Array, "*B A"], mean: Float[Array, "*B A"]) -> Float[Array, "*B A"]:
    """Each agent's relative deviation from the mean utility; 0 if the mean is 0."""
    known = jnp.where(mean > 0, mean, 1.0)
    return jnp.where(mean > 0, (utility - mean) / known, 0.0)


def used(mean: Float[Array, "*B A"], capacity: float) -> Float[Array, "*B A"]:
    """The mean utility as a share of the capacity, at most 1."""
    return jnp.clip(mean / capacity, 0.0, 1.0)


def contribution(
    settings: FEN, reward: Float[Array, "*B A"], utility: Float[Array, "*B A"]
) -> Float[Array, "*B A"]:
    """The contribution of each agent's step, whose mean the agents estimate.

    Args:
        settings: selects one of `MEANS`, and has its parameters.
        reward: reward of the step.
        utility: utility after the step.
    """
    if settings.worth == "average":
        return reward
    return reward / (utility + _LEAST_UTILITY) ** settings.alpha


def objective(
    settings: FEN,
    reward: Float[Array, "*B A"],
    utility: Float[Array, "*B A"],
    mean: Float[Array, "*B A"],
    shared: Float[Array, "*B A"],
) -> Float[Array, "*B A"]:
    """The objective of each agent in a step.

    Args:
        settings: selects the objective, and has its parameters.
        reward: reward of the step.
        utility: utility after the step.
        mean: each agent's estimate of the mean utility after the step.
        shared: each agent's estimate of the mean `contribution`; used by the objectives of `MEANS`.
    """
    agents = utility.shape[-1]

    def all_alike(value: Float[Array, "*B"]) -> Float[Array, "*B A"]:
        return jnp.broadcast_to(value[..., None], utility.shape)

    name = settings.objective
    if name == "fair_efficient":
        unfair = jnp.abs(apart(utility, mean))
        return used(mean, settings.capacity) / (settings.epsilon + unfair)
    if name == "own":
        return reward
    if name in MEANS:
        return shared
    if name == "minimum":
        return all_alike(utility.min(-1))
    if name == "inequity_aversion":
        more = utility[..., None, :] - utility[..., :, None]  # how much more j has than i
        envy, guilt = jax.nn.relu(more).sum(-1), jax.nn.relu(-more).sum(-1)
        return utility - (ENVY * envy + GUILT * guilt) / max(agents - 1, 1)
    lacking = jax.nn.relu(settings.goal - fairness(utility).jain)
    return all_alike(reward.mean(-1) - settings.penalty * settings.capacity * lacking)
