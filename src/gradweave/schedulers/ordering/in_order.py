"""Reorders a schedule's transfers: those of some jobs before those of others."""

import dataclasses
import functools
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from gradweave.errors import NoScheduleError
from gradweave.schedulers.kernels.wires import wires_of
from gradweave.schedules.ready import earliest_starts
from gradweave.schedules.schedule import COPY, REDUCE, Schedule
from gradweave.simulator.seconds import event_seconds
from gradweave.simulator.traffic import piece_bytes
from gradweave.topology.topology import Floats, Integers

if TYPE_CHECKING:
    from gradweave.schedulers.kernels.precedence import Dependencies

MAX_TRANSFERS = 150_000
"""Most transfers of a schedule that is reordered: simulation time is proportional to them."""
Way = Literal["shared", "own", "anew"]
"""How links keep an order of jobs. With ``shared``, a later job may use a link whenever no transfer
of an earlier job is ready and fits. With the others, each link carries all transfers of a job
before any of the next; a job's own transfers keep the schedule's order with ``own``, and start in
the order in which links become free with ``anew``."""
WAYS: tuple[Way, ...] = get_args(Way)


@dataclasses.dataclass(frozen=True, eq=False)
class Order:
    """When transfers start if some jobs come before others."""

    start: NDArray[np.float64]
    """[T] start in seconds, in the schedule's order of transfers."""
    job_seconds: NDArray[np.float64]
    """[jobs] when each job ends."""


