"""Tests of learned tables, in which whole teams perform their task.

An event that several agents observe moves them only if all of them have a move for it.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from gradweave.marl.tabular.learners import Learning, team_machine
from gradweave.marl.tabular.tables import Tables
from gradweave.marl.tabular.transitions import drawn, happened, joint, moving, slipped, split
from gradweave.marl.worlds.grid import ACTIONS


class Team(NamedTuple):
    """The state of a team in a test."""

    cells: Int[Array, " A"]
    states: Int[Array, " M"]
    """States of the learners' machines."""
    progress: Int[Array, ""]
    """State of the team's machine."""


class Test(NamedTuple):
    """A test of many teams."""

    gone: Int[Array, ""]
    """Number of steps so far."""
    going: Bool[Array, " N"]
    """Whether the team's task is neither done nor failed."""
    taken: Int[Array, " N"]
    """Steps of teams that are done; the maximum for the others."""
    teams: Team
    """[N] teams."""


Values = Float[Array, "M S U n"]


def tested(
    settings: Learning, world: Tables, central: bool, values: Array, key: PRNGKeyArray
) -> Int[Array, " N"]:
    """Number of steps that each trial's team needs in a test; the maximum if it fails.

    Args:
        settings: settings of the learning.
        world: arrays of the world.
        central: whether a single learner controls all agents.
        values: [N, M, S, U, n] values of each trial's learners.
        key: random key of the test.
    """
    trials, agents = values.shape[0], world.num_agents
    step = (_as_one if central else _apart)(settings, world)

    def body(test: Test) -> Test:
        shape = trials, 2 * agents + 1
        numbers = jax.random.uniform(jax.random.fold_in(key, test.gone), shape)
        teams = jax.vmap(step)(values, test.teams, numbers)
        ended, failed = _ends(world, central, teams.states)
        now = test.going & ended & ~failed
        taken = jnp.where(now, test.gone + 1, test.taken)
        return Test(test.gone + 1, test.going & ~ended & ~failed, taken, teams)

    def goes_on(test: Test) -> Bool[Array, ""]:
        return (test.gone < settings.episode) & test.going.any()

    return jax.lax.while_loop(goes_on, body, _begin(settings, world, central, trials)).taken


def _begin(settings: Learning, world: Tables, central: bool, trials: int) -> Test:
    start = (world.team if central else world.agents).start
    team = Team(world.starts, start, team_machine(world).start)
    teams = jax.tree.map(lambda x: jnp.broadcast_to(x, (trials, *x.shape)), team)
    nothing = jnp.zeros((), jnp.int32), jnp.ones(trials, bool)
    return Test(*nothing, jnp.full(trials, settings.episode), teams)


def _ends(
    world: Tables, central: bool, states: Int[Array, "N M"]
) -> tuple[Bool[Array, " N"], Bool[Array, " N"]]:
    """Whether all learners of a team have ended, and whether any of them has failed."""
    machines = world.team if central else world.agents
    index = jnp.arange(states.shape[1])
    return machines.ended[index, states].all(1), machines.failed[index, states].any(1)


Step = Callable[[Values, Team, Float[Array, " K"]], Team]
"""(values of a trial, state of its team, uniform numbers) -> the team's state after a step."""


def _apart(settings: Learning, world: Tables) -> Step:
    """Each agent acts by its values and its machine."""
    index, team = jnp.arange(world.num_agents), team_machine(world)

    def step(values: Values, now: Team, numbers: Array) -> Team:
        seen = values[index, now.cells, now.states]
        action = drawn(seen, settings.sharpness, numbers[: len(index)])
        there, fired = _moved(world, now, action, numbers)
        states, progress = now.states, now.progress
        for event, happens in zip(world.rules.event, fired, strict=True):
            progress = jnp.where(happens, team.next[progress, event], progress)
            moved = happens & moving(world.agents, states, event)
            states = jnp.where(moved, world.agents.next[index, states, event], states)
        return Team(there, states, progress)

    return step


def _as_one(settings: Learning, world: Tables) -> Step:
    """All agents act by the values and the machine of the team."""
    agents, team = world.num_agents, team_machine(world)

    def step(values: Values, now: Team, numbers: Array) -> Team:
        seen = values[0, joint(now.cells, world.cells), now.progress]
        action = split(drawn(seen, settings.sharpness, numbers[0]), len(ACTIONS), agents)
        there, fired = _moved(world, now, action, numbers)
        progress = now.progress
        for event, happens in zip(world.rules.event, fired, strict=True):
            progress = jnp.where(happens, team.next[progress, event], progress)
        return Team(there, progress[None], progress)

    return step


def _moved(
    world: Tables, now: Team, action: Int[Array, " A"], numbers: Float[Array, " K"]
) -> tuple[Int[Array, " A"], list[Bool[Array, ""]]]:
    """The cells after a step, and whether each rule's event occurred in it."""
    agents = world.num_agents
    taken = slipped(action, numbers[agents : 2 * agents])
    opened = world.team_open[:, now.progress]
    there = world.move[jnp.arange(agents), opened, now.cells, taken]
    return there, happened(world, now.cells, there, numbers[-1])
