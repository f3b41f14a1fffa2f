"""The manufacturing plant: agents gather gems; each agent needs certain kinds for its parts.

Source: Jiang and Lu 2019 (1910.14472), section 5.3. The rules are those of the authors' program,
except for the end: an episode has a fixed number of steps, and no gems are left once all have been
gathered.
"""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from gradweave.marl.worlds.resources import around, different_cells, one_after_the_other

SIDE, MARGIN, KINDS = 8, 1, 3
"""Cells per axis, width of the edge without gems, and number of kinds of gems."""
NEEDS = np.array([[2, 1, 0], [1, 0, 1], [0, 1, 1], [1, 1, 0], [0, 1, 2]])
"""[A, KINDS] number of gems of each kind in a part of each agent."""
BEGUN = 0.1
"""Reward for a gem that a part needs while it still needs other gems."""
GONE = -SIDE
"""Row and column of gems that no longer exist."""


class PlantState(eqx.Module):
    """Positions of agents and gems, and what each agent has."""

    place: Int[Array, "A 2"]
    has: Int[Array, "A K"]
    gem: Int[Array, "G 2"]
    kind: Int[Array, " G"]
    gathered: Int[Array, ""]
    """Number of gems gathered so far by all agents."""


@dataclasses.dataclass(frozen=True)
class ManufacturingPlant:
    """8 × 8 cells, five agents, and eight gems of three kinds, which are replaced when taken.

    An agent takes the gems on its cell. When it has all gems that its part needs, the part is made
    and the agent gets 1; for a gem after which the part still needs others, it gets 0.1. It
    observes its position, its gems, the gems that its part needs, and the kinds of gems on the 25
    cells around it.
    """

    gems: int = 8
    supply: int = 700
    """Number of gems per episode."""

    @property
    def agents(self) -> int:
        """See `ResourceWorld.agents`."""
        return len(NEEDS)

    def begin(self, key: PRNGKeyArray) -> PlantState:
        """See `ResourceWorld.begin`."""
        place, gems = jax.random.split(key)
        return PlantState(
            different_cells(place, self.agents, SIDE),
            jnp.zeros((self.agents, KINDS), jnp.int32),
            *self._gems(gems),
            jnp.zeros((), jnp.int32),
        )

    def advance(
        self, key: PRNGKeyArray, state: PlantState, action: Int[Array, " A"]
    ) -> tuple[PlantState, Float[Array, " A"]]:
        """See `ResourceWorld.advance`."""
        place = one_after_the_other(state.place, action, SIDE)
        takes = (place[:, None] == state.gem).all(-1)
        has, reward = state.has, jnp.zeros(self.agents)
        for gem in range(self.gems):
            gained = takes[:, gem, None] & (state.kind[gem] == jnp.arange(KINDS))
            has = has + gained
            reward = reward + BEGUN * (gained & (has < NEEDS)).any(-1)
        enough = jnp.where(NEEDS > 0, has // np.maximum(NEEDS, 1), self.supply)
        made = enough.min(-1)
        gathered = state.gathered + takes.sum(dtype=jnp.int32)
        taken = takes.any(0)
        cell, kind = self._gems(key)
        cell = jnp.where(taken[:, None], cell, state.gem)
        return PlantState(
            place,
            has - made[:, None] * jnp.asarray(NEEDS),
            jnp.where(gathered > self.supply, GONE, cell),
            jnp.where(taken, kind, state.kind),
            gathered,
        ), reward + made

    def observe(self, state: PlantState) -> Float[Array, "A 33"]:
        """See `ResourceWorld.observe`; positions are relative to the grid's side."""
        kinds = jnp.zeros((SIDE, SIDE))
        # outside the grid, so it is not written
        row, column = jnp.where(state.gem < 0, SIDE, state.gem).T
        kinds = kinds.at[row, column].set((state.kind + 1) / KINDS, mode="drop")
        needs = jnp.asarray(NEEDS, jnp.float32)
        has = jnp.minimum(state.has, 2 * NEEDS.max()) / NEEDS.max()
        seen = around(kinds, state.place, 2)
        return jnp.concatenate([state.place / (SIDE - 1), has, needs / NEEDS.max(), seen], -1)

    def _gems(self, key: PRNGKeyArray) -> tuple[Int[Array, "G 2"], Int[Array, " G"]]:
        """Draws positions and kinds of gems, anywhere but at the edges."""
        cell, kind = jax.random.split(key)
        return (
            jax.random.randint(cell, (self.gems, 2), MARGIN, SIDE - MARGIN),
            jax.random.randint(kind, (self.gems,), 0, KINDS),
        )
