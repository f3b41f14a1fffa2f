"""All-reduce by groups: reduce-scatter inside, all-reduce across, all-gather inside, in pieces."""

import dataclasses
import math
from collections.abc import Iterator
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gradweave import clock
from gradweave.bounds import throughput
from gradweave.errors import OptionError
from gradweave.schedule.schedule import COPY, REDUCE, Collective, Schedule, take_rows
from gradweave.schedulers.hierarchical.exchange import (
    Exchange,
    exchanges_of,
    hops_of,
    packed_exchanges,
)
from gradweave.schedulers.hierarchical.grid import Grid
from gradweave.schedulers.hierarchical.priority_kernel import play_by_priority
from gradweave.schedulers.hierarchical.shares import least_time_shares
from gradweave.schedulers.hierarchical.trees import (
    Composed,
    composed,
    joined,
    link_seconds,
    orders_of,
    slow_first,
)
from gradweave.schedulers.hierarchical.tuning import TUNING
from gradweave.schedulers.kernels.wires import Wires, wires_over
from gradweave.schedulers.scheduler import Scheduler, Traits, check_counts
from gradweave.stop import Stop
from gradweave.topology.topology import Topology

DENOMINATOR = 1 << 24
"""Shares are multiples of about one part in so many."""
EQUAL = 1e-6
"""How far shares may be apart, relative, and count as equal."""


@dataclasses.dataclass(frozen=True)
class Hierarchical(Scheduler):
    """Groups of servers, found by the network's links: inside, across, inside, all at one time.

    Servers are places of a grid, one dimension inside the smallest groups and one for each level of
    groups. A piece's tree reduces along one dimension after the other, first inside a group, then
    across groups between servers of like place; its all-gather goes back the same way. Pieces
    follow each other, so that links inside and across are busy at once. Where links inside are the
    scarcer ones, a part of the gradient takes the dimensions in another order; where some link is
    slow, its servers root less.

    Source: Cho, Saxena, Kung et al., "BlueConnect: decomposing all-reduce for deep learning on
        heterogeneous network hierarchy", 2019; Rashidi et al., "Themis", ISCA 2022.
    """

    name: ClassVar[str] = "hierarchical"

    gradient_bytes: float = math.inf
    """Size of the gradient for which it is fast; for one beyond all measure, latencies do not
    count."""
    chunks: int | None = None
    """Into how many each server's part is cut; if not given, as many as take least time."""
    orders: int | None = None
    """Orders of the dimensions that may be used, inside first; if not given, all that help."""

    def __post_init__(self) -> None:
        if not self.gradient_bytes > 0:
            raise OptionError(
                f"hierarchical: gradient_bytes: expected more than 0, got {self.gradient_bytes:g}"
            )
        check_counts(self, "chunks", "orders")

    @property
    def traits(self) -> Traits:
        """What it is like, with these options."""
        return Traits(own_pieces=True, takes_size=math.isinf(self.gradient_bytes), by_groups=True)

    def make(self, topology: Topology, collective: Collective, seed: int, stop: Stop) -> Schedule:
        """Makes the schedule; `schedule` verifies it."""
        grid = Grid.of(topology)
        whole, chunk_transfers = collective == "all_reduce", 2 * topology.num_servers**2
        if whole and chunk_transfers > TUNING.max_chunk_transfers:
            grid = grid.split(TUNING.groups_with_roots)
        begun = clock.now()
        best = self._search(grid, collective, stop)
        # Another search takes about as long: it may overrun the limit by half of that.
        in_time = clock.now() - begun < 2 * stop.seconds_left
        few_chunks = TUNING.few_chunks * chunk_transfers > TUNING.max_transfers
        enough = grid.few_roots or best.is_content(TUNING.few_roots_worth)
        if whole and few_chunks and in_time and not enough:
            few = grid.split(TUNING.groups_with_more_roots)
            if few.few_roots:
                best = min(best, self._search(few, collective, stop), key=lambda one: one.seconds)
        return best.schedule()

    def _search(self, grid: Grid, collective: Collective, stop: Stop) -> "_Search":
        """Trees of a grid, cut."""
        topology, hops = grid.topology, hops_of(grid)
        wires = wires_over(topology, hops.links, hops.first_link)
        orders = orders_of(len(grid.sizes))[: self.orders]

        def trees_by(order: tuple[int, ...], exchanges: list[Exchange]) -> Composed:
            return slow_first(composed(grid, hops, exchanges, order), grid, hops, wires)

        exchanges = exchanges_of(grid, hops)
        first = trees_by(orders[0], exchanges)
        packed = packed_exchanges(grid, exchanges, stop)
        if any(one is not other for one, other in zip(exchanges, packed, strict=True)):
            several = trees_by(orders[0], packed)
            if _busiest(several, wires) < _busiest(first, wires) * (1 - TUNING.enough):
                exchanges, first = packed, several
        search = _Search(topology, collective, wires, self, stop, few_roots=grid.few_roots)
        search.cut(first)
        if collective == "all_reduce" and not grid.few_roots and not search.is_content():
            several = [first, *(trees_by(order, exchanges) for order in orders[1:])]
            for trees in _divided(grid, several, wires):
                search.cut(trees)
        return search


