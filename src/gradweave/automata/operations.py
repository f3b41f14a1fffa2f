"""Machines from machines: projection, parallel composition, product, the least equal one; values.

Source: Neary et al. 2021 (2007.01962), definitions 3 and 5; Moore 1956 for minimisation.
"""

import dataclasses
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from gradweave.automata.machine import MOST_STATES, NO_MOVE, Machine
from gradweave.automata.partition import equal_states, merged
from gradweave.errors import OptionError

WORTHLESS = 1e-4
"""A value below this counts as none: the task can no longer be done."""
MOST_LOOKED_AT = 5_000_000
"""Moves that `view` follows; sets of states may be as many as there are subsets."""
_NAMED = 8
"""States that are named in the name of several."""


def projection(machine: Machine, events: Collection[str], name: str = "") -> Machine:
    """What an agent sees of a machine that hears only some of its events.

    States between which others' events move become one, and so do the states that one event would
    then lead to. A move has the greatest reward of those that it stands for; one that ends the
    agent's part has the greatest of those that end the task.

    Args:
        machine: of the team.
        events: the agent's; those that the machine does not hear are left out.
        name: of the result.

    >>> team = Machine.of(
    ...     {"0": {"a": ("1", 0.0)}, "1": {"b": ("2", 1.0)}, "2": {}}, start="0", final=["2"]
    ... )
    >>> projection(team, ["b"]).states
    ('0,1', '2')
    """
    group = merged(machine, events)
    seen = [column for column, event in enumerate(machine.events) if event in events]
    members: dict[int, list[str]] = {}
    for state, root in enumerate(group):
        members.setdefault(root, []).append(machine.states[state])
    labels = _distinct(_joined(each, ",") for each in members.values())
    names = dict(zip(members, labels, strict=True))
    final = {names[group[s]] for s in np.flatnonzero(machine.final)}
    forbidden = set(names.values()) - {names[group[s]] for s in np.flatnonzero(~machine.forbidden)}
    moves: dict[str, dict[str, tuple[str, float]]] = {label: {} for label in names.values()}
    ends = (machine.next != NO_MOVE) & machine.final[machine.next]
    prize = float(machine.reward[ends].max(initial=0.0))
    for state, column in zip(*np.nonzero(machine.next[:, seen] != NO_MOVE), strict=True):
        event = seen[column]
        here, after = names[group[state]], names[group[machine.next[state, event]]]
        if here in final:
            continue
        _, before = moves[here].get(machine.events[event], ("", 0.0))
        worth = max(machine.reward[state, event], before, prize if after in final else 0.0)
        moves[here][machine.events[event]] = (after, float(worth))
    return Machine.of(
        moves,
        start=names[group[machine.start]],
        final=[label for label in moves if label in final],
        forbidden=[label for label in moves if label in forbidden],
        events=[machine.events[column] for column in seen],
        name=name or f"{machine.name} on {' '.join(sorted(events))}",
    )


def _joined(names: Iterable[str], by: str) -> str:
    """A name for several states: theirs, but for those that make it too long."""
    names = list(names)
    whole = by.join(names[:_NAMED])
    return whole if len(names) <= _NAMED else f"{whole}{by}… {len(names)} in all"


def _distinct(labels: Iterable[str]) -> tuple[str, ...]:
    """The labels, those that were there before with a number."""
    taken: dict[str, int] = {}
    result: list[str] = []
    for label in labels:
        new = label
        while new in taken:
            taken[label] += 1
            new = f"{label} ({taken[label]})"
        taken[new] = 1
        result.append(new)
    return tuple(result)


def compose(machines: Sequence[Machine], name: str = "") -> Machine:
    """Machines side by side, reachable states only: the team that has these parts.

    An event moves all machines that hear it, where each of them has a move; where one has none,
    the event is not possible and moves nobody. The whole is final where every part is, and its
    reward is 1 for the move that ends it.

    Args:
        machines: at least one.
        name: of the result.

    Raises:
        OptionError: it has more than `MOST_STATES` states.
    """
    events = tuple(dict.fromkeys(event for each in machines for event in each.events))
    tables = [each.over(events).tolist() for each in machines]
    hearing = [[n for n, each in enumerate(machines) if event in each.events] for event in events]

    def after(state: State, event: int) -> State | None:
        moved = list(state)
        for part in hearing[event]:
            to = tables[part][state[part]][event]
            if to == NO_MOVE:
                return None
            moved[part] = to
        return tuple(moved)

    def final(state: State) -> bool:
        return all(each.final[part] for each, part in zip(machines, state, strict=True))

    states, moves = _reachable(tuple(m.start for m in machines), len(events), after, final)
    ends = np.array([final(state) for state in states])
    reward = np.where(moves == NO_MOVE, 0.0, ends[moves])
    never = [any(m.forbidden[part] for m, part in zip(machines, s, strict=True)) for s in states]
    labels = [" ".join(m.states[p] for m, p in zip(machines, s, strict=True)) for s in states]
    name = name or _joined((m.name for m in machines), " with ")
    return Machine(name, _distinct(labels), events, 0, moves, reward, ends, np.array(never))


