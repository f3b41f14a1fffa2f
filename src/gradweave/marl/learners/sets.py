"""Which agents share parameters, and means over these sets of agents."""

from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from gradweave.marl.config import Sharing

if TYPE_CHECKING:
    from gradweave.marl.games.environment import Environment

Sets = tuple[int, ...]
"""[A] the number of each agent's set of parameters, from 0."""


def sets_of(environment: "Environment", sharing: Sharing) -> Sets:
    """Each agent's set of parameters.

    Args:
        environment: the environment, which has agents and teams.
        sharing: whether all agents share a set, the agents of each team do, or none do.
    """
    agents = environment.num_agents
    return {
        "shared": (0,) * agents,
        "team": environment.teams,
        "agent": tuple(range(agents)),
    }[sharing]


def number(sets: Sets) -> int:
    """N, the number of sets."""
    return max(sets) + 1


def mean_of_each(x: Float[Array, "*B A"], sets: Sets) -> Float[Array, " N"]:
    """The mean over the agents of each set, and over all leading axes."""
    member = np.array(sets) == np.arange(number(sets))[:, None]
    shares = (member / member.sum(1, keepdims=True)).astype(np.float32)
    return jnp.asarray(shares) @ x.reshape(-1, x.shape[-1]).mean(0)