def _busiest(trees: Composed, wires: Wires) -> float:
    """[s] for which a byte of the gradient holds the busiest link."""
    return float(link_seconds(trees, wires).mean(axis=0).max())


def _divided(grid: Grid, several: list[Composed], wires: Wires) -> Iterator[Composed]:
    """Parts of several orders with shares that take less and less time on the busiest link.

    Equal ones of all roots; and of all that have one place in their smallest groups, such as those
    with a card on one rail. Those that gain nothing are left out.
    """
    servers = grid.topology.num_servers
    held = [link_seconds(one, wires) for one in several]
    before = float(held[0].mean(axis=0).max())
    for kind in (np.zeros(servers, np.int64), grid.place[:, 0]):
        count = np.bincount(kind)
        columns = [
            np.stack([each[kind == k].mean(axis=0) for k in range(len(count))]) for each in held
        ]
        shares, seconds = least_time_shares(np.concatenate(columns))
        if seconds < before * (1 - TUNING.enough):
            before = seconds
            of_root = (shares.reshape(len(several), -1) / count * servers)[:, kind]
            yield joined(
                several,
                [
                    one.share * weight[one.parts.root]
                    for one, weight in zip(several, of_root, strict=True)
                ],
            )


@dataclasses.dataclass(frozen=True, eq=False)
class _Cut:
    """Pieces, and when their transfers start."""

    trees: Composed
    part: NDArray[np.int64]
    """[P] part of each piece."""
    share: NDArray[np.float64]
    """[P] of the gradient."""
    rank: NDArray[np.int64]
    """[P] place in the sequence."""
    start: NDArray[np.float64]
    """[P·2·N] see `play_by_priority`."""
    seconds: float


