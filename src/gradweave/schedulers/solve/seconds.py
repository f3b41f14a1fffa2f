"""The schedule that takes the least time for a gradient's size, latency and bandwidths."""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from gradweave import clock
from gradweave.bounds import Bound
from gradweave.errors import NoScheduleError, OptionError
from gradweave.schedule.compose import overlap
from gradweave.schedule.ready import ReadyAt, ready_times
from gradweave.schedule.schedule import COPY, REDUCE, Collective, Provenance, Schedule, StatedBound
from gradweave.schedulers.planned.planned import Planned
from gradweave.schedulers.scheduler import Scheduler, may_forward, to_spec
from gradweave.schedulers.solve.pieces import piece_counts
from gradweave.schedulers.solve.seconds_bound import (
    MAX_TIMED,
    has_equal_links,
    has_equal_ports,
    seconds_bound,
    timing_of,
)
from gradweave.schedulers.solve.solution import (
    Attempt,
    Solution,
    bound_for,
    in_one_piece,
    rounds_compare,
)
from gradweave.schedulers.solve.variants import rated, refitted, split
from gradweave.schedulers.textbook.binomial import Binomial
from gradweave.schedulers.textbook.halving_doubling import HalvingDoubling, RecursiveDoubling
from gradweave.schedulers.textbook.ring import Ring
from gradweave.schedulers.trees.grown import Grown
from gradweave.schedulers.trees.merged import Merged
from gradweave.schedulers.trees.steps import fewest_steps
from gradweave.schedulers.trees.symmetric import Symmetric
from gradweave.schedulers.trees.timed import Timed
from gradweave.schedulers.unequal.packed import Packed
from gradweave.simulate import Model, seconds, steps
from gradweave.stop import Stop
from gradweave.topology.topology import Topology
from gradweave.topology.units import format_seconds
from gradweave.verify import verify

FOR_SECONDS: tuple[Scheduler, ...] = (
    Planned(),  # where links are unequal a good schedule in milliseconds, to go on from
    RecursiveDoubling(),
    RecursiveDoubling(order="near"),
    Binomial(),
    Binomial(order="near"),
    Symmetric(),
    HalvingDoubling(),
    HalvingDoubling(order="near"),
    Ring(),
    Packed(),  # where links are unequal it mostly is the fastest: others may then end early
    Merged(tries=1),
    Grown(restarts=64),
    Timed(),
    Ring(order="hamiltonian"),
    Ring(order="hamiltonian", directions=2),
)
"""What is tried for the objective seconds where nothing else is asked for, in this order."""
MAX_PARTS = 256
"""Most parts that a piece is cut into."""
MAX_TRANSFERS = 2_000_000
"""Schedules with more are not cut further."""
MAX_IN_PIECES = 100_000
"""Largest number of transfers of a stage for which more than one piece per server is tried."""
MAX_OVERLAPPED = 100_000
"""Schedules with more transfers are not tried with overlapping stages."""
OWN_SHARE = 1 / 3
"""Of the time left, for a strategy that tries numbers of pieces itself: it would take all."""
RESERVED = 0.05
"""Of a time limit, for strategies that end a little late, the verifier and the bound."""
MAX_PACKED = 128
"""Servers up to which shares are looked for, where links are unequal: the programme's time grows
with their cube and more."""
FAR = 0.05
"""How far above the least time possible, relative to it, strategies of the last resort are tried:
they take seconds."""
NEAR = 1e-3
"""How near the least time possible a schedule ends the search, relative to it."""
MAX_STEPPED, STEPPED_RESTARTS = 128, 16
"""Servers up to which schedules of fewer transfers in a row are tried, and runs for each."""
MAX_RECUT = 10_000_000
"""Transfers that the coarser cuts of the best schedule may have together to be tried all."""
WORTH = 0.005
"""Gain of finer parts below which no finer ones are tried: each part has a cost outside the
model."""


