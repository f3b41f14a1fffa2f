"""Worlds whose agents share resources: each agent earns for itself, and what it takes others lack.

A world is a few pure functions. `ResourceGame` gives it JaxMARL's interface, counts the rewards of
each agent, and ends an episode after a number of steps. An agent's utility is its mean reward per
step since the episode began.
"""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from gradweave.common.checks import check_at_least_one
from gradweave.marl.worlds.restarting import RestartingGame

MOVES = ((0, 0), (-1, 0), (1, 0), (0, -1), (0, 1))
"""Change of an agent's position for each action: stay, and one step along either axis."""
Agents = dict[str, Any]
"""A value per agent, by name."""


class ResourceWorld(Protocol):
    """The positions of agents, the resources they can take, and their rewards."""

    @property
    def agents(self) -> int:
        """A, the number of agents."""
        ...

    def begin(self, key: PRNGKeyArray) -> Any:
        """The arrays of a new episode."""
        ...

    def advance(
        self, key: PRNGKeyArray, state: Any, action: Int[Array, " A"]
    ) -> tuple[Any, Float[Array, " A"]]:
        """One step: the arrays after it, and the reward of each agent."""
        ...

    def observe(self, state: Any) -> Float[Array, "A O"]:
        """The observation of each agent."""
        ...


class ResourceState(eqx.Module):
    """The state of an episode."""

    world: Any
    """Arrays of the world."""
    earned: Float[Array, " A"]
    """Sum of each agent's rewards so far."""
    gone: Int[Array, ""]
    """Number of steps so far."""


class ResourceGame(RestartingGame):
    """A world as JaxMARL's `MultiAgentEnv`: dictionaries by agent; `step` resets by itself."""

    def __init__(self, world: ResourceWorld, *, max_steps: int = 1000) -> None:
        """Makes the game.

        Args:
            world: the world.
            max_steps: number of steps per episode; nothing else ends an episode.

        Raises:
            OptionError: the number of steps is not at least 1.
        """
        self.world, self.max_steps = world, max_steps
        check_at_least_one(self, "max_steps")
        self.num_agents = world.agents
        self.agents = [str(agent) for agent in range(world.agents)]
        state = jax.eval_shape(world.begin, jax.random.key(0))
        self.observation = jax.eval_shape(world.observe, state).shape[-1]

    def action_space(self, agent: str) -> Any:
        """One action per entry of `MOVES`."""
        return SimpleNamespace(n=len(MOVES))

    def observation_space(self, agent: str) -> Any:
        """The length of an observation."""
        return SimpleNamespace(shape=(self.observation,))

    def reset(self, key: PRNGKeyArray) -> tuple[Agents, ResourceState]:
        """Starts an episode."""
        nothing = jnp.zeros(self.num_agents), jnp.zeros((), jnp.int32)
        state = ResourceState(self.world.begin(key), *nothing)
        return self.get_obs(state), state

    def step_env(
        self, key: PRNGKeyArray, state: ResourceState, actions: Mapping[str, Array]
    ) -> tuple[Agents, ResourceState, Agents, Agents, Agents]:
        """A step: (observations, state, rewards, ends, information)."""
        action = jnp.stack([jnp.asarray(actions[agent], jnp.int32) for agent in self.agents])
        world, reward = self.world.advance(key, state.world, action)
        after = ResourceState(world, state.earned + reward, state.gone + 1)
        over = after.gone >= self.max_steps
        ends = {agent: over for agent in self.agents} | {"__all__": over}
        return self.get_obs(after), after, self._by_agent(reward), ends, {}

    def get_obs(self, state: ResourceState) -> Agents:
        """The observation of each agent."""
        return self._by_agent(self.world.observe(state.world))

    def utility(self, state: ResourceState) -> Float[Array, " A"]:
        """Each agent's mean reward per step so far; 0 before the first step."""
        return state.earned / jnp.maximum(state.gone, 1)

    def _by_agent(self, values: Array) -> Agents:
        return {agent: values[i] for i, agent in enumerate(self.agents)}


def one_after_the_other(
    place: Int[Array, "A 2"], action: Int[Array, " A"], side: int
) -> Int[Array, "A 2"]:
    """Positions after a step on a square grid with at most one agent per cell.

    Agents move in order. An agent does not enter a cell that was occupied when the step began, nor
    a cell that another agent has entered since; nor does it leave the grid.

    Args:
        place: rows and columns from 0, different for all agents.
        action: see `MOVES`.
        side: number of cells per axis.
    """
    wished = place + jnp.asarray(MOVES)[action]
    inside = ((wished >= 0) & (wished < side)).all(-1)
    taken = list(place)
    moved = []
    for agent in range(place.shape[0]):
        full = (jnp.stack(taken) == wished[agent]).all(-1).any()
        moved.append(jnp.where(inside[agent] & ~full, wished[agent], place[agent]))
        taken.append(moved[-1])
    return jnp.stack(moved)


def different_cells(key: PRNGKeyArray, agents: int, side: int) -> Int[Array, "A 2"]:
    """Rows and columns of random cells, all different."""
    cells = jax.random.permutation(key, side * side)[:agents]
    return jnp.stack([cells // side, cells % side], -1)


def around(grid: Float[Array, "N N"], place: Int[Array, "A 2"], reach: int) -> Float[Array, "A K"]:
    """The part of a grid around each agent, 0 beyond the edges, row by row."""
    padded = jnp.pad(grid, reach)
    width = 2 * reach + 1

    def one(cell: Array) -> Array:
        return jax.lax.dynamic_slice(padded, (cell[0], cell[1]), (width, width)).reshape(-1)

    return jax.vmap(one)(place)
