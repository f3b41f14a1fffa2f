"""Equivalent states: the finest congruence that hides events, and the coarsest bisimulation.

Both take time proportional to the moves times the logarithm of the states, so that even a file of a
megabyte is processed quickly: no step goes over all states again to find the next merge or split.
"""

from collections.abc import Collection, Iterable

import numpy as np
from numpy.typing import NDArray

from gradweave.automata.machine import NO_MOVE, Machine


def merged(machine: Machine, events: Collection[str]) -> list[int]:
    """Each state's group, given by its first state: the finest congruence that hides other events.

    Union-find: when two groups merge, the moves of the smaller join those of the larger, and moves
    of one event that now lead to different groups give the next merge.

    Args:
        machine: the team's machine.
        events: the events that are not hidden.
    """
    states = range(len(machine.states))
    parent, first = list(states), list(states)
    moves: list[dict[int, int]] = [{} for _ in states]
    todo: list[tuple[int, int]] = []
    heard = [event in events for event in machine.events]
    for state, column in zip(*(place.tolist() for place in _moves(machine)), strict=True):
        after = int(machine.next[state, column])
        if heard[column]:
            moves[state][column] = after
        else:
            todo.append((state, after))

    def root(state: int) -> int:
        while parent[state] != state:
            parent[state] = parent[parent[state]]
            state = parent[state]
        return state

    while todo:
        one, other = map(root, todo.pop())
        if one == other:
            continue
        if len(moves[one]) < len(moves[other]):
            one, other = other, one
        parent[other] = one
        first[one] = min(first[one], first[other])
        for column, after in moves[other].items():
            known = moves[one].setdefault(column, after)
            if known != after:
                todo.append((known, after))
        moves[other] = {}
    return [first[root(state)] for state in states]


def equal_states(machine: Machine, among: NDArray[np.int64]) -> NDArray[np.int64]:
    """[S] each state's block in the coarsest partition that no trace distinguishes; −1 elsewhere.

    Blocks that differ in their marks, rewards or heard events are separated first. Then blocks are
    split by where their moves lead, and only the smaller of two parts has to split others.

    Args:
        machine: the machine.
        among: states to consider; moves from them stay among them.

    Source: Hopcroft 1971.
    """
    marks = np.stack([machine.final, machine.forbidden], 1)
    at_once = np.concatenate([marks, machine.next != NO_MOVE, machine.reward], 1)[among]
    block = np.full(len(machine.states), -1, np.int64)
    block[among] = np.unique(at_once, axis=0, return_inverse=True)[1].ravel()
    members = [set() for _ in range(int(block.max()) + 1)]
    before: list[list[tuple[int, int]]] = [[] for _ in machine.states]
    for state in among.tolist():
        members[block[state]].add(state)
        for column in np.flatnonzero(machine.next[state] != NO_MOVE).tolist():
            before[machine.next[state, column]].append((column, state))
    _refine(members, before)
    for number, states in enumerate(members):
        block[list(states)] = number
    return block


def _refine(members: list[set[int]], before: list[list[tuple[int, int]]]) -> None:
    """Splits blocks until all states of a block lead to the same blocks by the same events."""
    block = {state: number for number, states in enumerate(members) for state in states}
    waiting = set(range(len(members)))
    while waiting:
        splitter = waiting.pop()
        by_event: dict[int, list[int]] = {}
        for state in members[splitter]:
            for column, source in before[state]:
                by_event.setdefault(column, []).append(source)
        for sources in by_event.values():
            for number, part in _by_block(sources, block):
                if len(part) == len(members[number]):
                    continue
                members[number] -= part
                new = len(members)
                members.append(part)
                block.update(dict.fromkeys(part, new))
                smaller = new if len(part) <= len(members[number]) else number
                waiting.add(new if number in waiting else smaller)


def _by_block(states: Iterable[int], block: dict[int, int]) -> list[tuple[int, set[int]]]:
    parts: dict[int, set[int]] = {}
    for state in states:
        parts.setdefault(block[state], set()).add(state)
    return list(parts.items())


def _moves(machine: Machine) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The states and columns of all moves, state by state."""
    states, columns = np.nonzero(machine.next != NO_MOVE)
    return states, columns
