"""Job scheduling: four agents on a small grid compete for the single cell with the resource.

Source: Jiang and Lu 2019 (1910.14472), section 5.1. The rules are those of the authors' program,
except for the beginning, where it may put two agents on one cell.
"""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from gradweave.marl.worlds.resources import around, different_cells, one_after_the_other

SIDE = 5


class JobState(eqx.Module):
    """Positions of the agents and the resource: rows and columns from 0."""

    place: Int[Array, "A 2"]
    resource: Int[Array, " 2"]


@dataclasses.dataclass(frozen=True)
class JobScheduling:
    """5 × 5 cells. The agent on the resource's cell gets 1 per step; a cell holds one agent.

    The resource is on one of the nine inner cells and does not move. An agent observes its
    position, its distance from the resource, and the agents on the nine cells around it.
    """

    agents: int = 4

    def begin(self, key: PRNGKeyArray) -> JobState:
        """See `ResourceWorld.begin`."""
        place, resource = jax.random.split(key)
        return JobState(
            different_cells(place, self.agents, SIDE),
            jax.random.randint(resource, (2,), 1, SIDE - 1),
        )

    def advance(
        self, key: PRNGKeyArray, state: JobState, action: Int[Array, " A"]
    ) -> tuple[JobState, Float[Array, " A"]]:
        """See `ResourceWorld.advance`."""
        place = one_after_the_other(state.place, action, SIDE)
        reward = (place == state.resource).all(-1).astype(jnp.float32)
        return JobState(place, state.resource), reward

    def observe(self, state: JobState) -> Float[Array, "A 13"]:
        """See `ResourceWorld.observe`; lengths are relative to the grid's side."""
        place, far = state.place, state.resource - state.place
        held = jnp.zeros((SIDE, SIDE)).at[place[:, 0], place[:, 1]].set(1.0)
        return jnp.concatenate([place / (SIDE - 1), far / (SIDE - 1), around(held, place, 1)], -1)