State = tuple[int, ...]


def _reachable(
    start: State,
    events: int,
    after: Callable[[State, int], State | None],
    final: Callable[[State], bool],
) -> tuple[list[State], NDArray[np.int32]]:
    """The states that can be reached, breadth first, and [S, E] the moves between them."""
    place, rows = {start: 0}, []
    queue = deque([start])
    while queue:
        state = queue.popleft()
        row = np.full(events, NO_MOVE, np.int32)
        for event in range(0 if final(state) else events):
            to = after(state, event)
            if to is None:
                continue
            if to not in place:
                place[to] = len(place)
                queue.append(to)
                if len(place) > MOST_STATES:
                    raise OptionError(
                        f"the machines together have more than {MOST_STATES:,} states; take "
                        "smaller ones"
                    )
            row[event] = place[to]
        rows.append(row)
    return list(place), np.stack(rows)


@dataclasses.dataclass(frozen=True, eq=False)
class Product:
    """A machine together with what an automaton knows."""

    machine: Machine
    """Of pairs; rewards and final states are the machine's, forbidden ones the automaton's."""
    first: NDArray[np.int32]
    """[S] the machine's part of each pair."""
    second: NDArray[np.int32]
    """[S] the automaton's."""


def product(machine: Machine, automaton: Machine) -> Product:
    """Both at once: an event moves each that has a move for it, and leaves the other alone.

    Args:
        machine: with rewards.
        automaton: with forbidden states.

    Raises:
        OptionError: it has more than `MOST_STATES` states.
    """
    events = tuple(dict.fromkeys((*machine.events, *automaton.events)))
    tables = machine.over(events), automaton.over(events)

    def after(state: State, event: int) -> State | None:
        moved = [int(table[part, event]) for part, table in zip(state, tables, strict=True)]
        if max(moved) == NO_MOVE:
            return None
        one, two = (at if to == NO_MOVE else to for at, to in zip(state, moved, strict=True))
        return one, two

    states, moves = _reachable(
        (machine.start, automaton.start), len(events), after, lambda s: bool(machine.final[s[0]])
    )
    one, two = np.array(states, np.int32).T
    reward = np.zeros(moves.shape)
    for column, event in enumerate(events):
        if event in machine.events:
            reward[:, column] = machine.reward[one, machine.events.index(event)]
    whole = Machine(
        f"{machine.name} knowing {automaton.name}",
        _distinct(f"{machine.states[a]}|{automaton.states[b]}" for a, b in states),
        events,
        0,
        moves,
        np.where(moves == NO_MOVE, 0.0, reward),
        machine.final[one],
        automaton.forbidden[two],
    )
    return Product(whole, one, two)


def minimised(machine: Machine) -> Machine:
    """The machine with the fewest states that no trace tells from this one.

    Moves count, not only rewards: an event without a move differs from one that leads nowhere,
    since in a composition it holds others back.
    """
    reachable = _reached(machine)
    block = equal_states(machine, reachable)
    first = reachable[np.unique(block[reachable], return_index=True)[1]]
    order = np.argsort(first)
    rank = np.argsort(order)
    first = first[order]
    moves = np.where(machine.next[first] == NO_MOVE, NO_MOVE, rank[block[machine.next[first]]])
    return machine.replace(
        states=tuple(machine.states[s] for s in first),
        start=int(rank[block[machine.start]]),
        next=moves.astype(np.int32),
        reward=machine.reward[first],
        final=machine.final[first],
        forbidden=machine.forbidden[first],
    )


def knowledge(machine: Machine) -> Machine:
    """The least automaton that forbids the same traces: what is forbidden stays so."""
    stuck = np.where(machine.forbidden[:, None], NO_MOVE, machine.next)
    return minimised(machine.replace(next=stuck.astype(np.int32)))


