"""Improves a schedule until it is near the bound or time is up."""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradweave.bounds.classes import SUMS_MEET_ANYWHERE
from gradweave.bounds.of_schedule import liberties_of
from gradweave.schedulers.improving.known import Known
from gradweave.schedulers.improving.sizes import Played, resized
from gradweave.schedulers.improving.tuning import TUNING
from gradweave.schedules.ready import ReadyAt, earliest_starts
from gradweave.schedules.schedule import Schedule
from gradweave.simulator.seconds import first_links, overheads, play, rates
from gradweave.simulator.traffic import piece_bytes
from gradweave.stop import Stop


def improved(
    schedule: Schedule,
    gradient_bytes: float | None,
    *,
    seed: int,
    stop: Stop,
    ready_at_s: ReadyAt | None = None,
    turns: int | None = None,
) -> Iterator[Schedule]:
    """Ever faster versions of a schedule, in the event model.

    In turns, the sizes of pieces are chosen for the order of transfers (`resized`), and the order
    for the sizes (`_Order`). A turn begins where the last one ended, even if that was slower, and
    returns to the best after some turns without a gain. Pieces of hardly any bytes are dropped.

    Args:
        schedule: a valid schedule.
        gradient_bytes: size of the whole gradient; not needed for a demand.
        seed: the seed of every random choice.
        stop: when to end.
        ready_at_s: [N] when each server is ready; see `gradweave.simulator.seconds`.
        turns: most turns; until the stop is reached, if not given.

    Yields:
        Each schedule that is faster than all before it. Nothing, if the schedule's pieces do not
        each have one root at which they are summed.
    """
    if SUMS_MEET_ANYWHERE in liberties_of(schedule):
        return
    search = Steps(gradient_bytes, ready_at_s, np.random.default_rng(seed), stop)
    state = best = search.read(schedule)
    idle = 0
    for _ in itertools.count() if turns is None else range(turns):
        known_s = best.seconds
        for step in (search.with_other_sizes, search.in_other_order):
            state = step(state)
            if state.seconds < best.seconds:
                best = state
                yield best.schedule
            if stop.reached(best.seconds):
                return
        idle = 0 if best.seconds < known_s * (1 - TUNING.least_gain) else idle + 1
        if idle and idle % TUNING.return_after == 0:
            state = best


class _State(NamedTuple):
    """A schedule with its transfers and sizes."""

    schedule: Schedule
    known: Known
    size: NDArray[np.float64]
    """[P] bytes of each piece."""
    seconds: float


class Steps:
    """The steps of the search."""

    def __init__(
        self,
        gradient_bytes: float | None,
        ready_at_s: ReadyAt | None,
        rng: np.random.Generator,
        stop: Stop,
    ) -> None:
        self._gradient_bytes, self._ready_at_s = gradient_bytes, ready_at_s
        self._rng, self._stop = rng, stop

    def read(self, schedule: Schedule) -> _State:
        """A schedule, and its time."""
        size = piece_bytes(schedule, self._gradient_bytes)
        seconds = _Play(schedule, self._ready_at_s)(size).seconds
        return _State(schedule, Known.of(schedule), size, seconds)

    def with_other_sizes(self, state: _State) -> _State:
        """The same transfers in the same order, with sizes that suit it."""
        play = _Play(state.schedule, self._ready_at_s)
        size, _ = resized(state.size, state.known.group, play, self._stop)
        known, size = _without_tiny(state.known, size)
        # In the order of rows: of two writes to a piece, the later may start sooner.
        return self.read(known.schedule(known.row, size))

    def in_other_order(self, state: _State) -> _State:
        """The same transfers in another order; the same state if some transfers must wait."""
        if earliest_starts(state.schedule, self._ready_at_s).any():
            return state
        start = _Play(state.schedule, self._ready_at_s).start_of(state.size)
        order = _Order(state.known, state.size)
        start, _ = order.search(start, self._rng, self._stop)
        return self.read(state.known.schedule(start, state.size))


