"""Cuts a plan's carriers into pieces and orders them by event simulation."""

import dataclasses
import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from gradweave.common import clock
from gradweave.common.stop import UNLIMITED, Stop
from gradweave.schedulers.carriers import Plan
from gradweave.schedulers.demand_tuning import TUNING
from gradweave.schedulers.ordering.cuts import (
    Cut,
    in_turn,
    integer_shares,
    schedule_of,
    usual_share,
    while_it_pays,
)
from gradweave.schedulers.ordering.periodic_schedule import periodic_slots
from gradweave.schedulers.ordering.transfers import CarrierTransfers
from gradweave.schedulers.packing.tuning import TUNING as ORDERING
from gradweave.schedules.schedule import Schedule
from gradweave.simulator import seconds


@dataclasses.dataclass(frozen=True, eq=False)
class Ordered:
    """Pieces with the times at which their transfers start."""

    cut: Cut
    start: NDArray[np.float64]
    """[P·M] seconds or slots; infinite for the missing transfers of pieces with fewer than M."""
    seconds: float


class Pieces:
    """A plan's transfers over hops, as arrays for the simulation.

    Args:
        plan: carriers and their bytes.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        made = CarrierTransfers.of(plan.topology, plan.carriers)
        demand = plan.demand
        self._busiest_s = plan.busiest_s
        # [C] release time of each carrier in seconds
        self._ready_s = demand.ready_at_s[demand.job[plan.block]].astype(np.float64)
        starts = (made.trees.hop >= 0) & (made.trees.waits == 0)
        ready = np.where(starts, self._ready_s[:, None], 0.0)
        self.transfers = dataclasses.replace(made, trees=made.trees._replace(ready=ready))

    def fastest(self, stop: Stop = UNLIMITED) -> Ordered:
        """The fastest order, trying the balanced piece size first, then finer, coarser, in between.

        Args:
            stop: after which no more sizes are tried, once there is an order.
        """
        most = max(TUNING.transfers_per_s * stop.seconds_left, TUNING.transfers_always)
        first = self._balanced_halvings(most)
        balanced = self._fastest_of(2.0**-first, None)
        assert balanced is not None
        best, at, took = balanced, first, 0.0

        def seconds_of(number: int, _: float) -> float | None:
            nonlocal best, at, took
            begun = clock.now()
            # The next number has twice the transfers of the last, and takes about twice as long.
            if 2 * took > stop.seconds_left and self._transfers(number) > most:
                return None
            found = self._fastest_of(2.0**-number, best)
            took = clock.now() - begun
            if found is not None and found.seconds < best.seconds:
                best, at = found, number
            return found and found.seconds

        for halvings in (range(first + 1, 64), range(first - 1, -1, -1)):
            while_it_pays(halvings, seconds_of, fastest=best.seconds)
        for factor in ORDERING.between:
            if took > stop.seconds_left:
                break
            found = self._fastest_of(2.0**-at / factor, best)
            best = best if found is None or found.seconds >= best.seconds else found
        return best

    def _transfers(self, halvings: int) -> int:
        """Approximate number of transfers if the usual carrier's bytes are halved that often."""
        each = self.plan.bytes / usual_share(self.plan.bytes) * 2.0**halvings
        return int(np.maximum(each, 1.0) @ (self.transfers.trees.hop >= 0).sum(axis=1))

    def _balanced_halvings(self, most: float) -> int:
        """How often to halve the usual carrier's bytes, to begin with.

        With N pieces per carrier, the total time is that of the bytes, plus about N times the
        overhead of messages on the busiest link, plus 1/N of the time of a carrier's bytes on its
        longest path. The best N balances the last two.

        Args:
            most: maximum number of transfers.
        """
        trees, wires, plan = self.transfers.trees, self.transfers.wires, self.plan
        hops = np.bincount(trees.hop[trees.hop >= 0], minlength=len(wires.rate))
        held_s = np.repeat(wires.overhead * hops, np.diff(wires.first))
        busiest_s = np.bincount(wires.links, held_s, len(wires.bandwidth)).max()
        path_s = float((trees.tail_s_per_byte.max(axis=1) * plan.bytes).max())
        each = max(int((trees.hop >= 0).sum()), 1)
        # Half of the limit leaves room for a try with twice as many pieces.
        most = min(most / each, TUNING.max_transfers / each / 2, TUNING.first_pieces)
        pieces = min(math.sqrt(path_s / max(busiest_s, 1e-300)), most)
        return max(round(math.log2(max(pieces, 1.0))), 0)

    def _fastest_of(self, part: float, known: Ordered | None) -> Ordered | None:
        """The fastest order of pieces of a given size.

        Args:
            part: piece size, as a share of the usual carrier's bytes.
            known: an order to beat: slower ones are improved less. With it, the result is None if
                there are too many pieces.
        """
        best, until = None, math.inf if known is None else known.seconds
        per_piece = (self.transfers.trees.hop >= 0).sum(1)
        for cut in self._cuts(part):
            if known is not None and np.bincount(cut.part) @ per_piece > TUNING.max_transfers:
                return best
            for found in self._orders(self._as_ready(cut), until):
                if best is None or found.seconds < best.seconds:
                    best, until = found, min(until, found.seconds)
        return best

    def _cuts(self, part: float) -> Iterator[Cut]:
        """Pieces of about equal size; behind switches, also pieces in periods.

        Args:
            part: piece size, as a share of the usual carrier's bytes.
        """
        size = self.plan.bytes
        usual = usual_share(size)
        count = np.maximum(np.rint(size / (usual * part)), 1).astype(np.int64)
        yield in_turn(size / size.sum(), count)
        if len(self.plan.topology.switches):
            each = np.maximum(np.rint(size / usual), 1).astype(np.int64)
            yield in_turn(size / size.sum(), each * round(1 / part))

    def _as_ready(self, cut: Cut) -> Cut:
        """The same pieces, those of late jobs moved among the pieces still left to send by then."""
        if not self._ready_s.any():
            return cut
        begins_s = np.linspace(0.0, self._busiest_s, len(cut.part)) + self._ready_s[cut.part]
        order = np.argsort(begins_s, kind="stable")
        return Cut(cut.part[order], cut.number[order], cut.share[order])

    def _orders(self, cut: Cut, until: float) -> Iterator[Ordered]:
        """The orders to try for a cut's pieces.

        Args:
            cut: the pieces.
            until: seconds to beat, see `fastest_order`.
        """
        from gradweave.schedulers.ordering.list_scheduling import fastest_order

        plan, trees, wires = self.plan, self.transfers.trees, self.transfers.wires
        size = cut.share * plan.demand.total_bytes
        yield Ordered(cut, *fastest_order(trees, wires, cut.part, size, until=until))
        if len(plan.topology.switches):
            yield self._in_periods(cut)

    def _in_periods(self, cut: Cut) -> Ordered:
        """An order in which every two servers meet in the same slot of each period."""
        slot = periodic_slots(self.transfers, cut)
        ordered = Ordered(cut, slot, math.inf)
        return dataclasses.replace(ordered, seconds=seconds(self.schedule(ordered), None, "events"))

    def schedule(self, ordered: Ordered) -> Schedule:
        """The transfers in the order in which they start, in rounds that keep it."""
        plan, cut = self.plan, ordered.cut
        root = np.array([one.root for one in plan.carriers])
        return schedule_of(
            self.transfers,
            cut,
            ordered.start,
            plan.topology.rank[root].astype(np.int64),
            integer_shares(cut.share, plan.block[cut.part]),
            demand=plan.demand,
            block=plan.block,
        )