def _reached(machine: Machine) -> NDArray[np.int64]:
    """The states that events can lead to, in order."""
    seen, todo = {machine.start}, [machine.start]
    while todo:
        for to in set(machine.next[todo.pop()].tolist()) - seen - {NO_MOVE}:
            seen.add(to)
            todo.append(to)
    return np.array(sorted(seen))


def values(machine: Machine, discount: float = 0.9, tolerance: float = 1e-9) -> NDArray[np.float64]:
    """[S] the greatest discounted reward where the best event that may happen always happens.

    Moves into forbidden states never happen; waiting is worth 0.

    Args:
        machine: with rewards.
        discount: of what is one event later.
        tolerance: at which the iteration stops.
    """
    may = (machine.next != NO_MOVE) & ~machine.forbidden[machine.next]
    states, columns = np.nonzero(may)
    after, reward = machine.next[states, columns], machine.reward[states, columns]
    value = np.zeros(len(machine.states))
    while True:
        new = np.zeros(len(machine.states))
        np.maximum.at(new, states, reward + discount * value[after])
        if not np.abs(new - value).max(initial=0.0) >= tolerance:  # nor where it is no number
            return new
        value = new


def dead(machine: Machine, discount: float = 0.9) -> NDArray[np.bool_]:
    """[S] where the task is not done and cannot be any more: no trace earns anything."""
    return ~machine.final & (machine.forbidden | (values(machine, discount) < WORTHLESS))


def cannot_reach(machine: Machine, alive: Iterable[int]) -> NDArray[np.bool_]:
    """[S] states from which none of those given can be reached."""
    good = set(alive)
    before: dict[int, set[int]] = {}
    for state, column in zip(*np.nonzero(machine.next != NO_MOVE), strict=True):
        before.setdefault(int(machine.next[state, column]), set()).add(int(state))
    todo = list(good)
    while todo:
        for state in before.get(todo.pop(), set()) - good:
            good.add(state)
            todo.append(state)
    return np.array([state not in good for state in range(len(machine.states))])


def view(automaton: Machine, events: Collection[str]) -> Machine:
    """What an agent that hears only some events knows of where an automaton is.

    Its states are sets of the automaton's that the events heard leave possible; others may have
    happened meanwhile. One is forbidden where all of its set are.

    Args:
        automaton: with forbidden states.
        events: that the agent hears.

    Raises:
        OptionError: it has more than `MOST_STATES` states, or finding them takes more than
            `MOST_LOOKED_AT` moves.
    """
    heard = tuple(event for event in automaton.events if event in events)
    hidden = [n for n, event in enumerate(automaton.events) if event not in events]
    table, after = automaton.over(heard), automaton.total[:, hidden].tolist()
    never_there, looked_at = automaton.forbidden.tolist(), 0

    def closed(states: Iterable[int]) -> State:
        nonlocal looked_at
        known = {state for state in states if not never_there[state]}
        todo = list(known)
        while todo:
            looked_at += 1 + len(hidden)
            for to in set(after[todo.pop()]) - known:
                if not never_there[to]:
                    known.add(to)
                    todo.append(to)
        if looked_at > MOST_LOOKED_AT:
            raise OptionError(
                f"{automaton.name:.60}: what is left open by {' '.join(heard):.60} is more than "
                f"{MOST_LOOKED_AT:,} moves; take a smaller automaton"
            )
        return tuple(sorted(known))

    def moved(state: State, event: int) -> State | None:
        there = [int(table[part, event]) for part in state]
        return closed(at if to == NO_MOVE else to for at, to in zip(state, there, strict=True))

    sets, moves = _reachable(closed([automaton.start]), len(heard), moved, lambda state: not state)
    none = np.zeros(len(sets), bool)
    names = _distinct(_joined((automaton.states[p] for p in s), "/") or "never" for s in sets)
    never = np.array([not each for each in sets])
    name = f"{automaton.name} on {' '.join(heard)}"
    return knowledge(Machine(name, names, heard, 0, moves, np.zeros(moves.shape), none, never))


def group_of(machine: Machine, events: Collection[str]) -> NDArray[np.int64]:
    """[S] of which state of `projection` each state is a part."""
    return np.unique(merged(machine, events), return_inverse=True)[1].ravel()
