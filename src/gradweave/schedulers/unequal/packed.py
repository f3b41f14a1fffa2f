"""Trees and shares from a linear program, ordered by event simulation."""

import dataclasses
import math
from collections.abc import Iterable, Iterator
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gradweave import clock
from gradweave.errors import OptionError
from gradweave.schedule.ready import ready_times
from gradweave.schedule.schedule import Collective, Schedule
from gradweave.schedulers.scheduler import Scheduler, Traits, check_counts
from gradweave.schedulers.unequal.cuts import Cut, cuts_of, equal_cut, periodic_cut, schedule_of
from gradweave.schedulers.unequal.parts import Parts, Stragglers, parts_of
from gradweave.schedulers.unequal.paths import may_leave_residual
from gradweave.schedulers.unequal.periodic_schedule import periodic_slots
from gradweave.schedulers.unequal.tuning import TUNING
from gradweave.simulate.seconds import seconds
from gradweave.stop import UNLIMITED, Stop
from gradweave.topology.topology import Topology


@dataclasses.dataclass(frozen=True)
class Packed(Scheduler):
    """Parts of any size: each server roots what suits the network, over several trees at once.

    A linear program packs trees to and from the roots into the links' bandwidths
    (`pack_trees`), so that large gradients take the least time that any trees can. Each tree's part
    of the gradient is cut into pieces, which follow each other through both stages at once. Shares
    of pieces and roots come out of it: a slow server roots little.

    Behind switches, where a transfer to a slow port leaves residual bandwidth of a fast one, trees
    are also packed with that counted; and transfers are tried both as soon as their links get free
    and in a periodic schedule, in which all servers send and receive at one time.
    """

    name: ClassVar[str] = "packed"

    gradient_bytes: float = math.inf
    """Size of the gradient for which it is fast; for one beyond all measure, latencies do not
    count."""
    pieces: int | None = None
    """About how many the gradient is cut into; if not given, as many as take least time."""
    ready_at_s: tuple[float, ...] = dataclasses.field(default=(), repr=False)
    """Seconds at which each server's own gradient is ready, in order of id: who is late contributes
    last. All from 0 on, if not given; only with `gradient_bytes`."""

    def __post_init__(self) -> None:
        if not self.gradient_bytes > 0:
            raise OptionError(
                f"packed: gradient_bytes: expected more than 0, got {self.gradient_bytes:g}"
            )
        check_counts(self, "pieces")
        if self.ready_at_s and math.isinf(self.gradient_bytes):
            raise OptionError("packed: ready_at_s: expected gradient_bytes, too")

    @property
    def traits(self) -> Traits:
        """What it is like, with these options."""
        return Traits(
            own_pieces=True,
            takes_size=math.isinf(self.gradient_bytes),
            takes_ready_times=not self.ready_at_s,
        )

    def make(self, topology: Topology, collective: Collective, seed: int, stop: Stop) -> Schedule:
        """Makes the schedule; `schedule` verifies it."""
        search = _Search(
            topology, collective, self.gradient_bytes, stop, waiting=any(self.ready_at_s)
        )
        packings = search.in_time(self._packings(topology, collective, stop))
        if self.pieces is None and len(packings) > TUNING.max_packings:
            packings = search.best_of(packings)
        for parts in packings:
            search.cut(parts, self._counts(parts))
            if stop.reached():
                break
        if self.pieces is None and math.isfinite(self.gradient_bytes):
            search.cut_between()
        return search.best.schedule(topology, collective)

    def _packings(self, topology: Topology, collective: Collective, stop: Stop) -> Iterator[Parts]:
        """The parts to cut: where servers are late, also those of fewer roots."""
        ready = tuple(ready_times(topology, self.ready_at_s or None).tolist())
        if any(ready):
            for spread in (True, False) if collective == "all_reduce" else (True,):
                stragglers = Stragglers(self.gradient_bytes, ready, spread)
                yield parts_of(topology, collective, stragglers=stragglers, stop=stop)
            return
        for residual in TUNING.residual_weights if may_leave_residual(topology) else (0.0,):
            yield parts_of(
                topology,
                collective,
                residual=residual,
                gradient_bytes=self.gradient_bytes,
                stop=stop,
            )

    def _counts(self, parts: Parts) -> list[int]:
        """Numbers of pieces to try, in this order."""
        if self.pieces is not None:
            return [self.pieces]
        if math.isinf(self.gradient_bytes):
            return [TUNING.pieces_per_server * parts.topology.num_servers]
        most = TUNING.max_transfers // parts.trees.hop.shape[1]
        if any(self.ready_at_s):
            most = min(most, TUNING.max_waiting_pieces)
        return [1 << k for k in range(20) if k == 0 or 1 << k <= most]


