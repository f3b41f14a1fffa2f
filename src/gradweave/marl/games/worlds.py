"""Worlds behind JaxMARL's interface, with or without a reward machine beside the agents."""

import dataclasses
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PRNGKeyArray

from gradweave.automata.files import Task, read_text
from gradweave.automata.machine import NO_MOVE
from gradweave.checks import check_at_least_one
from gradweave.errors import OptionError
from gradweave.marl.games.family import TOLD
from gradweave.marl.games.guided import Guided, fitted, guide_of
from gradweave.marl.tabular.tables import tables
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
    gone: Int[Array, ""]
    """Steps of the episode."""


class WorldGame(RestartingGame):
    """A world as JaxMARL's `MultiAgentEnv` is: dictionaries by agent, `step` resets by itself.

    An agent observes its own cell, one-hot. All agents get 1 when the team is done, which ends the
    episode. ``info["events"]`` says what happened, ``info["truncated"]`` whether time is up.
    """

    def __init__(
        self, world: World, *, max_steps: int = 1000, ends: bool = True, doors: bool = True
    ) -> None:
        """Makes the game.

        Args:
            world: where.
            max_steps: of an episode.
            ends: whether the end of the world's own task is one of the episode.
            doors: whether doors are closed until they are opened, rather than open.
        """
        self.world, self.max_steps = world, max_steps
        check_at_least_one(self, "max_steps")
        self.agents = list(world.agents)
        self.num_agents = len(self.agents)
        self.observation = world.cells
        if not doors:
            world = dataclasses.replace(world, opened=np.ones_like(world.opened))
        self._arrays, self._ends = tables(world, causal=False), ends

    def action_space(self, agent: str) -> Any:
        """Five actions: up, right, down, left, stay."""
        return SimpleNamespace(n=len(ACTIONS))

    def observation_space(self, agent: str) -> Any:
        """Of this many numbers."""
        return SimpleNamespace(shape=(self.observation,))

    def reset(self, key: PRNGKeyArray) -> tuple[Agents, WorldState]:
        """The beginning, which is always the same."""
        begun = self._arrays.team.start[0], jnp.zeros((), jnp.int32)
        state = WorldState(self._arrays.starts, *begun)
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
        done = team.ended[progress] & self._ends
        after = WorldState(there, progress, state.gone + 1)
        truncated = after.gone >= self.max_steps
        over = done | truncated
        info = {"events": jnp.stack(fired), "truncated": truncated & ~done}
        ends = {agent: over for agent in self.agents} | {"__all__": over}
        rewards = {agent: worth for agent in self.agents}
        return self.get_obs(after), after, rewards, ends, info

    def get_obs(self, state: WorldState) -> Agents:
        """What each agent observes."""
        cell = jax.nn.one_hot(state.cells, self.world.cells)
        return {agent: cell[i] for i, agent in enumerate(self.agents)}


def guided(world: World, task: Task, *, max_steps: int = 1000, doors: bool = True) -> Guided:
    """A world's game with a reward machine beside its agents.

    Args:
        world: where.
        task: the machine, with the events that each agent hears; all hear all, where it does not
            say.
        max_steps: of an episode.
        doors: see `WorldGame`.

    Raises:
        OptionError: the machine hears what never happens here, has other agents, or leaves them
            before doors that open with what moves nothing in it.
    """
    task = fitted(world.name, world.agents, world.events, task)
    if doors:
        check_doors(world, task)
    game = WorldGame(world, max_steps=max_steps, ends=False, doors=doors)
    rules = [(rule.event, tuple(rule.at)) for rule in world.rules]
    return Guided(game, TOLD, guide_of(task, world.events, rules))


def check_doors(world: World, task: Task) -> None:
    """Refuses a machine under which nobody opens a door that an agent may stand before.

    Doors open with events, as in the world's own task. Agents learn to bring an event about where
    it moves their machines.

    Raises:
        OptionError: one line that names the agents and the events.
    """
    machine, own = task.machine, world.task.machine
    moved = (machine.over(world.events) != NO_MOVE).any(0)
    leads = own.over(world.events)
    for agent, opened, (shut, open_) in zip(world.agents, world.opened, world.move, strict=True):
        if opened[own.start] or np.array_equal(shut, open_):  # none is shut for this one
            continue
        opens = [
            event
            for number, event in enumerate(world.events)
            if any(
                after != NO_MOVE and opened[after] and not opened[state]
                for state, after in enumerate(leads[:, number])
            )
        ]
        if not any(moved[world.events.index(event)] for event in opens):
            raise OptionError(
                f"machine {machine.name}: agent {agent} of {world.name} waits at a door that opens "
                f"with {' or '.join(opens)}, which moves nothing in it; give it a move, or take "
                f"{world.name.partition(':')[0]}:doors=open"
            )


def make(name: str, options: Mapping[str, Any]) -> WorldGame | Guided:
    """A world's game by its name and options.

    Args:
        name: of the world.
        options: ``agents`` of the rendezvous, and those of `of_world`.

    Raises:
        OptionError: an option is out of its range, or the machine does not fit the world.
        FileError: the machine cannot be read.
    """
    others = {key: value for key, value in options.items() if key not in _OPTIONS}
    return of_world(world(name, **others), options)


_OPTIONS = ("machine", "max_steps", "doors")


def of_world(made: World, options: Mapping[str, Any]) -> WorldGame | Guided:
    """A world's game.

    Args:
        made: the world.
        options: ``max_steps``; ``doors=open`` for no closed doors; and ``machine``: ``own`` for
            that of the world, or the text of a machine's file.

    Raises:
        OptionError: an option is out of its range, or the machine does not fit the world.
        FileError: the machine cannot be read.
    """
    text, doors = options.get("machine"), options.get("doors", "own")
    if doors not in ("own", "open"):
        raise OptionError(f"doors: expected own or open, got {doors!r}")
    max_steps, closed = steps_of(options), doors == "own"
    if text is None:
        return WorldGame(made, max_steps=max_steps, doors=closed)
    task = made.task if text == OWN_MACHINE else read_text(str(text))
    return guided(made, task, max_steps=max_steps, doors=closed)


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
    return ResourceGame(RESOURCE_WORLDS[name](), max_steps=steps_of(options))


def steps_of(options: Mapping[str, Any]) -> int:
    """The option ``max_steps``: steps of an episode.

    Raises:
        OptionError: it is no whole number.
    """
    steps = options.get("max_steps", 1000)
    if isinstance(steps, bool) or not isinstance(steps, int):
        raise OptionError(f"max_steps: expected a whole number, got {steps!r}")
    return steps
