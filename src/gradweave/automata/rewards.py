"""The agents' rewards, compared with those of the team's machine.

A reward belongs to the agents that hear its event. The reward of the move that ends the task
belongs to every agent. An agent whose part ends earlier is paid at that time, and an agent that has
no part in the task from the start is not paid.

Source: Neary et al. 2021 (2007.01962), definition 3, whose only reward is 1 for the end.
"""

import dataclasses
import math
from collections.abc import Collection, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from gradweave.automata.machine import NO_MOVE, Machine

SAME = 1e-9
"""Relative difference up to which two rewards count as equal: the order of a sum can cause it."""


def same(one: float, other: float) -> bool:
    """Whether two rewards are equal, up to rounding."""
    return math.isclose(one, other, rel_tol=SAME, abs_tol=1e-12)


def projected(
    machine: Machine, events: Collection[str], group: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """[S, E] minimum and maximum reward of each move for an agent that hears some events.

    Args:
        machine: the team's machine.
        events: events that the agent hears.
        group: [S] the agent's state for each state: it cannot distinguish states of one group.

    Returns:
        Two arrays, which differ if several ends of the task with different rewards are possible
        and no event that the agent hears determines which end it will be.
    """
    part_done = np.isin(group, group[np.flatnonzero(machine.final)])
    after = machine.next
    early = (after != NO_MOVE) & part_done[after] & ~machine.final[after]
    least, most = (
        machine.reward + np.where(early, prize[after], 0.0)
        for prize in _prizes(machine, events, group)
    )
    return least, most


def _prizes(
    machine: Machine, events: Collection[str], group: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """[S] the minimum and maximum reward of the ends to which hidden events may lead.

    If hidden events lead from a state to no end, the ends in that state's group count instead.
    """
    hidden = np.array([event not in events for event in machine.events], bool)
    moves = machine.next != NO_MOVE
    before: list[list[int]] = [[] for _ in machine.states]
    for state, column in np.argwhere(moves & hidden).tolist():
        before[machine.next[state, column]].append(state)
    ends = [
        (float(machine.reward[state, column]), state, column)
        for state, column in np.argwhere(moves & machine.final[machine.next]).tolist()
    ]

    def reached(ends: Iterable[tuple[float, int, int]]) -> NDArray[np.float64]:
        worth, of_group = np.full(len(machine.states), np.nan), dict[int, float]()
        for reward, state, column in ends:
            of_group.setdefault(int(group[machine.next[state, column]]), reward)
            todo = [state] if hidden[column] else []
            while todo:
                here = todo.pop()
                if np.isnan(worth[here]):
                    worth[here] = reward
                    todo += before[here]
        others = np.array([of_group.get(each, 0.0) for each in group.tolist()])
        return np.where(np.isnan(worth), others, worth)

    return reached(sorted(ends)), reached(sorted(ends, reverse=True))


@dataclasses.dataclass(frozen=True)
class Unpaid:
    """A reward of the team's machine that differs from what an agent's machine pays for it."""

    agent: int | None
    """The agent's number, or None if no agent hears the event."""
    team: float
    """The reward by the team's machine."""
    paid: float
    """The reward by the agent's machine, or its earlier payment if the agent's part ended first."""


Owed = tuple[float | None, ...]
"""[A] each agent's advance payment for the task's end: 0 until the agent's part ends, None if that
part was done from the start."""


def owed(
    before: Owed,
    paid: Sequence[float],
    hearing: Collection[int],
    reward: float,
    done: tuple[Sequence[bool], Sequence[bool], bool],
) -> Owed | Unpaid:
    """Each agent's advance payment for the task's end after one more event.

    Args:
        before: the payments before the event.
        paid: [A] payments by the agents' machines for the event.
        hearing: the agents that hear it.
        reward: payment by the team's machine.
        done: whether each agent's part was done before the event, and is after it; whether the
            team's is.

    Returns:
        The payments after the event, or the first reward that is paid wrongly.
    """
    was_done, is_done, ends = done
    after = list(before)
    for agent in range(len(before)) if ends else hearing:
        if was_done[agent]:
            earlier = before[agent] if ends else 0.0
            if earlier is not None and not same(reward, earlier):
                return Unpaid(agent, reward, earlier)
        elif is_done[agent] and not ends:
            after[agent] = paid[agent] - reward
        elif (is_done[agent] or not ends) and not same(paid[agent], reward):
            return Unpaid(agent, reward, paid[agent])
    if not ends and not hearing and not same(reward, 0.0):
        return Unpaid(None, reward, 0.0)
    return tuple(after)
