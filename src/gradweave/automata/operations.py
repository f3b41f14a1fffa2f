"""Operations on machines: projection, composition, product, minimisation, values.

Source: Neary et al. 2021 (2007.01962), definitions 3 and 5; Moore 1956 for minimisation.
"""

import dataclasses
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from gradweave.automata.machine import MOST_STATES, NO_MOVE, Machine
from gradweave.automata.partition import equal_states, merged
from gradweave.automata.rewards import projected, same
from gradweave.errors import OptionError, RewardError

MOST_LOOKED_AT = 5_000_000
"""Maximum number of moves that `view` follows; it can create a state for each subset of states."""
_NAMED = 8
"""Number of states that appear in the name of a merged state."""


def projection(machine: Machine, events: Collection[str], name: str = "") -> Machine:
    """The machine as seen by an agent that hears only some of its events.

    States connected by unheard events become one, and so do states that one event would
    then lead to. A move pays the reward of the moves that it stands for. A move that ends the
    agent's part before the task also pays the reward for the task's end. The agent is not paid
    for events that it does not hear.

    Args:
        machine: the team's machine.
        events: the agent's events; events that the machine does not hear are ignored.
        name: name of the result.

    Raises:
        RewardError: a move stands for several that pay differently.

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
    least, most = projected(machine, events, np.array(group))
    for state, column in zip(*np.nonzero(machine.next[:, seen] != NO_MOVE), strict=True):
        event = seen[column]
        here, after = names[group[state]], names[group[machine.next[state, event]]]
        if here in final:
            continue
        worth = float(least[state, event])
        _, before = moves[here].setdefault(machine.events[event], (after, worth))
        other = before if same(worth, float(most[state, event])) else float(most[state, event])
        if not same(worth, other):
            raise RewardError(
                f"{machine.name:.60}: {machine.events[event]:.60} in {here:.60} pays {worth:g} or "
                f"{other:g}, which {name or 'an agent'} that hears {' '.join(sorted(events)):.60} "
                "cannot tell apart; let it hear what decides, or give both the same reward"
            )
    return Machine.of(
        moves,
        start=names[group[machine.start]],
        final=[label for label in moves if label in final],
        forbidden=[label for label in moves if label in forbidden],
        events=[machine.events[column] for column in seen],
        name=name or f"{machine.name} on {' '.join(sorted(events))}",
    )


def _joined(names: Iterable[str], by: str) -> str:
    """A name for several states: their names, shortened if there are many."""
    names = list(names)
    whole = by.join(names[:_NAMED])
    return whole if len(names) <= _NAMED else f"{whole}{by}… {len(names)} in all"


def _distinct(labels: Iterable[str]) -> tuple[str, ...]:
    """The labels, with a number appended to repeated ones."""
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
    """The parallel composition of machines, reachable states only: the team of these parts.

    An event moves all machines that hear it, if each of them has a move; if any has none, the
    event is not possible and moves nobody. The composition is final when every part is.

    A move pays the reward of the parts that it moves. A part's reward for ending is paid when the
    composition ends, so that composing a machine's projections gives the machine again. An event
    that only ending parts hear pays 0 before the end of the composition.

    Args:
        machines: at least one.
        name: name of the result.

    Raises:
        RewardError: an event, or the end, has different rewards in two parts.
        OptionError: the composition has more than `MOST_STATES` states.
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
    name = name or _joined((m.name for m in machines), " with ")
    reward = _of_parts(machines, events, states, moves, name)
    never = [any(m.forbidden[part] for m, part in zip(machines, s, strict=True)) for s in states]
    labels = [" ".join(m.states[p] for m, p in zip(machines, s, strict=True)) for s in states]
    return Machine(name, _distinct(labels), events, 0, moves, reward, ends, np.array(never))


State = tuple[int, ...]


def _of_parts(
    machines: Sequence[Machine],
    events: Sequence[str],
    states: Sequence[State],
    moves: NDArray[np.int32],
    name: str,
) -> NDArray[np.float64]:
    """[S, E] the reward of each move of a composition."""
    reward = np.zeros(moves.shape)
    columns = [
        [(n, m.events.index(event)) for n, m in enumerate(machines) if event in m.events]
        for event in events
    ]
    prizes = [_prizes_of(machine) for machine in machines]
    for number, column in np.argwhere(moves != NO_MOVE).tolist():
        state, after = states[number], states[moves[number, column]]
        paid = [
            float(machines[n].reward[state[n], own])
            for n, own in columns[column]
            if not machines[n].final[after[n]]
        ]
        if all(m.final[part] for m, part in zip(machines, after, strict=True)):
            now = dict(columns[column])
            paid = [
                worth
                for n, m in enumerate(machines)
                for worth in (
                    [float(m.reward[state[n], now[n]])] if n in now else prizes[n][after[n]]
                )
            ]
        if any(not same(paid[0], other) for other in paid):
            raise RewardError(
                f"{name:.60}: its parts pay {min(paid):g} and {max(paid):g} for "
                f"{events[column]:.60}; give these moves the same reward"
            )
        reward[number, column] = paid[0] if paid else 0.0
    return reward


