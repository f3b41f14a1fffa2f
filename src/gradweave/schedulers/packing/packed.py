"""Trees and shares from a linear program, ordered by list scheduling."""

import dataclasses
import math
from collections.abc import Iterable, Iterator
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gradweave.common.stop import UNLIMITED, Stop
from gradweave.errors import OptionError
from gradweave.schedulers.ordering.cuts import (
    Cut,
    cuts_of,
    equal_cut,
    parts_schedule,
    periodic_cut,
    while_it_pays,
)
from gradweave.schedulers.ordering.periodic_schedule import periodic_slots
from gradweave.schedulers.packing.parts import Parts, Stragglers, parts_of
from gradweave.schedulers.packing.paths import may_leave_residual
from gradweave.schedulers.packing.tuning import TUNING
from gradweave.schedulers.scheduler import Scheduler, Traits, check_counts
from gradweave.schedules.ready import ready_times
from gradweave.schedules.schedule import Collective, Schedule
from gradweave.simulator.seconds import seconds
from gradweave.topology.topology import Topology


@dataclasses.dataclass(frozen=True)
class Packed(Scheduler):
    """Parts of any size: each server roots the share that suits the network, over several trees.

    A linear program packs trees to and from the roots into the links' bandwidths (`pack_trees`), so
    that large gradients take the minimum time of any trees. Each tree's part of the gradient is cut
    into pieces, which follow each other through both stages in a pipeline. The program determines
    the shares of trees and roots: a slow server roots little.

    Behind switches, where a transfer to a slow port leaves residual bandwidth on a fast link, trees
    are also packed with that taken into account. Transfers are tried both in an order in which they
    start as soon as their links are free, and in a periodic schedule, in which all servers send and
    receive at the same time.
    """

    name: ClassVar[str] = "packed"

    gradient_bytes: float = math.inf
    """Gradient size to plan for; if infinite, latencies do not count."""
    pieces: int | None = None
    """Approximate number of pieces of the gradient; by default the fastest number found."""
    ready_at_s: tuple[float, ...] = dataclasses.field(default=(), repr=False)
    """Seconds at which each server's gradient is ready, in order of id: late servers contribute
    last. 0 for all, if not given; only with `gradient_bytes`."""

    def __post_init__(self) -> None:
        if not self.gradient_bytes > 0:
            raise OptionError(
                f"packed: gradient_bytes: expected more than 0, got {self.gradient_bytes:g}"
            )
        check_counts(self, "pieces")
        if self.ready_at_s and math.isinf(self.gradient_bytes):
            raise OptionError("packed: ready_at_s: expected gradient_bytes as well")

    @property
    def traits(self) -> Traits:
        """The strategy's traits with these options."""
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
        return search.best.schedule(collective)

    def _packings(self, topology: Topology, collective: Collective, stop: Stop) -> Iterator[Parts]:
        """The parts to cut; if servers are late, also parts with fewer roots."""
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
    """Pieces with the start times or slots of their transfers."""

    parts: Parts
    cut: Cut
    start: NDArray
    """[P·M] start time or slot of each transfer."""
    seconds: float
    pieces: int
    """Approximate number of pieces requested."""

    def schedule(self, collective: Collective) -> Schedule:
        return parts_schedule(self.parts, collective, self.cut, self.start)