class _Play:
    """Plays a schedule's transfers in its order, with pieces of other sizes."""

    def __init__(self, schedule: Schedule, ready_at_s: ReadyAt | None) -> None:
        self._schedule = schedule
        self._rate, self._overhead_s = rates(schedule), overheads(schedule)
        self._earliest_s = earliest_starts(schedule, ready_at_s)
        self._first = first_links(schedule)
        self._piece, self._source, self._target = (
            column.astype(np.int64) for column in (schedule.piece, schedule.source, schedule.target)
        )
        # Transfers piece by piece, as in `Known`.
        self._order = np.lexsort((schedule.round, schedule.piece))

    def start_of(self, size: NDArray[np.float64]) -> NDArray[np.float64]:
        """[X] start of each transfer, piece by piece."""
        return self._times(size)[0][self._order]

    def _times(self, size: NDArray[np.float64]) -> tuple[NDArray, NDArray, NDArray]:
        hold_s = self._overhead_s + size[self._piece] / self._rate
        start, end = play(self._schedule, self._rate, hold_s, self._earliest_s)
        return start, start + hold_s, end

    def __call__(self, size: NDArray[np.float64]) -> Played:
        from gradweave.schedulers.improving.transfers_kernel import chains

        start, free, end = self._times(size)
        by_end = np.argsort(end, kind="stable")
        links, transfer = self._schedule.route_links
        place = np.empty(len(end), np.int64)
        place[by_end] = np.arange(len(end))
        last = np.full(len(self._schedule.topology.source), -1)
        np.maximum.at(last, links, place[transfer])
        ends = np.unique(by_end[last[last >= 0]])
        seconds = float(end.max())
        ends = ends[end[ends] >= TUNING.near_end * seconds]
        per_byte = chains(
            ends,
            start,
            free,
            end,
            np.argsort(free, kind="stable"),
            by_end,
            self._piece,
            self._source,
            self._target,
            1 / self._rate,
            links,
            self._first,
            self._schedule.pieces,
        )
        return Played(seconds, per_byte, end[ends])


class _Order:
    """Searches the order of transfers for pieces of given sizes.

    Each step disturbs the times at which transfers started, plays the transfers backwards, the last
    to end first, and forwards again, the last to start backwards first. The result is kept if it is
    not slower.
    """

    def __init__(self, known: Known, size: NDArray[np.float64]) -> None:
        self._known, self._size = known, size
        self._forwards, self._backwards = known.trees(), known.trees(backwards=True)
        self._part = np.arange(known.pieces)
        self._hold_s = known.hold_s(size)

    def search(
        self, start: NDArray[np.float64], rng: np.random.Generator, stop: Stop
    ) -> tuple[NDArray[np.float64], float]:
        """[X] start times of the fastest order found, and its seconds."""
        best, best_s = self._played(start)
        now, now_s, failures, step = best, best_s, 0, 0
        while failures < TUNING.failures and not stop.reached():
            tried = now if not step else now + self._disturbance(now, now_s, rng)
            found, seconds = self._both_ways(tried)
            step += 1
            if seconds <= now_s * (1 + TUNING.worse):
                now, now_s = found, seconds
            failures = 0 if seconds < best_s * (1 - TUNING.least_gain) else failures + 1
            if seconds < best_s:
                best, best_s = found, seconds
        return best, best_s

    def _disturbance(
        self, start: NDArray[np.float64], seconds: float, rng: np.random.Generator
    ) -> NDArray[np.float64]:
        """[X] random seconds: for all transfers, for pieces, at some time, or for few pieces."""
        known, count = self._known, len(start)
        spread = seconds * 10 ** rng.uniform(*TUNING.spread)
        kind = int(rng.integers(4))
        if kind == 0:
            return rng.normal(size=count) * spread
        if kind == 1:
            return rng.normal(size=known.pieces)[known.piece] * spread
        if kind == 2:
            width = seconds * rng.uniform(*TUNING.width)
            near = abs(start - rng.uniform(0, seconds)) < width
            return np.where(near, rng.normal(size=count) * spread, 0.0)
        few = rng.random(known.pieces) < TUNING.few / known.pieces
        return np.where(few, TUNING.far * rng.normal(size=known.pieces), 0.0)[known.piece] * spread

    def _both_ways(self, start: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
        back, _ = self._dispatched(self._backwards, -(start + self._hold_s))
        return self._dispatched(self._forwards, -(back + self._hold_s))

    def _played(self, start: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
        return self._dispatched(self._forwards, start)

    def _dispatched(self, trees, urgency: NDArray) -> tuple[NDArray[np.float64], float]:
        from gradweave.schedulers.ordering.rank_kernel import dispatch

        place = self._known.place
        order = place[np.argsort(urgency, kind="stable")]
        start, seconds, _ = dispatch(trees, self._known.wires, self._part, self._size, order)
        return start[place], seconds


def _without_tiny(known: Known, size: NDArray[np.float64]) -> tuple[Known, NDArray[np.float64]]:
    """Without pieces of hardly any bytes, which the others of their group take over."""
    groups = int(known.group.max()) + 1
    whole = np.bincount(known.group, size, groups)
    number = np.bincount(known.group, minlength=groups)
    tiny = size < TUNING.tiny * (whole / np.maximum(number, 1))[known.group]
    if not tiny.any():
        return known, size
    kept = np.bincount(known.group, np.where(tiny, 0.0, size), groups)
    size = (size * np.divide(whole, kept, out=np.ones(groups), where=kept > 0)[known.group])[~tiny]
    return known.without(tiny), size