@dataclasses.dataclass(frozen=True, eq=False)
class _Candidate:
    """Pieces with the times or slots at which their transfers start."""

    parts: Parts
    cut: Cut
    start: NDArray
    """[P·M]"""
    seconds: float
    pieces: int
    """About how many were asked for."""

    def schedule(self, topology: Topology, collective: Collective) -> Schedule:
        return schedule_of(topology, collective, self.parts, self.cut, self.start)


class _Search:
    """Numbers of pieces and orders of transfers that have been tried, and the best of them."""

    def __init__(
        self,
        topology: Topology,
        collective: Collective,
        gradient_bytes: float,
        stop: Stop,
        *,
        waiting: bool,
    ) -> None:
        self._topology, self._waiting = topology, waiting  # for servers that are late
        self._collective: Collective = collective
        self._gradient_bytes, self._stop = gradient_bytes, stop
        self._best: _Candidate | None = None
        switched = len(topology.switches) > 0
        self._periodic = switched and math.isfinite(gradient_bytes) and not waiting

    @property
    def best(self) -> _Candidate:
        assert self._best is not None
        return self._best

    def in_time(self, packings: Iterable[Parts]) -> list[Parts]:
        """The packings that are there in time, at least one."""
        there = []
        for parts in packings:
            there.append(parts)
            if self._stop.reached():
                break
        return there

    def best_of(self, packings: list[Parts]) -> list[Parts]:
        """The packings that are fastest in a few pieces, `TUNING.max_packings` of them, best first.

        Those that take the same time are the same, and one of them is enough.
        """
        taken: dict[float, Parts] = {}
        for parts in packings:
            if self._best is None or not self._stop.reached():
                taken.setdefault(self._try(parts, TUNING.probe_pieces, math.inf), parts)
        return [taken[fastest] for fastest in sorted(taken)[: TUNING.max_packings]]

    def cut(self, parts: Parts, counts: list[int]) -> None:
        """Cuts parts finer and finer for as long as that is worth it.

        Args:
            parts: with their trees.
            counts: numbers of pieces to try, in this order.
        """
        fastest, patience = math.inf, TUNING.patience
        known = math.inf if self._best is None or self._waiting else self._best.seconds
        for pieces in counts:
            before, begun = fastest, clock.now()
            fastest = min(
                fastest, self._try(parts, pieces, min(fastest, TUNING.abandon_factor * known))
            )
            patience = TUNING.patience if fastest < before * (1 - TUNING.min_gain) else patience - 1
            # With few pieces for each tree, more of them also bring shares nearer to the best.
            enough = patience <= 0 and pieces > TUNING.pieces_per_tree * len(parts.root)
            next_s = 2 * (clock.now() - begun)  # the next has twice as many pieces
            if enough or next_s > self._stop.seconds_left:
                break

    def cut_between(self) -> None:
        """Tries numbers of pieces between those whose half or double was tried."""
        best = self.best
        for factor in TUNING.between:
            if not self._stop.reached():
                self.cut(best.parts, [round(best.pieces * factor)])

    def _try(self, parts: Parts, pieces: int, until: float) -> float:
        """Seconds of the fastest of these pieces' schedules, and keeps it if it is the best.

        Args:
            parts: with their trees.
            pieces: about how many they are cut into.
            until: seconds beyond which a schedule is given up.
        """
        fastest = math.inf
        for candidate in self._candidates(parts, pieces, until):
            fastest = min(fastest, candidate.seconds)
            if self._best is None or candidate.seconds < self._best.seconds:
                self._best = candidate
            if self._stop.reached():
                break
        return fastest

    def _candidates(self, parts: Parts, pieces: int, until: float) -> Iterator[_Candidate]:
        periodic = periodic_cut(parts, pieces) if self._periodic else None
        if periodic is not None:  # first, since it is quick, and ends others that take longer
            candidate = self._in_periods(parts, periodic, pieces)
            until = min(until, candidate.seconds)
            yield candidate
        for cut in cuts_of(parts, pieces):
            for under_way in self._under_way(parts, cut):
                start, taken = self._simulated(parts, cut, under_way, until)
                until = min(until, taken)
                yield _Candidate(parts, cut, start, taken, pieces)

    def cut_equally(self, parts: Parts, pieces: int) -> None:
        """Cuts parts into exactly so many pieces of one size."""
        candidates, until = [], math.inf
        for periods in self._numbers_of_periods(parts, pieces):
            cut = equal_cut(parts, pieces, periods)
            candidates.append(self._in_periods(parts, cut, pieces))
            until = min(until, candidates[-1].seconds)
        cut = equal_cut(parts, pieces)
        for under_way in {min(each, pieces) for each in self._under_way(parts, cut)}:
            start, taken = self._simulated(parts, cut, under_way, until)
            candidates.append(_Candidate(parts, cut, start, taken, pieces))
            until = min(until, taken)
        self._best = min(candidates, key=lambda candidate: candidate.seconds)

    def _numbers_of_periods(self, parts: Parts, pieces: int) -> list[int]:
        """Divisors of the number of pieces with which a period has at most two for each part."""
        if not self._periodic:
            return []
        step = self._topology.num_servers if parts.fixed_roots else 1
        lengths = range(step, min(2 * len(parts.root), pieces // 2) + 1, step)
        return [pieces // length for length in lengths if pieces % length == 0][
            -TUNING.equal_periods :
        ]

    def _under_way(self, parts: Parts, cut: Cut) -> list[int]:
        """Numbers of pieces under way at one time to try.

        No piece ends before all servers are ready: where some are late, as many as there are.
        """
        if self._waiting:
            return [len(cut.part)]
        return [window * max(len(parts.root), TUNING.min_window_parts) for window in TUNING.windows]

    def _simulated(
        self, parts: Parts, cut: Cut, under_way: int, until: float
    ) -> tuple[NDArray[np.float64], float]:
        from gradweave.schedulers.unequal.event_simulation_kernel import simulate

        wires, gradient_bytes = parts.wires, self._gradient_bytes
        if math.isinf(gradient_bytes):
            nothing = np.zeros(len(wires.rate))
            wires = wires._replace(overhead=nothing, latency=nothing)
            gradient_bytes = float(wires.bandwidth.max())
        sizes = cut.share * gradient_bytes
        return simulate(parts.trees, wires, cut.part, sizes, TUNING.order_penalty, under_way, until)

    def _in_periods(self, parts: Parts, cut: Cut, pieces: int) -> _Candidate:
        slot = periodic_slots(parts, cut)
        schedule = schedule_of(self._topology, self._collective, parts, cut, slot)
        taken = seconds(schedule, self._gradient_bytes, model="events")
        return _Candidate(parts, cut, slot, taken, pieces)


def schedule_with(
    topology: Topology,
    collective: Collective,
    gradient_bytes: float,
    parts: Parts,
    counts: list[int],
    stop: Stop,
    *,
    waiting: bool = False,
) -> Schedule:
    """The fastest schedule of some parts.

    Args:
        topology: the network.
        collective: a stage, or both.
        gradient_bytes: size of the whole gradient.
        parts: with their trees, on that network.
        counts: numbers of pieces to try, in this order, for as long as more are worth it.
        stop: after which no further order is tried, once there is one.
        waiting: whether servers are late, as `parts` was told.
    """
    search = _Search(topology, collective, gradient_bytes, stop, waiting=waiting)
    search.cut(parts, counts)
    return search.best.schedule(topology, collective)


def schedule_in_equal_pieces(
    topology: Topology, collective: Collective, gradient_bytes: float, parts: Parts, pieces: int
) -> Schedule:
    """The fastest schedule of some parts in exactly so many pieces of one size.

    Args:
        topology: the network.
        collective: a stage, or both.
        gradient_bytes: size of the whole gradient.
        parts: with their trees, on that network.
        pieces: how many; of a stage alone, a multiple of the number of servers.
    """
    search = _Search(topology, collective, gradient_bytes, UNLIMITED, waiting=False)
    search.cut_equally(parts, pieces)
    return search.best.schedule(topology, collective).replace(shares=None)
