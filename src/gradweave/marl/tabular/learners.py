"""Tabular Q-learning: one step of a trial, with each agent separate or all agents as one learner.

Every step updates the value of the action taken in every state of the machine (counterfactual
experience). With causal knowledge an episode ends as soon as the task has become impossible.

Source: Neary et al. 2021 (2007.01962), algorithm 1; Corazza et al. 2025 (2506.07829); Toro Icarte
et al. 2022 (counterfactual experience).
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from gradweave.common.checks import check_above_zero, check_at_least_one, check_share
from gradweave.marl.tabular.tables import Moves, Tables
from gradweave.marl.tabular.transitions import advanced, drawn, happened, joint, slipped, split
from gradweave.marl.worlds.grid import ACTIONS


@dataclasses.dataclass(frozen=True)
class Learning:
    """Settings of tabular learning.

    Raises:
        OptionError: a field is out of its range.
    """

    rate: float = 0.8
    """α, the step size of a value towards its target."""
    discount: float = 0.9
    sharpness: float = 50.0
    """Actions are drawn with probabilities proportional to e^(sharpness · value), unless random."""
    explore: tuple[float, float] = (1.0, 0.1)
    """Share of random actions at the start, and the value that it decays to exponentially. At the
    end of the training a tenth of the difference is left."""
    episode: int = 1000
    """Maximum steps of an episode, and of a test."""
    counterfactual: bool = True
    """Whether a step updates every state of the machine, or only the current state."""
    average_every: int = 0
    """Number of steps after which teams average their tables, if weights are given; 0 for never."""

    def __post_init__(self) -> None:
        check_above_zero(self, "rate", "sharpness")
        check_share(self, "rate", "discount")
        check_at_least_one(self, "episode")


class Learners(eqx.Module):
    """The state of a trial's training."""

    values: Float[Array, "M S U N"]
    """Values of M learners: one per agent, or one for the whole team."""
    cell: Int[Array, "M ..."]
    """Cell of each agent; with one learner, the cells of the whole team."""
    state: Int[Array, " M"]
    """State of each learner's machine."""
    gone: Int[Array, ""]
    """Number of steps in this episode."""


def updated(
    settings: Learning,
    machine: Moves,
    values: Float[Array, "S U N"],
    here: tuple[Int[Array, ""], Int[Array, ""], Int[Array, ""]],
    there: Int[Array, ""],
    after: tuple[Int[Array, " U"], Float[Array, " U"]],
) -> Float[Array, "S U N"]:
    """One learner's values after a step.

    Args:
        settings: settings of the learning.
        machine: the learner's machine.
        values: values before the step.
        here: place, state of the machine and action before the step.
        there: place after the step.
        after: the result of `advanced`.
    """
    place, now, action = here
    state, worth = after
    goal = worth + settings.discount * values[there].max(-1)[state]
    old = values[place, :, action]
    learns = ~machine.ended & ~machine.ended[now]
    if not settings.counterfactual:
        learns &= jnp.arange(len(old)) == now
    new = jnp.where(learns, old + settings.rate * (goal - old), old)
    return values.at[place, :, action].set(new)


def explored(settings: Learning, step: Int[Array, ""], steps: int) -> Float[Array, ""]:
    """The share of random actions after a given number of steps."""
    first, last = settings.explore
    return last + (first - last) * jnp.exp(-jnp.log(10.0) * step / steps)


def restarted(
    settings: Learning, machines: Moves, starts: Int[Array, "M ..."], learners: Learners
) -> Learners:
    """Starts new episodes: for all learners once all have ended, else for those that failed."""
    ended = jnp.take_along_axis(machines.ended, learners.state[:, None], 1)[:, 0]
    failed = jnp.take_along_axis(machines.failed, learners.state[:, None], 1)[:, 0]
    gone = learners.gone + 1
    over = ended.all() | (gone >= settings.episode)
    again = over | failed
    mask = again.reshape(again.shape + (1,) * (starts.ndim - 1))
    return dataclasses.replace(
        learners,
        cell=jnp.where(mask, starts, learners.cell),
        state=jnp.where(again, machines.start, learners.state),
        gone=jnp.where(over, 0, gone),
    )


Noise = Float[Array, "..."]
Train = Callable[[Learners, Noise, Array], Learners]
"""(trial, uniform numbers, share of random actions) -> the trial after a step."""


def apart(settings: Learning, world: Tables) -> tuple[Train, int]:
    """Separate agents: returns a step of a trial, and the number of random numbers per agent."""
    alone, rules = world.alone, len(world.alone.event)

    def one(
        machine: Moves, agent: Any, values: Array, cell: Array, state: Array, noise: Array, e: Array
    ) -> tuple[Array, Array, Array]:
        move, opened, at, before, chance = agent
        picked = drawn(values[cell, state], settings.sharpness, noise[2])
        at_random = (noise[1] * len(ACTIONS)).astype(jnp.int32)
        action = jnp.where(noise[0] < e, at_random, picked)
        there = move[opened[state], cell, slipped(action, noise[3])]
        fired = [at[r, there] & before[r, cell] & (noise[4 + r] < chance[r]) for r in range(rules)]
        after = advanced(machine, alone.event, fired)
        idle = machine.ended[state]
        values = updated(settings, machine, values, (cell, state, action), there, after)
        return values, jnp.where(idle, cell, there), jnp.where(idle, state, after[0][state])

    def step(learners: Learners, noise: Noise, explore: Array) -> Learners:
        agent = world.move, world.local_open, alone.at, alone.before, alone.chance
        values, cell, state = jax.vmap(one, (0, 0, 0, 0, 0, 0, None))(
            world.agents, agent, learners.values, learners.cell, learners.state, noise, explore
        )
        after = Learners(values, cell, state, learners.gone)
        return restarted(settings, world.agents, world.starts, after)

    return step, 4 + rules


def together(settings: Learning, world: Tables) -> tuple[Train, int]:
    """The whole team as one learner: returns a step, and the number of random numbers in it."""
    machine, agents, cells = team_machine(world), world.num_agents, world.cells

    def step(learners: Learners, noise: Noise, explore: Array) -> Learners:
        number, values = noise[0], learners.values[0]
        cell, state = learners.cell[0], learners.state[0]
        place = joint(cell, cells)
        picked = split(
            drawn(values[place, state], settings.sharpness, number[1]), len(ACTIONS), agents
        )
        at_random = (number[2 : 2 + agents] * len(ACTIONS)).astype(jnp.int32)
        actions = jnp.where(number[0] < explore, at_random, picked)
        taken = slipped(actions, number[2 + agents : 2 + 2 * agents])
        there = world.move[jnp.arange(agents), world.team_open[:, state], cell, taken]
        fired = happened(world, cell, there, number[-1])
        after = advanced(machine, world.rules.event, fired)
        action = joint(actions, len(ACTIONS))
        values = updated(
            settings, machine, values, (place, state, action), joint(there, cells), after
        )
        now = Learners(values[None], there[None], after[0][state][None], learners.gone)
        return restarted(settings, world.team, world.starts[None], now)

    return step, 3 + 2 * agents


def team_machine(world: Tables) -> Moves:
    """The team's machine, without the axis of machines."""
    return jax.tree.map(lambda x: x[0], world.team)
