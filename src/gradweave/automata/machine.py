"""Mealy machines over events: reward machines, and automata of what the world allows."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradweave.common.checks import did_you_mean
from gradweave.common.drawn import Drawn
from gradweave.errors import OptionError

NO_MOVE = -1
"""In `Machine.next`: an event that has no move from a state."""
MOST_STATES = 10_000
"""Maximum number of states of a machine that is read or built; larger machines are rejected."""


@dataclasses.dataclass(frozen=True, eq=False)
class Machine(Drawn):
    """A deterministic Mealy machine: events move it, and each move has a reward.

    An event without a move leaves the state unchanged, with reward 0. A reward machine ends in a
    final state. An automaton of causal knowledge has no rewards: traces that lead to one of its
    forbidden states never happen.
    """

    name: str
    states: tuple[str, ...]
    """[S] names of the states."""
    events: tuple[str, ...]
    """[E] events that it hears, in order; all others leave it unchanged."""
    start: int
    next: NDArray[np.int32]
    """[S, E] the state after each event, or `NO_MOVE`."""
    reward: NDArray[np.float64]
    """[S, E] reward of each move; 0 if there is no move."""
    final: NDArray[np.bool_]
    """[S] whether the task is done. No moves leave these states."""
    forbidden: NDArray[np.bool_]
    """[S] whether no possible trace leads to the state."""

    @classmethod
    def of(
        cls,
        moves: Mapping[str, Mapping[str, tuple[str, float]]],
        *,
        start: str,
        final: Iterable[str] = (),
        forbidden: Iterable[str] = (),
        events: Iterable[str] = (),
        name: str = "machine",
    ) -> "Machine":
        """A machine with the given moves.

        Args:
            moves: state -> event -> (state after, reward). These are all the states.
            start: the initial state.
            final: states in which the task is done.
            forbidden: states that are never reached.
            events: further events that it hears.
            name: shown in reports.

        Raises:
            OptionError: a state is unknown, or a final state has moves.

        >>> machine = Machine.of({"on": {"a": ("off", 1.0)}, "off": {}}, start="on", final=["off"])
        >>> machine.run(["b", "a"])
        ('off', 1.0)
        """
        states = tuple(moves)
        place = {state: number for number, state in enumerate(states)}
        for what, names in (("start", (start,)), ("final", final), ("forbidden", forbidden)):
            for state in names:
                _check_known(f"{name}: {what}", state, place)
        heard = dict.fromkeys(event for row in moves.values() for event in row)
        heard |= dict.fromkeys(events)
        column = {event: number for number, event in enumerate(heard)}
        after = np.full((len(states), len(column)), NO_MOVE, np.int32)
        reward = np.zeros(after.shape)
        for state, row in moves.items():
            for event, (to, worth) in row.items():
                _check_known(f"{name}: move {state} on {event}", to, place)
                after[place[state], column[event]] = place[to]
                reward[place[state], column[event]] = worth
        ends, never = np.zeros((2, len(states)), bool)
        ends[[place[state] for state in final]] = True
        never[[place[state] for state in forbidden]] = True
        for state in np.flatnonzero(ends & (after != NO_MOVE).any(1)):
            raise OptionError(
                f"{name}: final state {states[state]} has moves; the task ends there, remove them"
            )
        return cls(name, states, tuple(column), place[start], after, reward, ends, never)

    @property
    def total(self) -> NDArray[np.int32]:
        """[S, E] the state after each event; the same state if there is no move."""
        here = np.arange(len(self.states), dtype=np.int32)[:, None]
        return np.where(self.next == NO_MOVE, here, self.next)

    def over(self, events: Sequence[str]) -> NDArray[np.int32]:
        """[S, F] the state after each of the given events, or `NO_MOVE` for those not heard."""
        column = {event: number for number, event in enumerate(self.events)}
        none = np.full(len(self.states), NO_MOVE, np.int32)
        rows = [self.next[:, column[e]] if e in column else none for e in events]
        return np.stack(rows, 1) if rows else np.zeros((len(self.states), 0), np.int32)

    def step(self, state: int, event: str) -> tuple[int, float]:
        """The state after an event, and the reward."""
        if event not in self.events:
            return state, 0.0
        column = self.events.index(event)
        after = int(self.next[state, column])
        return (state, 0.0) if after == NO_MOVE else (after, float(self.reward[state, column]))

    def run(self, trace: Iterable[str]) -> tuple[str, float]:
        """The name of the state after a trace of events, and the sum of rewards."""
        state, total = self.start, 0.0
        for event in trace:
            state, reward = self.step(state, event)
            total += reward
        return self.states[state], total

    def replace(self, **fields: Any) -> "Machine":
        """The same machine with other fields."""
        return dataclasses.replace(self, **fields)


def _check_known(what: str, state: str, known: Mapping[str, int]) -> None:
    if state not in known:
        listed = ", ".join(list(known)[:8]) + (", …" if len(known) > 8 else "")
        hint = did_you_mean(state, known)
        raise OptionError(f"{what}: unknown state {state!r:.60}; {hint}states are {listed}")