class _Search:
    """Trees and numbers of chunks that have been tried, and the best of them."""

    def __init__(
        self,
        topology: Topology,
        collective: Collective,
        wires: Wires,
        options: Hierarchical,
        stop: Stop,
        *,
        few_roots: bool,
    ) -> None:
        self._topology = topology
        self._collective: Collective = collective
        self._options, self._stop, self._few_roots = options, stop, few_roots
        self._gradient_bytes = options.gradient_bytes
        if math.isinf(self._gradient_bytes):
            nothing = np.zeros(len(wires.rate))
            wires = wires._replace(overhead=nothing, latency=nothing)
            self._gradient_bytes = float(wires.bandwidth.max())
        self._wires = wires
        self._stages = np.array([collective != "all_gather", collective != "reduce_scatter"])
        self._best: _Cut | None = None

    @property
    def seconds(self) -> float:
        """Of the best."""
        return math.inf if self._best is None else self._best.seconds

    def is_content(self, excess: float = TUNING.enough) -> bool:
        """Whether no trees could take much less time, or none is left to look for others.

        Args:
            excess: over the least time of any trees, relative, that is not much.
        """
        if self._stop.reached():
            return True
        least = throughput(self._topology, "all_reduce", overlap=True).seconds(self._gradient_bytes)
        return self.seconds <= least * (1 + excess)

    def cut(self, trees: Composed) -> None:
        """Cuts trees' parts into more and more chunks for as long as that is worth it."""
        fastest, patience = math.inf, TUNING.patience
        for chunks in self._counts(trees):
            begun = clock.now()
            cut = self._played(trees, chunks)
            better = cut.seconds < fastest * (1 - TUNING.min_gain)
            patience = TUNING.patience if better else patience - 1
            fastest = min(fastest, cut.seconds)
            if cut.seconds < self.seconds * (1 - TUNING.slack):
                self._best = cut
            next_s = 2 * (clock.now() - begun)  # the next has twice as many chunks
            if patience <= 0 or next_s > self._stop.seconds_left:
                break

    def _counts(self, trees: Composed) -> list[int]:
        """Numbers of chunks to try, in this order."""
        if self._options.chunks is not None:
            return [self._options.chunks]
        if math.isinf(self._options.gradient_bytes):
            return [TUNING.chunks]
        if self._few_roots:
            pieces = TUNING.max_chunk_transfers // (2 * self._topology.num_servers)
            return [max(1, max(TUNING.few_root_pieces, pieces) // len(trees.share))]
        per_chunk = len(trees.share) * self._topology.num_servers * int(self._stages.sum())
        most = min(TUNING.max_chunks, max(1, TUNING.max_transfers // per_chunk))
        return [1 << k for k in range(most.bit_length())]

    def _played(self, trees: Composed, chunks: int) -> _Cut:
        """The faster one of pieces of one size, and of exact shares where those are others."""
        count = np.rint(trees.share * chunks * len(trees.share)).astype(np.int64)
        alike = self._of_counts(trees, count, np.ones(len(count)))
        count = np.maximum(count, 1)
        exact = trees.share / count
        if np.ptp(exact) < EQUAL * exact.max():
            return alike
        return min(alike, self._of_counts(trees, count, exact), key=lambda cut: cut.seconds)

    def _of_counts(
        self, trees: Composed, count: NDArray[np.int64], size: NDArray[np.float64]
    ) -> _Cut:
        """So many pieces of each part, of some relative size; each part's spread evenly."""
        part = np.repeat(np.arange(len(count)), count)
        number = np.arange(len(part)) - np.repeat(np.cumsum(count) - count, count)
        when = (number + 0.5) / count[part]
        sequence = np.argsort(when, kind="stable")
        part, when = part[sequence], when[sequence]
        share = size[part] / size[part].sum()
        turns = int(trees.turn.max()) + 1
        place = np.unique(when, return_inverse=True)[1].reshape(-1) * turns + trees.turn[part]
        # Copies of a chunk are as urgent as reduces of the next one.
        rank = np.stack([place, place + 1]) * trees.keys
        start, seconds = play_by_priority(
            trees.parts,
            self._wires,
            part,
            share * self._gradient_bytes,
            rank,
            self._stages,
            math.inf,
        )
        return _Cut(trees, part, share, place, start, seconds)

    def schedule(self) -> Schedule:
        """Of the best, transfers in the order in which they start, in rounds that keep it."""
        from gradweave.schedulers.kernels.ordered_rounds import rounds_in_order

        best = self._best
        assert best is not None
        topology, parts, wires = self._topology, best.trees.parts, self._wires
        servers, part, start = topology.num_servers, best.part, best.start
        order = np.argsort(start, kind="stable")[: int(np.isfinite(start).sum())]
        row, server = np.divmod(order, servers)
        piece, stage = np.divmod(row, 2)
        hop = parts.hop[stage, part[piece], server].astype(np.int64)
        above = parts.parent[part[piece], server].astype(np.int64)
        source, target = np.where(stage, above, server), np.where(stage, server, above)
        pieces = len(part)
        rounds = rounds_in_order(
            wires.links,
            wires.first,
            hop,
            source * pieces + piece,
            target * pieces + piece,
            servers * pieces,
            len(topology.source),
        )
        links, first = take_rows(wires.links, wires.first, hop)
        offsets = first + np.arange(len(first))
        nodes = np.empty(offsets[-1], np.int64)
        nodes[offsets[:-1]] = topology.servers[source]
        inside = np.ones(len(nodes), bool)
        inside[offsets[:-1]] = False
        nodes[inside] = topology.target[links]
        share = np.rint(best.share * DENOMINATOR)
        return Schedule(
            topology=topology,
            collective=self._collective,
            root=topology.servers[parts.root[part]],
            round=rounds,
            piece=piece,
            source=topology.servers[source],
            target=topology.servers[target],
            op=np.where(stage, COPY, REDUCE),
            route_nodes=nodes,
            route_offsets=offsets,
            shares=share.astype(np.int64) if np.ptp(share) else None,
        )