class _Search:
    """A search over numbers of pieces and orders of transfers, and the best result so far."""

    def __init__(
        self,
        topology: Topology,
        collective: Collective,
        gradient_bytes: float,
        stop: Stop,
        *,
        waiting: bool,
    ) -> None:
        self._topology, self._waiting = topology, waiting  # whether servers are late
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
        """The packings found in time, at least one."""
        there = []
        for parts in packings:
            there.append(parts)
            if self._stop.reached():
                break
        return there

    def best_of(self, packings: list[Parts]) -> list[Parts]:
        """The `TUNING.max_packings` packings that are fastest in a few pieces, best first.

        Packings that take the same time are considered equal, and one of them is kept.
        """
        taken: dict[float, Parts] = {}
        for parts in packings:
            if self._best is None or not self._stop.reached():
                taken.setdefault(self._try(parts, TUNING.probe_pieces, math.inf), parts)
        return [taken[fastest] for fastest in sorted(taken)[: TUNING.max_packings]]

    def cut(self, parts: Parts, counts: list[int]) -> None:
        """Cuts parts finer and finer, for as long as that pays.

        Args:
            parts: the parts with their trees.
            counts: numbers of pieces to try, in this order.
        """
        # If servers are late, there are only two packings, and both are cut to the end.
        known = math.inf if self._best is None or self._waiting else self._best.seconds

        def seconds_of(pieces: int, fastest: float) -> float:
            return self._try(parts, pieces, min(fastest, TUNING.abandon_factor * known))

        # With few pieces per tree, more of them also bring shares nearer to the optimum.
        least = TUNING.pieces_per_tree * len(parts.root)
        while_it_pays(counts, seconds_of, least=least, stop=self._stop)

    def cut_between(self) -> None:
        """Tries numbers of pieces between the best and its half or double."""
        best = self.best
        for factor in TUNING.between:
            if not self._stop.reached():
                self.cut(best.parts, [round(best.pieces * factor)])

    def _try(self, parts: Parts, pieces: int, until: float) -> float:
        """Seconds of the fastest schedule of these pieces, which is kept if it is the best.

        Args:
            parts: the parts with their trees.
            pieces: approximate number of pieces.
            until: seconds to beat, see `fastest_order`.
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
        if periodic is not None:  # first, since it is quick and cuts off slower candidates
            candidate = self._in_periods(parts, periodic, pieces)
            until = min(until, candidate.seconds)
            yield candidate
        for cut in cuts_of(parts, pieces):
            start, taken = self._simulated(parts, cut, until)
            until = min(until, taken)
            yield _Candidate(parts, cut, start, taken, pieces)

    def cut_equally(self, parts: Parts, pieces: int) -> None:
        """Cuts parts into exactly `pieces` pieces of equal size."""
        candidates, until = [], math.inf
        for periods in self._numbers_of_periods(parts, pieces):
            cut = equal_cut(parts, pieces, periods)
            candidates.append(self._in_periods(parts, cut, pieces))
            until = min(until, candidates[-1].seconds)
        cut = equal_cut(parts, pieces)
        candidates.append(_Candidate(parts, cut, *self._simulated(parts, cut, until), pieces))
        self._best = min(candidates, key=lambda candidate: candidate.seconds)

    def _numbers_of_periods(self, parts: Parts, pieces: int) -> list[int]:
        """Divisors of the number of pieces for which a period has at most two pieces per part."""
        if not self._periodic:
            return []
        # In a single stage, every root has the same number of pieces in a period.
        step = self._topology.num_servers if parts.fixed_roots else 1
        lengths = range(step, min(2 * len(parts.root), pieces // 2) + 1, step)
        return [pieces // length for length in lengths if pieces % length == 0][
            -TUNING.equal_periods :
        ]

    def _simulated(self, parts: Parts, cut: Cut, until: float) -> tuple[NDArray[np.float64], float]:
        from gradweave.schedulers.ordering.list_scheduling import fastest_order

        wires, gradient_bytes = parts.wires, self._gradient_bytes
        if math.isinf(gradient_bytes):
            # If only bytes count, any finite size gives the same order.
            nothing = np.zeros(len(wires.rate))
            wires = wires._replace(overhead=nothing, latency=nothing)
            gradient_bytes = float(wires.bandwidth.max())
        sizes = cut.share * gradient_bytes
        return fastest_order(parts.trees, wires, cut.part, sizes, until=until)

    def _in_periods(self, parts: Parts, cut: Cut, pieces: int) -> _Candidate:
        slot = periodic_slots(parts, cut)
        schedule = parts_schedule(parts, self._collective, cut, slot)
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
    """The fastest schedule of given parts.

    Args:
        topology: the network.
        collective: a stage, or both.
        gradient_bytes: size of the whole gradient.
        parts: the parts with their trees, on that network.
        counts: numbers of pieces to try, in this order, for as long as more pieces pay.
        stop: after which no further order is tried, once there is a schedule.
        waiting: whether servers are late, as in `parts`.
    """
    search = _Search(topology, collective, gradient_bytes, stop, waiting=waiting)
    search.cut(parts, counts)
    return search.best.schedule(collective)


def schedule_in_equal_pieces(
    topology: Topology, collective: Collective, gradient_bytes: float, parts: Parts, pieces: int
) -> Schedule:
    """The fastest schedule of given parts in exactly `pieces` pieces of equal size.

    Args:
        topology: the network.
        collective: a stage, or both.
        gradient_bytes: size of the whole gradient.
        parts: the parts with their trees, on that network.
        pieces: number of pieces; for a single stage, a multiple of the number of servers.
    """
    search = _Search(topology, collective, gradient_bytes, UNLIMITED, waiting=False)
    search.cut_equally(parts, pieces)
    return search.best.schedule(collective).replace(shares=None)
