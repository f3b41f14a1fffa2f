"""All-reduce by groups: reduce-scatter inside, all-reduce across, all-gather inside, in pieces."""

import dataclasses
import math
from collections.abc import Iterator
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gradweave.bounds import throughput
from gradweave.common import clock
from gradweave.common.stop import Stop
from gradweave.errors import OptionError
from gradweave.schedulers.grid.exchange import (
    Exchange,
    exchanges_of,
    hops_of,
    packed_exchanges,
)
from gradweave.schedulers.grid.grid import Grid
from gradweave.schedulers.grid.shares import least_time_shares
from gradweave.schedulers.grid.trees import (
    Composed,
    composed,
    joined,
    link_seconds,
    orders_of,
    slow_first,
)
from gradweave.schedulers.grid.tuning import TUNING
from gradweave.schedulers.kernels.precedence import Dependencies
from gradweave.schedulers.kernels.wires import Wires, wires_over
from gradweave.schedulers.ordering.cuts import integer_shares, while_it_pays
from gradweave.schedulers.ordering.list_scheduling import order_of
from gradweave.schedulers.ordering.list_scheduling_kernel import dispatch
from gradweave.schedulers.problem import number_within
from gradweave.schedulers.scheduler import Scheduler, Traits, check_counts
from gradweave.schedules.schedule import COPY, REDUCE, Collective, Schedule
from gradweave.topology.topology import Topology

EQUAL = 1e-6
"""Relative difference up to which shares count as equal."""


@dataclasses.dataclass(frozen=True)
class Hierarchical(Scheduler):
    """All-reduce over groups of servers, found from the links: inside, across, inside, pipelined.

    Servers are places of a grid, with one dimension inside the smallest groups and one for each
    level of groups. A piece's tree reduces along one dimension after the other: first inside a
    group, then across groups between servers at the same place. Its all-gather goes back the same
    way. Pieces follow each other, so that links inside and across groups are busy at the same time.
    If the links inside are scarcer, a part of the gradient takes the dimensions in another order;
    if some link is slow, its servers root less.

    Source: Cho, Saxena, Kung et al., "BlueConnect: decomposing all-reduce for deep learning on
        heterogeneous network hierarchy", 2019; Rashidi et al., "Themis", ISCA 2022.
    """

    name: ClassVar[str] = "hierarchical"

    gradient_bytes: float = math.inf
    """Gradient size to plan for; if infinite, latencies do not count."""
    chunks: int | None = None
    """Number of chunks of each server's part; if not given, the fastest number found."""
    orders: int | None = None
    """Number of orders of the dimensions that may be used, inside first; by default all that
    help."""

    def __post_init__(self) -> None:
        if not self.gradient_bytes > 0:
            raise OptionError(
                f"hierarchical: gradient_bytes: expected more than 0, got {self.gradient_bytes:g}"
            )
        check_counts(self, "chunks", "orders")

    @property
    def traits(self) -> Traits:
        """The strategy's traits with these options."""
        return Traits(own_pieces=True, takes_size=math.isinf(self.gradient_bytes), by_groups=True)

    def make(self, topology: Topology, collective: Collective, seed: int, stop: Stop) -> Schedule:
        """Makes the schedule; `schedule` verifies it."""
        grid = Grid.of(topology)
        whole, chunk_transfers = collective == "all_reduce", 2 * topology.num_servers**2
        if whole and chunk_transfers > TUNING.max_chunk_transfers:
            grid = grid.split(TUNING.groups_with_roots)
        begun = clock.now()
        best = self._search(grid, collective, stop)
        # A second search takes about as long as the first, and may overrun the limit by half of
        # that.
        in_time = clock.now() - begun < 2 * stop.seconds_left
        few_chunks = TUNING.few_chunks * chunk_transfers > TUNING.max_transfers
        enough = grid.few_roots or best.is_content(TUNING.few_roots_worth)
        if whole and few_chunks and in_time and not enough:
            few = grid.split(TUNING.groups_with_more_roots)
            if few.few_roots:
                best = min(best, self._search(few, collective, stop), key=lambda one: one.seconds)
        return best.schedule()

    def _search(self, grid: Grid, collective: Collective, stop: Stop) -> "_Search":
        """Searches the trees of a grid and their cuts into chunks."""
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
    """[s] for which a byte of the gradient occupies the busiest link."""
    return float(link_seconds(trees, wires).mean(axis=0).max())


