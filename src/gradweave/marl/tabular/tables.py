"""A world, and its agents' knowledge of it, as padded arrays."""

import dataclasses
from collections.abc import Sequence

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from numpy.typing import NDArray

from gradweave.automata.files import Task
from gradweave.automata.machine import NO_MOVE, Machine
from gradweave.automata.operations import dead, group_of, product, projection, view
from gradweave.marl.worlds.world import SIMULATED, Rule, World


class Moves(eqx.Module):
    """Machines as arrays, padded to one size; axis N is the machine."""

    start: Int[Array, " N"]
    next: Int[Array, "N U L"]
    """Next state for each of the world's events; the same state if the machine has no move."""
    reward: Float[Array, "N U L"]
    may: Bool[Array, "N U L"]
    """Whether the task itself has the move, disregarding moves added by causal knowledge."""
    hears: Bool[Array, "N L"]
    """Whether the task has any move for the event."""
    failed: Bool[Array, "N U"]
    """Whether causal knowledge implies that the task has become impossible."""
    ended: Bool[Array, "N U"]
    """Whether the task is done or has failed; True for padding states."""


class Happenings(eqx.Module):
    """Rules as arrays, in the order in which their events occur within a step."""

    event: tuple[int, ...] = eqx.field(static=True)
    """[R] the number of each rule's event."""
    at: Bool[Array, "R A S"]
    before: Bool[Array, "R A S"]
    low: Float[Array, " R"]
    high: Float[Array, " R"]


class Alone(eqx.Module):
    """The probability that each rule's event occurs to an agent that trains separately."""

    event: tuple[int, ...] = eqx.field(static=True)
    at: Bool[Array, "A R S"]
    before: Bool[Array, "A R S"]
    chance: Float[Array, "A R"]


class Tables(eqx.Module):
    """All arrays of a world."""

    starts: Int[Array, " A"]
    move: Int[Array, "A 2 S 5"]
    agents: Moves
    """Each agent's machine, including its causal knowledge."""
    local_open: Int[Array, "A U"]
    """Whether the agent's door is open, as far as the agent knows."""
    team: Moves
    """The team's machine, [1]."""
    team_open: Int[Array, "A V"]
    rules: Happenings
    alone: Alone

    @property
    def num_agents(self) -> int:
        """A, the number of agents."""
        return self.starts.shape[0]

    @property
    def cells(self) -> int:
        """S, the number of cells."""
        return self.move.shape[2]


@dataclasses.dataclass(frozen=True, eq=False)
class Known:
    """A machine with causal knowledge, and the plain machine's state for each of its states."""

    machine: Machine
    plain: Machine
    state: NDArray[np.int32]
    """[U] the corresponding state of the plain machine."""
    failed: NDArray[np.bool_]
    """[U] whether the task has become impossible."""


def known(machine: Machine, causal: Machine | None, events: Sequence[str]) -> Known:
    """A machine extended by the knowledge of an agent that observes certain events.

    Args:
        machine: the machine of the agent or the team.
        causal: causal knowledge, or None for no knowledge.
        events: events that the agent observes.
    """
    if causal is None:
        nothing = np.zeros(len(machine.states), bool)
        return Known(machine, machine, np.arange(len(machine.states), dtype=np.int32), nothing)
    pairs = product(machine, view(causal, events))
    return Known(pairs.machine, machine, pairs.first, dead(pairs.machine))


def tables(world: World, *, causal: bool) -> Tables:
    """The arrays of a world.

    Args:
        world: the world and its task.
        causal: whether agents use the causal knowledge of the task.
    """
    task, events = world.task, world.events
    apart = of_agents(task, events, causal=causal)
    team = known(task.machine, task.causal if causal else None, events)
    groups = [group_of(task.machine, seen) for seen in task.agents.values()]
    most = max(len(each.state) for each in apart)
    local = np.zeros((len(apart), most), np.int32)
    for row, opened, group, each in zip(local, world.opened, groups, apart, strict=True):
        parts = np.array([opened[group == g].all() for g in range(group.max() + 1)])
        row[: len(each.state)] = parts[each.state]
    return Tables(
        starts=jnp.asarray(world.starts, jnp.int32),
        move=jnp.asarray(world.move),
        agents=moves_of(apart, events),
        local_open=jnp.asarray(local),
        team=moves_of([team], events),
        team_open=jnp.asarray(world.opened[:, team.state], jnp.int32),
        rules=_happenings(world),
        alone=_alone(world),
    )


