"""Improves a schedule until it is near the bound or time is up."""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradweave.bounds.classes import SUMS_MEET_ANYWHERE
from gradweave.bounds.of_schedule import liberties_of
from gradweave.common.stop import Stop
from gradweave.schedulers.improving.sizes import CriticalChains, resized
from gradweave.schedulers.improving.transfer_graph import TransferGraph
from gradweave.schedulers.improving.tuning import TUNING
from gradweave.schedules.ready import ReadyAt, earliest_starts
from gradweave.schedules.schedule import Schedule
from gradweave.simulator.seconds import first_links, overheads, rates, transfer_times
from gradweave.simulator.traffic import piece_bytes


def sums_at_roots(schedule: Schedule) -> bool:
    """Whether each piece is summed at one root: exchanged sums are not carried by trees."""
    return SUMS_MEET_ANYWHERE not in liberties_of(schedule)


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

    Each turn chooses the sizes of pieces for the order of transfers (`resized`), then the order for
    these sizes (`_OrderSearch`). It begins where the last turn ended, even if that was slower;
    after some turns without a gain it begins at the best schedule. Pieces with hardly any bytes are
    dropped.

    From the third turn on, each ends with larger steps, until one gains: some of the smallest
    pieces are left out of the best schedule, and sizes and an order for the others chosen in a few
    rough turns. Messages that are saved leave their overhead to bytes.

    Args:
        schedule: a valid schedule.
        gradient_bytes: size of the whole gradient; not needed for a demand.
        seed: the seed of every random choice.
        stop: when to end.
        ready_at_s: [N] when each server is ready; see `gradweave.simulator.seconds`.
        turns: most turns; until the stop is reached, if not given.

    Yields:
        Each schedule that is faster than all before it; none without `sums_at_roots`.
    """
    if not sums_at_roots(schedule):
        return
    search = Steps(gradient_bytes, ready_at_s, np.random.default_rng(seed), stop)
    state = best = search.read(schedule)
    idle = 0
    for turn in itertools.count() if turns is None else range(turns):
        before_s = best.seconds
        for step in (search.with_other_sizes, search.in_other_order):
            state = step(state)
            if state.seconds < best.seconds:
                best = state
                yield best.graph.origin
            if stop.reached(best.seconds):
                return
        idle = 0 if best.seconds < before_s * (1 - TUNING.least_gain) else idle + 1
        if idle and idle % TUNING.return_after == 0:
            state = best
        for _ in range(TUNING.attempts if turn >= TUNING.turns_before else 0):
            fewer = search.with_fewer_pieces(best)
            gained = fewer.seconds < best.seconds
            if gained:
                state, best, idle = fewer, fewer, 0
                yield best.graph.origin
            if stop.reached(best.seconds):
                return
            if gained:
                break


class _State(NamedTuple):
    """A schedule as a graph, with its sizes and its time."""

    graph: TransferGraph
    replay: "_Replay"
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
        replay, size = (
            _Replay(schedule, self._ready_at_s),
            piece_bytes(schedule, self._gradient_bytes),
        )
        _, _, end = replay.times(size)
        return _State(TransferGraph.of(schedule), replay, size, float(end.max()))

    def with_other_sizes(self, state: _State, rough: bool = False) -> _State:
        """The same transfers in the same order, with sizes that suit it."""
        reach = TUNING.rough_reach if rough else TUNING.least_reach
        size, _ = resized(state.size, state.graph.group, state.replay.chains, self._stop, reach)
        graph, size = _without_tiny(state.graph, size)
        # In the order of rows: of two writes to a piece, the later may start sooner.
        return self.read(graph.reordered(graph.row, size))

    def in_other_order(self, state: _State, rough: bool = False) -> _State:
        """The same transfers in another order; the same state if some transfers must wait."""
        if state.replay.earliest_s.any():
            return state
        start, _, _ = state.replay.times(state.size)
        order = _OrderSearch(state.graph, state.size)
        failures = TUNING.rough_failures if rough else TUNING.failures
        start = order.search(start[state.graph.row], self._rng, self._stop, failures)
        return self.read(state.graph.reordered(start, state.size))

    def with_fewer_pieces(self, state: _State) -> _State:
        """The schedule without some small pieces, or the same schedule if that takes longer."""
        size, best = state.size, state
        # The square makes small numbers likelier than large ones.
        most = TUNING.fewer * len(size) * self._rng.random() ** 2
        left_out = np.zeros(len(size), np.bool_)
        left_out[self.leave_first(state)[: max(1, int(most))]] = True
        graph, size = _without(state.graph, size, left_out)
        if len(size) == len(best.size):
            return best
        state = self.read(graph.reordered(graph.row, size))
        for promising in TUNING.promising:
            state = self.in_other_order(self.with_other_sizes(state, rough=True), rough=True)
            best = min(best, state, key=lambda one: one.seconds)
            if state.seconds > promising * best.seconds or self._stop.reached(best.seconds):
                break
        return best

    def leave_first(self, state: _State) -> NDArray[np.int64]:
        """[P] pieces in the order in which they are left out: by size times a random factor."""
        jitter = self._rng.uniform(1 - TUNING.jitter, 1 + TUNING.jitter, len(state.size))
        return np.argsort(state.size * jitter, kind="stable")


class _Replay:
    """Simulates a schedule's transfers in its order, with pieces of other sizes."""

    def __init__(self, schedule: Schedule, ready_at_s: ReadyAt | None) -> None:
        self._schedule = schedule
        self._rate, self._overhead_s = rates(schedule), overheads(schedule)
        self.earliest_s = earliest_starts(schedule, ready_at_s)
        self._first = first_links(schedule)
        self._piece, self._source, self._target = (
            column.astype(np.int64) for column in (schedule.piece, schedule.source, schedule.target)
        )

    def times(self, size: NDArray[np.float64]) -> tuple[NDArray, NDArray, NDArray]:
        """[T] when each transfer starts, when it frees its links, and when it arrives.

        Args:
            size: [P] bytes of each piece.
        """
        hold_s = self._overhead_s + size[self._piece] / self._rate
        start, end = transfer_times(self._schedule, self._rate, hold_s, self.earliest_s)
        return start, start + hold_s, end

    def chains(self, size: NDArray[np.float64]) -> CriticalChains:
        """The chains that lead to the last transfer on each link, except for early ones.

        Args:
            size: [P] bytes of each piece.
        """
        from gradweave.schedulers.improving.transfers_kernel import chains

        start, free, end = self.times(size)
        by_end = np.argsort(end, kind="stable")
        links, transfer = self._schedule.route_links
        last = np.full(len(self._schedule.topology.source), -1)
        np.maximum.at(last, links, np.argsort(by_end)[transfer])
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
        return CriticalChains(seconds, per_byte, end[ends])


