"""Worlds behind JaxMARL's interface, with or without a reward machine beside the agents."""

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PRNGKeyArray

from gradweave.automata.files import Task, read_text
from gradweave.checks import check_at_least_one
from gradweave.errors import OptionError
from gradweave.marl.games.guide import Guide
from gradweave.marl.tabular.tables import moves_of, of_agents, tables
from gradweave.marl.tabular.transitions import advanced, happened, slipped
from gradweave.marl.worlds.catalogue import OWN_MACHINE, world
from gradweave.marl.worlds.grid import ACTIONS
from gradweave.marl.worlds.job_scheduling import JobScheduling
from gradweave.marl.worlds.manufacturing_plant import ManufacturingPlant
from gradweave.marl.worlds.matthew_effect import MatthewEffect
from gradweave.marl.worlds.resources import ResourceGame, ResourceWorld
from gradweave.marl.worlds.restarting import RestartingGame
from gradweave.marl.worlds.world import World

Agents = dict[str, Any]
"""One entry for each agent's name."""


class WorldState(eqx.Module):
    """Where a team is."""

    cells: Int[Array, " A"]
    progress: Int[Array, ""]
    """State of the world's own machine of the team, on which doors depend."""
    known: Int[Array, " A"]
    """State of each agent's machine; 0 without one."""
    gone: Int[Array, ""]
    """Steps of the episode."""


class WorldGame(RestartingGame):
    """A world as JaxMARL's `MultiAgentEnv` is: dictionaries by agent, `step` resets by itself.

    An agent observes its own cell, one-hot, and with a machine the state of its own, one-hot. All
    agents get 1 when the team is done; with a machine, each gets what its own machine gives, and
    the episode ends as soon as one of them knows that its task is lost. ``info["events"]`` says
    what happened, ``info["truncated"]`` whether time is up.
    """

    def __init__(self, world: World, *, max_steps: int = 1000, guide: Task | None = None) -> None:
        """Makes the game.

        Args:
            world: where.
            max_steps: of an episode.
            guide: the machine beside the agents, with the events that each of them hears; all hear
                all, where it does not say.

        Raises:
            OptionError: the machine hears what never happens here, or has other agents.
        """
        self.world, self.max_steps = world, max_steps
        check_at_least_one(self, "max_steps")
        self.agents = list(world.agents)
        self.num_agents = len(self.agents)
        self._arrays = tables(world, causal=False)
        self.guide = None if guide is None else guide_of(world, fitted(world, guide))
        self.observation = world.cells + (0 if self.guide is None else self.guide.states)

    def action_space(self, agent: str) -> Any:
        """Five actions: up, right, down, left, stay."""
        return SimpleNamespace(n=len(ACTIONS))

    def observation_space(self, agent: str) -> Any:
        """Of this many numbers."""
        return SimpleNamespace(shape=(self.observation,))

    def reset(self, key: PRNGKeyArray) -> tuple[Agents, WorldState]:
        """The beginning, which is always the same."""
        nothing = jnp.zeros(self.num_agents, jnp.int32)
        state = WorldState(
            self._arrays.starts,
            self._arrays.team.start[0],
            nothing if self.guide is None else self.guide.machines.start,
            jnp.zeros((), jnp.int32),
        )
        return self.get_obs(state), state

    def step_env(
        self, key: PRNGKeyArray, state: WorldState, actions: Mapping[str, Array]
    ) -> tuple[Agents, WorldState, Agents, Agents, Agents]:
        """A step: (observations, state, rewards, ends, information)."""
        world, index = self._arrays, jnp.arange(self.num_agents)
        numbers = jax.random.uniform(key, (self.num_agents + 1,))
        action = jnp.stack([jnp.asarray(actions[agent], jnp.int32) for agent in self.agents])
        taken = slipped(action, numbers[:-1])
        there = world.move[index, world.team_open[:, state.progress], state.cells, taken]
        fired = happened(world, state.cells, there, numbers[-1])
        team = jax.tree.map(lambda x: x[0], world.team)
        progress, worth = (
            each[state.progress] for each in advanced(team, world.rules.event, fired)
        )
        reward = jnp.broadcast_to(worth, (self.num_agents,))
        done, known = team.ended[progress], state.known
        if self.guide is not None:
            known, reward = self.guide.heard(known, jnp.stack(fired))
            done = self.guide.over(known)
        after = WorldState(there, progress, known, state.gone + 1)
        truncated = after.gone >= self.max_steps
        over = done | truncated
        info = {"events": jnp.stack(fired), "truncated": truncated & ~done}
        ends = {agent: over for agent in self.agents} | {"__all__": over}
        rewards = {agent: reward[i] for i, agent in enumerate(self.agents)}
        return self.get_obs(after), after, rewards, ends, info

    def get_obs(self, state: WorldState) -> Agents:
        """What each agent observes."""
        cell = jax.nn.one_hot(state.cells, self.world.cells)
        if self.guide is not None:
            known = jax.nn.one_hot(state.known, self.guide.states)
            cell = jnp.concatenate([cell, known], 1)
        return {agent: cell[i] for i, agent in enumerate(self.agents)}