def of_agents(task: Task, events: Sequence[str], *, causal: bool) -> list[Known]:
    """Each agent's machine, including its causal knowledge.

    Args:
        task: task of the team.
        events: events that can occur.
        causal: whether agents use the causal knowledge of the task.
    """
    knowledge = task.causal if causal else None
    return [
        known(projection(task.machine, seen), knowledge, [e for e in events if e in seen])
        for seen in task.agents.values()
    ]


def moves_of(several: Sequence[Known], events: Sequence[str]) -> Moves:
    """Machines as arrays over all events that can occur, padded to the largest machine."""
    size = max(len(each.state) for each in several)

    def stacked(rows: list[np.ndarray], fill: float) -> NDArray:
        return np.stack(
            [
                np.pad(
                    row,
                    [(0, size - len(row))] + [(0, 0)] * (row.ndim - 1),
                    constant_values=fill,
                )
                for row in rows
            ]
        )

    after, reward, may, hears = [], [], [], []
    for each in several:
        table = each.machine.over(events)
        here = np.arange(len(table), dtype=np.int32)[:, None]
        after.append(np.where(table == NO_MOVE, here, table))
        own = [each.machine.events.index(e) if e in each.machine.events else -1 for e in events]
        reward.append(np.pad(each.machine.reward, ((0, 0), (0, 1)))[:, own])
        plain = each.plain.over(events) != NO_MOVE
        may.append(plain[each.state])
        hears.append(plain.any(0))
    return Moves(
        start=jnp.asarray([each.machine.start for each in several], jnp.int32),
        next=jnp.asarray(stacked(after, 0), jnp.int32),
        reward=jnp.asarray(stacked(reward, 0.0), jnp.float32),
        may=jnp.asarray(stacked(may, False)),
        hears=jnp.asarray(np.stack(hears)),
        failed=jnp.asarray(stacked([each.failed for each in several], False)),
        ended=jnp.asarray(stacked([each.failed | each.machine.final for each in several], True)),
    )


def _masks(world: World, places: Sequence[Rule], field: str) -> NDArray[np.bool_]:
    """[R, A, S] cells where a rule requires each agent to be or to have been; else all cells."""
    masks = np.ones((len(places), len(world.agents), world.cells), bool)
    for number, rule in enumerate(places):
        for agent, cells in getattr(rule, field).items():
            masks[number, agent] = [cell in cells for cell in range(world.cells)]
    return masks


def _happenings(world: World) -> Happenings:
    rules, events = world.rules, world.events
    return Happenings(
        event=tuple(events.index(rule.event) for rule in rules),
        at=jnp.asarray(_masks(world, rules, "at")),
        before=jnp.asarray(_masks(world, rules, "before")),
        low=jnp.asarray([rule.coin[0] for rule in rules], jnp.float32),
        high=jnp.asarray([rule.coin[1] for rule in rules], jnp.float32),
    )


def _alone(world: World) -> Alone:
    """Events of the rules for agents that train separately.

    An agent observes its own events always, and events that involve other agents with a fixed
    probability. If several rules have the same event, it occurs only to the agents of the rule.
    """
    rules, events = world.rules, world.events
    chance = np.zeros((len(world.agents), len(rules)), np.float32)
    for agent, seen in enumerate(world.machine_agents):
        for number, rule in enumerate(rules):
            same = [other for other in rules if other.event == rule.event]
            if rule.event not in seen or (len(same) > 1 and agent not in rule.at):
                continue
            others = bool(set(rule.at) - {agent}) and rule.simulated
            chance[agent, number] = (SIMULATED if others else 1.0) * (rule.coin[1] - rule.coin[0])
    return Alone(
        event=tuple(events.index(rule.event) for rule in rules),
        at=jnp.asarray(_masks(world, rules, "at").swapaxes(0, 1)),
        before=jnp.asarray(_masks(world, rules, "before").swapaxes(0, 1)),
        chance=jnp.asarray(chance),
    )
