"""Worlds behind JaxMARL's interface, with or without reward machines."""

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
from gradweave.common.checks import check_at_least_one
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
"""A value per agent, by name."""


class WorldState(eqx.Module):
    """The state of a team."""

    cells: Int[Array, " A"]
    progress: Int[Array, ""]
    """State of the world's machine for the team, which opens doors."""
    gone: Int[Array, ""]
    """Number of steps in the episode."""


class WorldGame(RestartingGame):
    """A world as JaxMARL's `MultiAgentEnv`: dictionaries by agent, and `step` resets automatically.

    An agent observes its cell as a one-hot vector. All agents get reward 1 when the team is done,
    which ends the episode. ``info["events"]`` lists what occurred, and ``info["truncated"]`` says
    whether the time limit was reached.
    """

    def __init__(
        self, world: World, *, max_steps: int = 1000, ends: bool = True, doors: bool = True
    ) -> None:
        """Makes the game.

        Args:
            world: the world.
            max_steps: maximum number of steps per episode.
            ends: whether the episode ends when the world's own task does.
            doors: whether doors are closed until opened; otherwise they are always open.
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
        """The length of an observation."""
        return SimpleNamespace(shape=(self.observation,))

    def reset(self, key: PRNGKeyArray) -> tuple[Agents, WorldState]:
        """Starts an episode; the start is always the same."""
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
        """The observation of each agent."""
        cell = jax.nn.one_hot(state.cells, self.world.cells)
        return {agent: cell[i] for i, agent in enumerate(self.agents)}


def guided(world: World, task: Task, *, max_steps: int = 1000, doors: bool = True) -> Guided:
    """The game of a world with reward machines for its agents.

    Args:
        world: the world.
        task: the machine, with the events that each agent observes; by default all of them.
        max_steps: maximum number of steps per episode.
        doors: see `WorldGame`.

    Raises:
        OptionError: the machine uses events that never occur here, has other agents, or leaves
            agents before doors that open with events that move nothing in it.
    """
    task = fitted(world.name, world.agents, world.events, task)
    if doors:
        check_doors(world, task)
    game = WorldGame(world, max_steps=max_steps, ends=False, doors=doors)
    rules = [(rule.event, tuple(rule.at)) for rule in world.rules]
    return Guided(game, TOLD, guide_of(task, world.events, rules))


def check_doors(world: World, task: Task) -> None:
    """Refuses a machine that gives no agent a reason to open a door that another agent may wait at.

    Doors open with events, as in the world's own task. Agents learn to trigger an event only if it
    moves their machines.

    Raises:
        OptionError: one line that names the agents and the events.
    """
    machine, own = task.machine, world.task.machine
    moved = (machine.over(world.events) != NO_MOVE).any(0)
    leads = own.over(world.events)
    for agent, opened, (shut, open_) in zip(world.agents, world.opened, world.move, strict=True):
        if opened[own.start] or np.array_equal(shut, open_):  # no door is closed for this agent
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
                f"with {' or '.join(opens)}, which moves nothing in it; add a move, or use "
                f"{world.name.partition(':')[0]}:doors=open"
            )


def make(name: str, options: Mapping[str, Any]) -> WorldGame | Guided:
    """Makes the game of a world by its name and options.

    Args:
        name: name of the world.
        options: ``agents`` for the rendezvous, and the options of `of_world`.

    Raises:
        OptionError: an option is out of its range, or the machine does not fit the world.
        FileError: the machine cannot be read.
    """
    others = {key: value for key, value in options.items() if key not in _OPTIONS}
    return of_world(world(name, **others), options)


_OPTIONS = ("machine", "max_steps", "doors")


def of_world(made: World, options: Mapping[str, Any]) -> WorldGame | Guided:
    """The game of a world.

    Args:
        made: the world.
        options: ``max_steps``; ``doors=open`` for a world without closed doors; and ``machine``:
            ``own`` for the machine of the world, or the text of a machine's file.

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
    """The game of a world whose agents share resources.

    Args:
        name: name of the world.
        options: ``max_steps``.

    Raises:
        OptionError: an option is out of its range.
    """
    return ResourceGame(RESOURCE_WORLDS[name](), max_steps=steps_of(options))


def steps_of(options: Mapping[str, Any]) -> int:
    """The option ``max_steps``, the maximum number of steps per episode.

    Raises:
        OptionError: it is not a whole number.
    """
    steps = options.get("max_steps", 1000)
    if isinstance(steps, bool) or not isinstance(steps, int):
        raise OptionError(f"max_steps: expected a whole number, got {steps!r}")
    return steps