def solve_for_seconds(
    topology: Topology,
    gradient_bytes: float,
    *,
    collective: Collective,
    schedulers: Sequence[Scheduler] | None,
    first: Sequence[Scheduler],
    seed: int,
    stop: Stop,
    progress: Callable[[str], None],
    ready_at_s: ReadyAt | None = None,
) -> Solution:
    """Does what `gradweave.solve` says for ``objective="seconds"``.

    Each strategy's schedule is tried as it is, with its stages overlapping, and with pieces cut
    into 2, 4, … parts for as long as that is worth it; strategies that take several pieces per
    server also with those; and where capacities do not tell the bandwidths, merged trees also with
    capacities that do. The least time in the event model wins, the first among equals; of that
    schedule all coarser cuts are tried, so that none of them is faster.

    Raises:
        OptionError: for a gradient without bytes, or strategies that do not compare.
        NoScheduleError: where no strategy found a schedule.
    """
    if not 0 < gradient_bytes < math.inf:
        raise OptionError(
            f"solve: gradient_bytes: expected a finite number above 0, got {gradient_bytes}"
        )
    ready = ready_times(topology, ready_at_s)
    started = clock.now()
    last_resort: list[Scheduler] = []
    if schedulers is None:
        schedulers, last_resort = _strategies(topology, collective, ready)
    elif collective != "all_reduce" and len({in_one_piece(one) for one in schedulers}) > 1:
        raise OptionError(
            f"solve: a {collective} to one root and to all servers do not compare; give strategies "
            "of one kind"
        )
    schedulers = (*first, *schedulers)
    stop = stop.part(1 - RESERVED)
    search = _Search(topology, collective, gradient_bytes, seed, stop, ready)
    for scheduler in schedulers:
        if search.best is not None and (stop.reached() or search.done):
            break
        progress(f"trying {to_spec(scheduler)}{search.so_far}")
        search.attempt(scheduler)
    for scheduler in last_resort:
        if not stop.reached() and search.leaves_bandwidth:
            progress(f"trying {to_spec(scheduler)}{search.so_far}")
            search.attempt(scheduler)
    search.cut_coarser()
    progress("finding the least time possible")
    return search.solution(started)


def _strategies(
    topology: Topology, collective: Collective, ready: NDArray[np.float64]
) -> tuple[list[Scheduler], list[Scheduler]]:
    """What is tried if nothing else is asked for, and what only where that leaves bandwidth.

    Shares are looked for at once where links differ or servers are late; at last, for an
    all-reduce, where links are equal and servers have more or fewer of them; never where all
    servers are alike, since then equal parts are as good.
    """
    whole = collective == "all_reduce"
    fitting = [one for one in FOR_SECONDS if whole or not in_one_piece(one)]
    uneven = not has_equal_links(topology) or bool(ready.any())
    if uneven and topology.num_servers <= MAX_PACKED:
        return fitting, []
    equal = [one for one in fitting if not one.own_pieces]
    if not whole or topology.num_servers > MAX_PACKED or has_equal_ports(topology):
        return equal, []
    return equal, [one for one in fitting if one.own_pieces]


@dataclasses.dataclass(frozen=True, eq=False)
class _Candidate:
    """One schedule, with how it came about."""

    schedule: Schedule
    scheduler: Scheduler
    seconds: float
    base: Schedule
    """The same before it was cut into parts."""
    parts: int = 1
    overlapped: bool = False