def _divided(grid: Grid, several: list[Composed], wires: Wires) -> Iterator[Composed]:
    """Combinations of several orders with ever less time on the busiest link.

    First with equal shares for all roots; then with equal shares for roots at the same place in
    their smallest groups, such as servers with a card on one rail. Combinations that gain nothing
    are skipped.
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
                    one.share * weight[one.root]
                    for one, weight in zip(several, of_root, strict=True)
                ],
            )


@dataclasses.dataclass(frozen=True, eq=False)
class _Cut:
    """Pieces and the starts of their transfers."""

    trees: Composed
    part: NDArray[np.int64]
    """[P] part of each piece."""
    share: NDArray[np.float64]
    """[P] share of the gradient."""
    start: NDArray[np.float64]
    """[P·stages·N] start of each transfer, infinite for those of roots."""
    seconds: float


class _Search:
    """A search over trees and numbers of chunks, and the best result so far."""

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
        self._stages = {"reduce_scatter": [0], "all_gather": [1]}.get(collective, [0, 1])
        self._best: _Cut | None = None

    @property
    def seconds(self) -> float:
        """Seconds of the best result."""
        return math.inf if self._best is None else self._best.seconds

    def is_content(self, excess: float = TUNING.enough) -> bool:
        """Whether no trees could be much faster, or there is no time left to look for others.

        Args:
            excess: relative gap to the lower bound that is good enough.
        """
        if self._stop.reached():
            return True
        least = throughput(self._topology, "all_reduce", overlap=True).seconds(self._gradient_bytes)
        return self.seconds <= least * (1 + excess)

    def cut(self, trees: Composed) -> None:
        """Cuts the trees' parts into more and more chunks, for as long as that pays."""
        dependent = trees.dependencies(self._stages)

        def seconds_of(chunks: int, _: float) -> float:
            cut = self._played(trees, dependent, chunks)
            if cut.seconds < self.seconds * (1 - TUNING.slack):
                self._best = cut
            return cut.seconds

        while_it_pays(self._counts(trees), seconds_of, min_gain=TUNING.min_gain, stop=self._stop)

    def _counts(self, trees: Composed) -> list[int]:
        """Numbers of chunks to try, in this order."""
        if self._options.chunks is not None:
            return [self._options.chunks]
        if math.isinf(self._options.gradient_bytes):
            return [TUNING.chunks]
        if self._few_roots:
            pieces = TUNING.max_chunk_transfers // (2 * self._topology.num_servers)
            return [max(1, max(TUNING.few_root_pieces, pieces) // len(trees.share))]
        per_chunk = len(trees.share) * self._topology.num_servers * len(self._stages)
        most = min(TUNING.max_chunks, max(1, TUNING.max_transfers // per_chunk))
        return [1 << k for k in range(most.bit_length())]

    def _played(self, trees: Composed, dependent: Dependencies, chunks: int) -> _Cut:
        """The faster of pieces of equal size and pieces of exact shares, if they differ."""
        count = np.rint(trees.share * chunks * len(trees.share)).astype(np.int64)
        # A part smaller than half a piece is left out here; with exact shares it gets a small
        # piece.
        alike = self._of_counts(trees, dependent, count, np.ones(len(count)))
        count = np.maximum(count, 1)
        exact = trees.share / count
        if np.ptp(exact) < EQUAL * exact.max():
            return alike
        return min(
            alike, self._of_counts(trees, dependent, count, exact), key=lambda cut: cut.seconds
        )

    def _of_counts(
        self,
        trees: Composed,
        dependent: Dependencies,
        count: NDArray[np.int64],
        size: NDArray[np.float64],
    ) -> _Cut:
        """`count` pieces of each part, of some relative size; a part's pieces spread evenly."""
        part = np.repeat(np.arange(len(count)), count)
        when = (number_within(part) + 0.5) / count[part]
        sequence = np.argsort(when, kind="stable")
        part, when = part[sequence], when[sequence]
        share = size[part] / size[part].sum()
        turns = int(trees.turn.max()) + 1
        place = np.unique(when, return_inverse=True)[1].reshape(-1) * turns + trees.turn[part]
        # Copies of a chunk are as urgent as reductions of the next chunk.
        late = np.array(self._stages)[:, None]
        rank = (place[:, None, None] + late) * trees.keys + trees.key[:, self._stages][part]
        hop, wires = dependent.hop[part], self._wires
        bytes_each = share * self._gradient_bytes
        hold_s = wires.overhead[hop] + bytes_each[:, None] / wires.rate[hop]
        order = order_of(rank.reshape(-1))
        start, seconds, _ = dispatch(dependent, wires, part, hold_s.reshape(-1), order)
        return _Cut(trees, part, share, start, seconds)

    def schedule(self) -> Schedule:
        """The best result as a schedule: transfers by start, in rounds that keep their order."""
        from gradweave.schedulers.ordering.lower import lower

        best = self._best
        assert best is not None
        topology, trees, wires = self._topology, best.trees, self._wires
        servers, part, start = topology.num_servers, best.part, best.start
        # Without the transfers of roots, over no link, whose start is infinite.
        order = np.argsort(start, kind="stable")[: int(np.isfinite(start).sum())]
        row, server = np.divmod(order, servers)
        piece, stage = np.divmod(row, len(self._stages))
        stage += self._stages[0]
        hop = trees.hop[part[piece], stage, server].astype(np.int64)
        shares = integer_shares(best.share)
        return lower(
            topology,
            wires.links,
            wires.first,
            hop,
            piece=piece,
            op=np.where(stage, COPY, REDUCE),
            root=trees.root[part],
            collective=self._collective,
            shares=shares if np.ptp(shares) else None,
        )