class _OrderSearch:
    """Searches the order of transfers for pieces of given sizes.

    Each step disturbs the start times at random, then improves their order both ways, see
    `ListScheduler`. The next step begins at the result if that is not slower by more than
    `TUNING.worse`.

    Source: Dueck and Scheuer, "Threshold accepting", 1990, with a constant threshold.
    """

    def __init__(self, graph: TransferGraph, size: NDArray[np.float64]) -> None:
        from gradweave.schedulers.ordering.list_scheduling import ListScheduler

        self._graph, one = graph, np.zeros(1, np.int64)
        self._scheduler = ListScheduler(graph.trees(), graph.wires, one, graph.hold_s(size))

    def search(
        self, start: NDArray[np.float64], rng: np.random.Generator, stop: Stop, most_failures: int
    ) -> NDArray[np.float64]:
        """[X] start times in the fastest order found, until some steps in a row gain nothing."""
        best, best_s, _ = current, current_s, _ = self._scheduler.dispatched(start)
        failures = step = 0
        while failures < most_failures and not stop.reached():
            disturbed = current
            if step:
                disturbed = current + self._disturbance(current, current_s, rng)
            start, seconds = self._scheduler.both_ways(disturbed)
            step += 1
            if seconds <= current_s * (1 + TUNING.worse):
                current, current_s = start, seconds
            failures = 0 if seconds < best_s * (1 - TUNING.least_gain) else failures + 1
            if seconds < best_s:
                best, best_s = start, seconds
        return best

    def _disturbance(
        self, start: NDArray[np.float64], seconds: float, rng: np.random.Generator
    ) -> NDArray[np.float64]:
        """[X] random seconds: for all transfers, for pieces, at some time, or for few pieces."""
        graph, count = self._graph, len(start)
        spread = seconds * 10 ** rng.uniform(*TUNING.spread)
        kind = int(rng.integers(4))
        if kind == 0:
            return rng.normal(size=count) * spread
        if kind == 1:
            return rng.normal(size=graph.pieces)[graph.piece] * spread
        if kind == 2:
            width = seconds * rng.uniform(*TUNING.width)
            near = abs(start - rng.uniform(0, seconds)) < width
            return np.where(near, rng.normal(size=count) * spread, 0.0)
        few = rng.random(graph.pieces) < TUNING.few / graph.pieces
        return np.where(few, TUNING.far * rng.normal(size=graph.pieces), 0.0)[graph.piece] * spread


def _without_tiny(
    graph: TransferGraph, size: NDArray[np.float64]
) -> tuple[TransferGraph, NDArray[np.float64]]:
    """Without pieces of hardly any bytes."""
    number = np.bincount(graph.group)
    mean = np.bincount(graph.group, size) / np.maximum(number, 1)
    return _without(graph, size, size < TUNING.tiny * mean[graph.group])


def _without(
    graph: TransferGraph, size: NDArray[np.float64], left_out: NDArray[np.bool_]
) -> tuple[TransferGraph, NDArray[np.float64]]:
    """Without some pieces, whose bytes the others of their group take over.

    Args:
        graph: the transfers.
        size: [P] bytes of each piece.
        left_out: [P] the pieces to leave out; a group that would have none left keeps its own.
    """
    kept = np.bincount(graph.group, np.where(left_out, 0.0, size))
    left_out = left_out & (kept[graph.group] > 0)
    if not left_out.any():
        return graph, size
    whole = np.bincount(graph.group, size)
    scale = np.divide(whole, kept, out=np.ones(len(whole)), where=kept > 0)
    return graph.without(left_out), (size * scale[graph.group])[~left_out]
