"""A plan's carriers cut into pieces, put in order by event simulation: a schedule."""

import dataclasses
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gradweave import clock
from gradweave.schedule.schedule import COPY, DEMAND, REDUCE, Schedule, take_rows
from gradweave.schedule.shares import apportion
from gradweave.schedulers.demands.carriers import Carrier, Plan
from gradweave.schedulers.demands.tuning import TUNING
from gradweave.schedulers.unequal.cuts import DENOMINATOR, Cut, in_turn, usual_share
from gradweave.schedulers.unequal.parts import Hops
from gradweave.schedulers.unequal.periodic_schedule import slots_in_periods
from gradweave.schedulers.unequal.tuning import TUNING as ORDERING
from gradweave.simulate import seconds
from gradweave.stop import UNLIMITED, Stop

if TYPE_CHECKING:
    from gradweave.schedulers.unequal.event_simulation_kernel import Trees


@dataclasses.dataclass(frozen=True, eq=False)
class Ordered:
    """Pieces with the times at which their transfers start."""

    cut: Cut
    start: NDArray[np.float64]
    """[P·M] seconds or slots, infinite in place of transfers that a piece has less than M."""
    seconds: float


class Pieces:
    """What a plan's pieces need: their transfers, over hops, as the simulation takes them.

    Args:
        plan: carriers and what they carry.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        hops = Hops(plan.topology)
        distinct = {one: number for number, one in enumerate(dict.fromkeys(plan.carriers))}
        self._kind = np.array([distinct[one] for one in plan.carriers])
        most = max(len(one.routes) for one in distinct)
        hop = np.full((len(distinct), most), -1, np.int64)
        op = np.zeros((len(distinct), most), np.int64)
        for carrier, number in distinct.items():
            hop[number, : len(carrier.routes)] = [hops.number(one) for one in carrier.routes]
            op[number, : len(carrier.routes)] = carrier.ops
        self._op = op[self._kind]
        given = plan.demand.contributors
        # [B, N] whether a server contributes to a block
        self._owns = np.zeros((len(plan.demand), plan.topology.num_servers), bool)
        self._owns[given.owner, plan.topology.rank[given.servers]] = True
        self._places = hops.arrays()
        demand = plan.demand
        # [C] seconds before which nothing of a carrier is sent
        self._busiest_s = plan.busiest_s
        self._ready_s = demand.ready_at_s[demand.job[plan.block]].astype(np.float64)
        self.trees = self._trees(list(distinct), hop)

    def _trees(self, distinct: list[Carrier], hop: NDArray[np.int64]) -> "Trees":
        """The transfers of each carrier, and what waits for what."""
        from gradweave.schedulers.kernels.precedence import tails
        from gradweave.schedulers.unequal.event_simulation_kernel import Trees

        waits = np.zeros(hop.shape, np.int64)
        following: list[int] = []
        first = np.zeros((len(distinct), hop.shape[1] + 1), np.int64)
        for number, carrier in enumerate(distinct):
            after: list[list[int]] = [[] for _ in range(hop.shape[1])]
            for transfer, before in enumerate(carrier.waits):
                waits[number, transfer] = len(before)
                for one in before:
                    after[one].append(transfer)
            ends = np.cumsum([len(following), *map(len, after)])
            first[number] = ends
            following += [transfer for each in after for transfer in each]
        wires = self._places["wires"]
        there = hop >= 0
        held_s = np.where(there, (wires.latency + wires.overhead)[hop], 0.0)
        per_byte = np.where(there, (1 / wires.rate)[hop], 0.0)
        followers = np.array(following, np.int64)
        tail = tails(waits, first, followers, held_s, np.zeros(hop.shape), per_byte)
        kind = self._kind
        return Trees(
            hop[kind],
            waits[kind],
            followers,
            first[kind],
            np.where((there & (waits == 0))[kind], self._ready_s[:, None], 0.0),
            tail[0][kind],
            tail[1][kind],
        )

    def fastest(self, stop: Stop = UNLIMITED) -> Ordered:
        """Pieces of the size at which their costs balance, then finer, coarser and in between.

        Args:
            stop: after which no more are tried, once there is an order.
        """
        most = max(TUNING.transfers_per_s * stop.seconds_left, TUNING.transfers_always)
        first = self._balanced_halvings(most)
        best, at = self._fastest_of(2.0**-first, None), first
        assert best is not None
        took = 0.0
        for halvings in (range(first + 1, 64), range(first - 1, -1, -1)):
            patience = TUNING.patience
            for number in halvings:
                begun = clock.now()
                if 2 * took > stop.seconds_left and self._transfers(number) > most:
                    break
                found = self._fastest_of(2.0**-number, best)
                took = clock.now() - begun
                if found is None:
                    break
                better = found.seconds < best.seconds * (1 - TUNING.min_gain)
                patience = TUNING.patience if better else patience - 1
                best, at = (found, number) if found.seconds < best.seconds else (best, at)
                if patience <= 0:
                    break
        for factor in ORDERING.between:
            if took > stop.seconds_left:
                break
            found = self._fastest_of(2.0**-at / factor, best)
            best = best if found is None or found.seconds >= best.seconds else found
        return best

    def _transfers(self, halvings: int) -> int:
        """Of all pieces, where the usual carrier's bytes are halved so often, about."""
        each = self.plan.bytes / usual_share(self.plan.bytes) * 2.0**halvings
        return int(np.maximum(each, 1.0) @ (self.trees.hop >= 0).sum(axis=1))

    def _balanced_halvings(self, most: float) -> int:
        """How often to halve the usual carrier's bytes, to begin with.

        N pieces of each carrier take the time of the bytes, and about N times what messages hold
        the busiest link beside it, and a 1/N of what a carrier's bytes take on its longest path.

        Args:
            most: transfers.
        """
        trees, wires, plan = self.trees, self._places["wires"], self.plan
        hops = np.bincount(trees.hop[trees.hop >= 0], minlength=len(wires.rate))
        held_s = np.repeat(wires.overhead * hops, np.diff(wires.first))
        busiest_s = np.bincount(wires.links, held_s, len(wires.bandwidth)).max()
        path_s = float((trees.tail_s_per_byte.max(axis=1) * plan.bytes).max())
        each = max(int((trees.hop >= 0).sum()), 1)
        most = min(most / each, TUNING.max_transfers / each / 2, TUNING.first_pieces)
        pieces = min(math.sqrt(path_s / max(busiest_s, 1e-300)), most)
        return max(round(math.log2(max(pieces, 1.0))), 0)

    def _fastest_of(self, part: float, known: Ordered | None) -> Ordered | None:
        """The fastest order of pieces of some size.

        Args:
            part: of the usual carrier's bytes, that is a piece.
            known: an order; others are given up when they take as long. Where there is one, None is
                returned if pieces are too many.
        """
        best, until = None, math.inf if known is None else known.seconds
        per_piece = (self.trees.hop >= 0).sum(1)
        for cut in self._cuts(part):
            if known is not None and np.bincount(cut.part) @ per_piece > TUNING.max_transfers:
                return best
            for found in self._orders(self._as_ready(cut), until):
                if best is None or found.seconds < best.seconds:
                    best, until = found, min(until, found.seconds)
        return best

    def _cuts(self, part: float) -> Iterator[Cut]:
        """Pieces of about one size, and in periods as well where servers are behind switches.

        Args:
            part: of the usual carrier's bytes, that is a piece.
        """
        size = self.plan.bytes
        usual = usual_share(size)
        count = np.maximum(np.rint(size / (usual * part)), 1).astype(np.int64)
        yield in_turn(size / size.sum(), count)
        if len(self.plan.topology.switches):
            each = np.maximum(np.rint(size / usual), 1).astype(np.int64)
            yield in_turn(size / size.sum(), each * round(1 / part))

    def _as_ready(self, cut: Cut) -> Cut:
        """The same pieces, those of jobs that begin late among others that are then still to go."""
        if not self._ready_s.any():
            return cut
        begins_s = np.linspace(0.0, self._busiest_s, len(cut.part)) + self._ready_s[cut.part]
        order = np.argsort(begins_s, kind="stable")
        return Cut(cut.part[order], cut.number[order], cut.share[order])

    def _orders(self, cut: Cut, until: float) -> Iterator[Ordered]:
        """The orders of a cut's pieces that are tried.

        Args:
            cut: the pieces.
            until: seconds at which an order may be given up.
        """
        from gradweave.schedulers.unequal.event_simulation_kernel import simulate

        plan, wires = self.plan, self._places["wires"]
        size = cut.share * plan.demand.total_bytes
        for window in TUNING.windows:
            under_way = window * max(len(plan.block), ORDERING.min_window_parts)
            start, seconds = simulate(
                self.trees, wires, cut.part, size, ORDERING.order_penalty, under_way, until
            )
            until = min(until, seconds)
            yield Ordered(cut, start, seconds)
        if len(plan.topology.switches):
            yield self._in_periods(cut)

    def _in_periods(self, cut: Cut) -> Ordered:
        """Every two servers meet in the same slot of each period."""
        hop = self.trees.hop
        ranks = (self._places["target"] - self._places["source"])[hop]
        distance = np.where(hop >= 0, ranks % self.plan.topology.num_servers, 1)
        slot = slots_in_periods(self.trees, distance, self._op == COPY, cut).astype(np.float64)
        slot[hop[cut.part].reshape(-1) < 0] = np.inf
        ordered = Ordered(cut, slot, math.inf)
        return dataclasses.replace(ordered, seconds=seconds(self.schedule(ordered), None, "events"))

    def schedule(self, ordered: Ordered) -> Schedule:
        """The transfers in the order in which they start, in rounds that keep it."""
        from gradweave.schedulers.kernels.ordered_rounds import rounds_in_order

        plan, cut, places = self.plan, ordered.cut, self._places
        topology, wires = plan.topology, places["wires"]
        pieces, per_piece = len(cut.part), self.trees.hop.shape[1]
        block = plan.block[cut.part]
        by_block = np.argsort(block, kind="stable")
        name = np.empty(pieces, np.int64)
        name[by_block] = np.arange(pieces)
        begun = np.flatnonzero(np.isfinite(ordered.start))
        place, transfer = np.divmod(
            begun[np.argsort(ordered.start[begun], kind="stable")], per_piece
        )
        part, piece = cut.part[place], name[place]
        hop = self.trees.hop[part, transfer]
        source, target = places["source"][hop], places["target"][hop]
        rounds = rounds_in_order(
            wires.links,
            wires.first,
            hop,
            source * pieces + piece,
            target * pieces + piece,
            topology.num_servers * pieces,
            len(topology.source),
            (self._op[part, transfer] == REDUCE) & ~self._owns[plan.block[part], target],
        )
        nodes, offsets = take_rows(places["route_nodes"], places["route_offsets"], hop)
        root = np.array([one.root for one in plan.carriers])
        return Schedule(
            topology=topology,
            collective=DEMAND,
            root=root[cut.part[by_block]],
            round=rounds,
            piece=piece,
            source=topology.servers[source],
            target=topology.servers[target],
            op=self._op[part, transfer],
            route_nodes=nodes,
            route_offsets=offsets,
            shares=_integers(cut.share[by_block], block[by_block]),
            demand=plan.demand,
            block=block[by_block],
        )


def _integers(share: NDArray[np.float64], block: NDArray[np.int64]) -> NDArray[np.int64]:
    """[P] shares of each block as integers.

    Args:
        share: [P] in any unit.
        block: [P] ascending.
    """
    whole = np.bincount(block, share)[block]
    fine = np.maximum(np.rint(share / whole * DENOMINATOR), 1).astype(np.int64)
    cuts = np.flatnonzero(np.diff(block)) + 1
    return np.concatenate([apportion(DENOMINATOR, one) for one in np.split(fine, cuts)])