@dataclasses.dataclass(eq=False)
class _Search:
    """What has been tried so far, and the best of it."""

    topology: Topology
    collective: Collective
    gradient_bytes: float
    seed: int
    stop: Stop
    ready_at_s: NDArray[np.float64]

    def __post_init__(self) -> None:
        self.attempts: list[Attempt] = []
        self.best: _Candidate | None = None
        self.rated = rated(self.topology)
        self._whole = self.collective == "all_reduce"
        small = self.topology.num_nodes <= MAX_TIMED
        self.piece_counts = (
            piece_counts(self.topology, self.collective, self.gradient_bytes) if small else (1,)
        )
        self._bound = (
            seconds_bound(
                self.topology, self.collective, self.gradient_bytes, ready_at_s=self.ready_at_s
            )
            if small
            else None
        )
        self._least = self._bound.seconds if self._bound else 0.0

    def attempt(self, scheduler: Scheduler) -> None:
        """Times a strategy's schedules in all variants."""
        started = clock.now()
        best: _Candidate | None = None
        reason = ""
        try:
            for schedule, used in self._schedules(scheduler):
                for candidate in self._variants(schedule, used):
                    if best is None or candidate.seconds < best.seconds:
                        best = candidate
                if self.stop.reached() or self._near_the_least(best):
                    break
        except NoScheduleError as error:
            reason = str(error)
        wall_s = clock.now() - started
        if best is None:
            self.attempts.append(Attempt(scheduler, None, wall_s, reason))
            return
        self._add(best, wall_s)

    def cut_coarser(self) -> None:
        """Tries the best schedule's coarser cuts: fewer pieces per server, then fewer parts.

        Finer and finer parts are tried by doubling, and numbers of pieces by how they fill the
        bottleneck, so that one between two may be faster.
        """
        if self.best is None or self.done or self.stop.reached():
            return
        started, best = clock.now(), self.best
        for scheduler in self._in_fewer_pieces(best.scheduler):
            if self.stop.reached():
                break
            with contextlib.suppress(NoScheduleError):
                for candidate in self._variants(
                    self._schedule(scheduler, self.topology), scheduler
                ):
                    best = min(best, candidate, key=lambda one: one.seconds)
        finest, base = best, best.base
        step = max(1, finest.parts**2 * base.num_transfers // (2 * MAX_RECUT))
        for parts in range(finest.parts - 1, 0, -step):
            if self.stop.reached():
                break
            candidate = self._cut(base, finest.scheduler, parts, finest.overlapped)
            best = min(best, candidate, key=lambda one: one.seconds)
        if best is not self.best:
            self._add(best, clock.now() - started)

    def _in_fewer_pieces(self, scheduler: Scheduler) -> list[Scheduler]:
        """A strategy with the divisors of its number of pieces, and the powers of 2 below."""
        count = getattr(scheduler, "pieces_per_server", 1)
        return [
            _in_pieces(scheduler, fewer)
            for fewer in range(count - 1, 1, -1)
            if fewer not in self.piece_counts and (count % fewer == 0 or fewer.bit_count() == 1)
        ]

    def _add(self, candidate: _Candidate, wall_s: float) -> None:
        """Records a strategy's best schedule, and keeps it where none is better."""
        self.attempts.append(
            Attempt(
                candidate.scheduler,
                candidate.schedule.rounds,
                wall_s,
                seconds=candidate.seconds,
                barrier_seconds=self._seconds(candidate.schedule, "rounds"),
                pieces=candidate.schedule.pieces,
                overlapped=candidate.overlapped,
            )
        )
        if self.best is None or candidate.seconds < self.best.seconds:
            self.best = candidate

    @property
    def done(self) -> bool:
        """Whether the best is so near the least time possible that nothing else is worth trying."""
        return self._near_the_least(self.best)

    @property
    def leaves_bandwidth(self) -> bool:
        """Whether bytes take most of the least time possible, and the best takes far longer."""
        if self._bound is None or self._bound.kind != "bandwidth":
            return False
        return self.best is None or self.best.seconds > self._least * (1 + FAR)

    @property
    def so_far(self) -> str:
        """The best time and the least possible, for whoever waits."""
        if self.best is None:
            return ""
        least = f", at least {format_seconds(self._least)}" if self._least else ""
        return f"; {format_seconds(self.best.seconds)} so far{least}"

    def _near_the_least(self, candidate: _Candidate | None) -> bool:
        return candidate is not None and candidate.seconds <= self._least * (1 + NEAR)

    def _schedules(self, scheduler: Scheduler) -> Iterator[tuple[Schedule, Scheduler]]:
        """A strategy's schedules: its own, with more pieces per server, and by bandwidth."""
        if math.isinf(getattr(scheduler, "gradient_bytes", 0.0)):
            size: dict[str, float] = {"gradient_bytes": self.gradient_bytes}
            scheduler = dataclasses.replace(scheduler, **size)
        if isinstance(scheduler, Packed) and self.ready_at_s.any() and not scheduler.ready_at_s:
            scheduler = dataclasses.replace(scheduler, ready_at_s=tuple(self.ready_at_s.tolist()))
        schedulers = [scheduler]
        if any(field.name == "pieces_per_server" for field in dataclasses.fields(scheduler)):
            own = getattr(scheduler, "pieces_per_server")  # noqa: B009
            schedulers += [
                _in_pieces(scheduler, count)
                for count in self.piece_counts
                if count > own and count * self.topology.num_servers**2 <= MAX_IN_PIECES
            ]
        for each in schedulers:
            schedule = self._schedule(each, self.topology)
            yield schedule, each
            yield from self._in_fewer_steps(each, schedule)
        if self.rated is not None and not in_one_piece(scheduler) and not scheduler.own_pieces:
            for each in schedulers:
                yield refitted(self._schedule(each, self.rated), self.topology), each

    def _in_fewer_steps(
        self, scheduler: Scheduler, schedule: Schedule
    ) -> Iterator[tuple[Schedule, Scheduler]]:
        """Grown trees with fewer transfers in a row, as few as can be or one more.

        Only where the latencies and overheads saved would be worth it. SCCL's trade-off.
        """
        network = self.topology
        if not isinstance(scheduler, Grown) or scheduler.steps or network.num_servers > MAX_STEPPED:
            return
        least, stages = fewest_steps(network), 2 if self._whole else 1
        link_s = float((network.latency_s + network.overhead_s).max())
        hop_s = link_s * int(np.diff(schedule.route_offsets).max() - 1)
        duration_s = self._seconds(schedule)
        for fewer in range(least, min(least + 2, steps(schedule) // stages)):
            saved_s = (steps(schedule) - stages * fewer) * hop_s
            if saved_s < WORTH * duration_s or self.stop.reached():
                break
            restarts = min(scheduler.restarts or STEPPED_RESTARTS, STEPPED_RESTARTS)
            with_fewer = dataclasses.replace(scheduler, steps=fewer, restarts=restarts)
            yield self._schedule(with_fewer, network), with_fewer

    def _schedule(self, scheduler: Scheduler, topology: Topology) -> Schedule:
        stop = self.stop.part(OWN_SHARE) if scheduler.own_pieces else self.stop
        return scheduler.schedule_until(topology, stop, self.collective, seed=self.seed)

    def _variants(self, schedule: Schedule, scheduler: Scheduler) -> Iterator[_Candidate]:
        """A schedule as it is and with overlapping stages, in ever finer parts."""
        staged = (schedule.op == REDUCE).any() and (schedule.op == COPY).any()
        staged &= sum(schedule.stages.values()) == schedule.rounds  # else they overlap already
        few = schedule.num_transfers <= MAX_OVERLAPPED
        for overlapping in (False, True):
            if overlapping and (self.stop.reached() or not (self._whole and staged and few)):
                break
            base = overlap(schedule) if overlapping else schedule
            parts, last = 1, math.inf
            while parts == 1 or parts * base.num_transfers <= MAX_TRANSFERS:
                begun = clock.now()
                candidate = self._cut(base, scheduler, parts, overlapping)
                if candidate.seconds > last * (1 - WORTH):
                    break
                yield candidate
                next_s = 2 * (clock.now() - begun)  # the next has twice as many transfers
                if next_s >= self.stop.seconds_left or parts == MAX_PARTS:
                    break
                parts, last = 2 * parts, candidate.seconds

    def _seconds(self, schedule: Schedule, model: Model = "events") -> float:
        return seconds(schedule, self.gradient_bytes, model, ready_at_s=self.ready_at_s)

    def _cut(
        self, base: Schedule, scheduler: Scheduler, parts: int, overlapped: bool
    ) -> _Candidate:
        cut = split(base, parts)
        duration_s = self._seconds(cut)
        return _Candidate(cut, scheduler, duration_s, base, parts, overlapped)

    def solution(self, started: float) -> Solution:
        """The best candidate, verified, beside its bounds."""
        best = self.best
        if best is None:
            reasons = "; ".join(f"{one.scheduler.name}: {one.reason}" for one in self.attempts)
            raise NoScheduleError(f"no schedule for {self.topology.name!r}: {reasons}")
        options = dict(best.scheduler.options())
        options |= {"overlap": True} if best.overlapped else {}
        options |= {"parts": best.parts} if best.parts > 1 else {}
        options |= {"ready_at_s": self.ready_at_s.tolist()} if self.ready_at_s.any() else {}
        options["objective"] = "seconds"
        rounds_bound = self._rounds_bound(best)
        schedule = best.schedule.replace(
            scheduler=Provenance(best.scheduler.name, options, self.seed),
            bound=StatedBound(rounds_bound.rounds, rounds_bound.kind, True)
            if rounds_compare(best.scheduler)
            else None,
        )
        verify(
            schedule,
            forwarding_servers=may_forward(best.scheduler),
            aggregating_switches=getattr(best.scheduler, "aggregating_switches", False),
        ).raise_if_invalid()
        timing = timing_of(schedule, self.gradient_bytes, self.ready_at_s)
        attempts, wall_s = tuple(self.attempts), clock.now() - started
        return Solution(schedule, rounds_bound, best.scheduler, attempts, wall_s, timing)

    def _rounds_bound(self, best: _Candidate) -> Bound:
        return bound_for(
            self.topology,
            self.collective,
            [best.scheduler],
            parts=best.parts,
            overlap=best.overlapped,
        )


def _in_pieces(scheduler: Scheduler, count: int) -> Scheduler:
    """A strategy with more pieces per server, and as many times fewer restarts."""
    changes: dict[str, int] = {"pieces_per_server": count}
    if restarts := getattr(scheduler, "restarts", None):
        changes["restarts"] = max(1, restarts // count)
    return dataclasses.replace(scheduler, **changes)