class InOrder:
    """A schedule's transfers, their dependencies and their durations.

    When a link becomes free it takes, among the transfers that are ready and fit, one of the first
    job; within a job, the transfer that heads the longest path.

    Args:
        schedule: a schedule of a demand.

    Raises:
        NoScheduleError: if rounds exchange sums in place, or there are too many transfers.
    """

    def __init__(self, schedule: Schedule) -> None:
        if schedule.num_transfers > MAX_TRANSFERS:
            raise NoScheduleError("in order: too many transfers to reorder")
        self.schedule = schedule
        self._by_piece = np.argsort(schedule.piece, kind="stable")
        piece = schedule.piece[self._by_piece]
        self._first = np.searchsorted(piece, np.arange(schedule.pieces + 1))
        self._place = np.arange(len(piece)) - self._first[piece]  # within its piece's transfers
        self._wires, self._hop = wires_of(schedule)
        self._size = piece_bytes(schedule, None)
        demand, block = schedule.demanded, schedule.block
        assert block is not None
        self._job = demand.job[block]
        self._begun = np.full(schedule.pieces, np.inf)
        np.minimum.at(self._begun, schedule.piece, event_seconds(schedule)[0])
        self._trees = self._dependent(piece)

    def _dependent(self, piece: Integers) -> "Dependencies":
        from gradweave.schedulers.kernels.precedence import Dependencies, tails
        from gradweave.schedulers.ordering.in_order_kernel import dependencies

        schedule, order = self.schedule, self._by_piece
        most = int(np.diff(self._first).max(initial=1))
        waits, following, first, sound = dependencies(
            self._first,
            schedule.round[order].astype(np.int64),
            schedule.source[order].astype(np.int64),
            schedule.target[order].astype(np.int64),
            schedule.op[order] == COPY,
            ~self._to_others()[order],
            most,
        )
        if not sound:
            raise NoScheduleError("in order: rounds exchange sums in place")
        hop, ready = np.full(waits.shape, -1, np.int64), np.zeros(waits.shape)
        hop[piece, self._place] = self._hop[order]
        ready[piece, self._place] = earliest_starts(schedule, None)[order]
        ready[waits > 0] = 0.0  # its predecessors arrive later
        wires, there = self._wires, hop >= 0
        held_s = np.where(there, (wires.latency + wires.overhead)[hop], 0.0)
        per_byte = np.where(there, (1 / wires.rate)[hop], 0.0)
        none = np.zeros(hop.shape)
        tail = tails(waits, first, following, held_s, none, per_byte)
        return Dependencies(hop, waits, following, first, ready, *tail)

    def _to_others(self) -> NDArray[np.bool_]:
        """[T] whether a transfer's target does not contribute to its piece."""
        return ~self.schedule.contributors.has(self.schedule.piece, self.schedule.target)

    def order(self, place: Integers, way: Way = "shared") -> Order:
        """Simulates the transfers with jobs in a given order.

        Args:
            place: [jobs] position of each job, smallest first; jobs with equal positions are
                unordered.
            way: how links keep the order.
        """
        rank = np.unique(place, return_inverse=True)[1].reshape(-1)
        if way == "shared":
            start = self._played(rank[self._job])
            return Order(start, self._last(start + self._takes, self.schedule))
        start, since = (self._alone if way == "own" else self._anew).copy(), 0.0
        for number in range(int(rank.max()) + 1):
            mine = (rank[self._job] == number)[self.schedule.piece]
            start[mine] += max(0.0, since - float(start[mine].min()))
            since = float((start + self._takes)[mine].max())
        # Links keep this order, and transfers start earlier if they can.
        made = self.made(Order(start, np.zeros(len(place))))
        return Order(start, self._last(event_seconds(made)[1], made))

    @functools.cached_property
    def alone_s(self) -> NDArray[np.float64]:
        """[jobs] seconds that each job takes by itself, from when it is ready."""
        ready_s = np.asarray(self.schedule.demanded.ready_at_s, np.float64)
        return self._last(self._alone + self._takes, self.schedule) - ready_s

    @functools.cached_property
    def _alone(self) -> NDArray[np.float64]:
        """[T] when each transfer starts if its job runs by itself, in the schedule's order."""
        schedule, start = self.schedule, np.empty(self.schedule.num_transfers)
        for job in range(len(schedule.demanded.jobs)):
            mine = np.flatnonzero(self._job[schedule.piece] == job)
            start[mine] = event_seconds(schedule.take(mine))[0]
        return start

    @functools.cached_property
    def _anew(self) -> NDArray[np.float64]:
        """[T] like `_alone`, but transfers start in the order in which links become free."""
        start = np.empty(self.schedule.num_transfers)
        for job in range(len(self.schedule.demanded.jobs)):
            mine = self._job == job
            played = self._played(np.zeros(len(mine), np.int64), mine)
            start[mine[self.schedule.piece]] = played[mine[self.schedule.piece]]
        return start

    def _last(self, ends: Floats, schedule: Schedule) -> NDArray[np.float64]:
        """[jobs] when the last transfer of each job ends."""
        last = np.zeros(len(schedule.demanded.jobs))
        np.maximum.at(last, self._job[schedule.piece], ends)
        return last

    def _played(
        self, rank: Integers, counts: NDArray[np.bool_] | None = None
    ) -> NDArray[np.float64]:
        """[T] seconds at which transfers start, infinite for pieces that are left out.

        Args:
            rank: [P] rank of each piece's job, smallest first.
            counts: [P] which pieces to simulate; all, if not given.
        """
        from gradweave.schedulers.ordering.list_scheduling import (
            PENALTIES,
            ListScheduler,
            urgencies,
        )

        trees, wires, size = self._trees, self._wires, self._size
        before = (rank.max() - rank) * self._apart_s
        part = np.lexsort((self._begun, rank))
        part = part if counts is None else part[counts[part]]
        # One weight only: each order of jobs costs a simulation, and many orders are tried.
        (urgency,) = urgencies(trees, wires, part, size[part], PENALTIES[1:])
        urgency += before[part, None]
        scheduler = ListScheduler.of_pieces(trees, wires, part, size[part])
        start, _, _ = scheduler.dispatched(-urgency.reshape(-1))
        begun = np.full(trees.hop.shape, np.inf)
        begun[part] = start.reshape(len(part), -1)
        starts = np.empty(self.schedule.num_transfers)
        starts[self._by_piece] = begun[self.schedule.piece[self._by_piece], self._place]
        return starts

    @functools.cached_property
    def _takes(self) -> NDArray[np.float64]:
        """[T] seconds from the start of each transfer until it has arrived."""
        wires, hop = self._wires, self._hop
        per_byte = self._size[self.schedule.piece] / wires.rate[hop]
        return (wires.overhead + wires.latency)[hop] + per_byte

    @functools.cached_property
    def _apart_s(self) -> float:
        """Urgency added per job position: more than any difference of urgency within a job."""
        trees, wires = self._trees, self._wires
        longest = float((self._size[:, None] * trees.tail_s_per_byte + trees.tail_s).max())
        bytes_of = np.bincount(self._hop, self._size[self.schedule.piece], len(wires.rate))
        over = np.repeat(bytes_of, np.diff(wires.first))
        load = np.bincount(wires.links, over, len(wires.bandwidth)) / wires.bandwidth
        held_s = float(wires.overhead.max()) * self.schedule.num_transfers
        # An urgency is at most the longest path, and at least minus `PENALTIES` times the load of
        # the busiest link with its overheads: this exceeds the difference of any two.
        return 2 * longest + 4 * float(load.max()) + held_s

    def made(self, order: Order) -> Schedule:
        """The schedule for an order, in rounds that keep it."""
        from gradweave.schedulers.ordering.lower import earliest_rounds

        schedule, by_start = self.schedule, np.argsort(order.start, kind="stable")
        ordered = schedule.take(by_start, round=np.arange(len(by_start)))
        adds = ((schedule.op == REDUCE) & self._to_others())[by_start]
        return ordered.replace(round=earliest_rounds(ordered, adds=adds))