def fitted(world: World, guide: Task) -> Task:
    """A machine that fits a world: its events happen there, and it has as many agents.

    Raises:
        OptionError: it does not.
    """
    causal = () if guide.causal is None else guide.causal.events
    for event in (*guide.machine.events, *causal):
        if event not in world.events:
            raise OptionError(
                f"machine {guide.machine.name}: hears {event!r}, which never happens in "
                f"{world.name}; its events are {', '.join(world.events)}"
            )
    agents = guide.agents or {agent: guide.machine.events for agent in world.agents}
    if len(agents) != len(world.agents):
        raise OptionError(
            f"machine {guide.machine.name}: has {len(agents)} agents, {world.name} has "
            f"{len(world.agents)}"
        )
    return Task(guide.machine, agents, guide.causal)


def guide_of(world: World, task: Task) -> Guide:
    """The machines of a task beside a world's agents."""
    events, agents = world.events, range(len(world.agents))
    return Guide(
        moves_of(of_agents(task, events, causal=True), events),
        tuple(events.index(rule.event) for rule in world.rules),
        jnp.array([[agent in rule.at for agent in agents] for rule in world.rules]),
    )


def make(name: str, options: Mapping[str, Any]) -> WorldGame:
    """A world's game by its name and options.

    Args:
        name: of the world.
        options: ``agents`` of the rendezvous, ``max_steps``, and ``machine``: ``own`` for that of
            the world, or the text of a machine's file.

    Raises:
        OptionError: an option is out of its range, or the machine does not fit the world.
        FileError: the machine cannot be read.
    """
    others = {key: value for key, value in options.items() if key not in ("machine", "max_steps")}
    made, text = world(name, **others), options.get("machine")
    guide = made.task if text in (OWN_MACHINE, None) else read_text(str(text))
    return WorldGame(made, max_steps=_steps(options), guide=None if text is None else guide)


RESOURCE_WORLDS: dict[str, Callable[[], ResourceWorld]] = {
    "job_scheduling": JobScheduling,
    "matthew_effect": MatthewEffect,
    "manufacturing_plant": ManufacturingPlant,
}


def make_resources(name: str, options: Mapping[str, Any]) -> ResourceGame:
    """The game of a world whose agents share what there is.

    Args:
        name: of the world.
        options: ``max_steps``.

    Raises:
        OptionError: an option is out of its range.
    """
    return ResourceGame(RESOURCE_WORLDS[name](), max_steps=_steps(options))


def _steps(options: Mapping[str, Any]) -> int:
    steps = options.get("max_steps", 1000)
    if isinstance(steps, bool) or not isinstance(steps, int):
        raise OptionError(f"max_steps: expected a whole number, got {steps!r}")
    return steps
