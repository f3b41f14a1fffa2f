"""What agents who share what there is can maximise.

Each objective is a number for each agent and step. Those of utilities stand for the episode so far:
a controller is paid what they are at the end of its choice. Those of rewards are paid as they come:
it gets their mean.

- ``fair_efficient``: min(1, ū/c) / (ε + |u_i/ū − 1|), of its own utility and its estimate of ū.
- ``own``: its own reward, which is to learn independently.
- ``average``: the mean of all agents' rewards.
- ``minimum``: the least utility.
- ``inequity_aversion``: u_i − 5/(A−1) Σ max(u_j − u_i, 0) − 0.05/(A−1) Σ max(u_i − u_j, 0).
- ``alpha_fair``: Σ_j r_j / (u_j + δ)^α / A, what a step adds to Σ u^(1−α) / (1−α).
- ``jain``: the mean of all agents' rewards, less a penalty for Jain's index below a goal.

The first needs messages about the mean utility alone, the second none. ``average`` and
``alpha_fair`` are means of a number of each agent's: agents find them by the same messages as the
mean utility, and each learns from its own estimate; with the exact mean, from what all would have
to tell. The others are of all agents' utilities as they are: what a learner would have to send for
them is not counted.

Source: Jiang and Lu 2019 (fair-efficient, and what it is compared with); Hughes et al. 2018
(inequity aversion); Mo and Walrand 2000 (α-fairness).
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from gradweave.marl.fairness.measures import fairness
from gradweave.marl.fairness.settings import FEN, MEANS

ENVY, GUILT = 5.0, 0.05
"""α and β of inequity aversion."""
OF_UTILITIES = ("fair_efficient", "minimum", "inequity_aversion")
"""Objectives that stand for the episode so far."""
_LEAST_UTILITY = 1e-2
"""δ: of the objective ``alpha_fair``, so that the first reward is not worth infinitely much."""


def apart(utility: Float[Array, "*B A"], mean: Float[Array, "*B A"]) -> Float[Array, "*B A"]:
    """By which share of the mean utility each agent's own differs from it; 0 where it is 0."""
    known = jnp.where(mean > 0, mean, 1.0)
    return jnp.where(mean > 0, (utility - mean) / known, 0.0)


def used(mean: Float[Array, "*B A"], capacity: float) -> Float[Array, "*B A"]:
    """The mean utility as a share of what counts as 1."""
    return jnp.clip(mean / capacity, 0.0, 1.0)


def contribution(
    settings: FEN, reward: Float[Array, "*B A"], utility: Float[Array, "*B A"]
) -> Float[Array, "*B A"]:
    """What each agent's step is worth, of which agents find the mean.

    Args:
        settings: by which of `MEANS`, and its numbers.
        reward: of the step.
        utility: after it.
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
    """A step's worth to each agent.

    Args:
        settings: which objective, and its numbers.
        reward: of the step.
        utility: after it.
        mean: each agent's estimate of the mean utility after it.
        shared: each agent's estimate of the mean `contribution`; read by objectives of `MEANS`.
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
        more = utility[..., None, :] - utility[..., :, None]  # what j has beyond i
        envy, guilt = jax.nn.relu(more).sum(-1), jax.nn.relu(-more).sum(-1)
        return utility - (ENVY * envy + GUILT * guilt) / max(agents - 1, 1)
    lacking = jax.nn.relu(settings.goal - fairness(utility).jain)
    return all_alike(reward.mean(-1) - settings.penalty * settings.capacity * lacking)