def _prizes_of(machine: Machine) -> list[list[float]]:
    """Rewards of the moves into each final state; an empty list if no move leads there."""
    prizes: list[list[float]] = [[] for _ in machine.states]
    ends = (machine.next != NO_MOVE) & machine.final[machine.next]
    for state, column in np.argwhere(ends).tolist():
        prizes[machine.next[state, column]].append(float(machine.reward[state, column]))
    return prizes


def _reachable(
    start: State,
    events: int,
    after: Callable[[State, int], State | None],
    final: Callable[[State], bool],
) -> tuple[list[State], NDArray[np.int32]]:
    """The reachable states, breadth first, and [S, E] the moves between them."""
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
    """A machine combined with an automaton."""

    machine: Machine
    """The machine over pairs, with the machine's rewards and final states and the automaton's
    forbidden states."""
    first: NDArray[np.int32]
    """[S] the machine's state in each pair."""
    second: NDArray[np.int32]
    """[S] the automaton's state in each pair."""


def product(machine: Machine, automaton: Machine) -> Product:
    """Both together: an event moves each of the two if it has a move, and leaves it otherwise.

    Args:
        machine: a machine with rewards.
        automaton: an automaton with forbidden states and without rewards.

    Raises:
        RewardError: the automaton has rewards.
        OptionError: it has more than `MOST_STATES` states.
    """
    if automaton.reward.any():
        raise RewardError(
            f"{automaton.name:.60}: says what may happen, and has rewards; give them to "
            f"{machine.name:.60}"
        )
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
    """The machine with the fewest states that no trace distinguishes from this one.

    Moves count as well as rewards: a missing move differs from a move that stays in its state,
    since in a composition it blocks other machines.
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
    """The smallest automaton that forbids the same traces: forbidden states are never left."""
    stuck = np.where(machine.forbidden[:, None], NO_MOVE, machine.next)
    return minimised(machine.replace(next=stuck.astype(np.int32)))


def _reached(machine: Machine) -> NDArray[np.int64]:
    """The reachable states, in order."""
    seen, todo = {machine.start}, [machine.start]
    while todo:
        for to in set(machine.next[todo.pop()].tolist()) - seen - {NO_MOVE}:
            seen.add(to)
            todo.append(to)
    return np.array(sorted(seen))


def values(machine: Machine, discount: float = 0.9, tolerance: float = 1e-9) -> NDArray[np.float64]:
    """[S] the maximum discounted reward if the best possible event always happens.

    Moves into forbidden states never happen; waiting is worth 0.

    Args:
        machine: a machine with rewards.
        discount: discount per event.
        tolerance: change at which the iteration stops.
    """
    may = (machine.next != NO_MOVE) & ~machine.forbidden[machine.next]
    states, columns = np.nonzero(may)
    after, reward = machine.next[states, columns], machine.reward[states, columns]
    value = np.zeros(len(machine.states))
    while True:
        new = np.zeros(len(machine.states))
        np.maximum.at(new, states, reward + discount * value[after])
        if not np.abs(new - value).max(initial=0.0) >= tolerance:  # also stops at NaN
            return new
        value = new


def dead(machine: Machine) -> NDArray[np.bool_]:
    """[S] states in which the task is not done and never will be, without further gain or loss.

    No possible trace leads from them to an end or to a nonzero reward.
    """
    may = (machine.next != NO_MOVE) & ~machine.forbidden[machine.next]
    allowed = machine.replace(next=np.where(may, machine.next, NO_MOVE).astype(np.int32))
    alive = machine.final | (may & (machine.reward != 0)).any(1)
    return ~machine.final & (machine.forbidden | cannot_reach(allowed, np.flatnonzero(alive)))


def cannot_reach(machine: Machine, alive: Iterable[int]) -> NDArray[np.bool_]:
    """[S] states from which none of the given states can be reached."""
    good = {int(state) for state in alive}
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
    """The knowledge of an agent that hears only some events about the state of an automaton.

    Its states are the sets of the automaton's states that are possible given the events heard;
    unheard events may have happened in between. A set is forbidden if all its states are.

    Args:
        automaton: an automaton with forbidden states.
        events: events that the agent hears.

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
    """[S] the state of `projection` that each state belongs to."""
    return np.unique(merged(machine, events), return_inverse=True)[1].ravel()
