"""All-reduce by groups: reduce-scatter inside, all-reduce across, all-gather inside, in pieces."""

import dataclasses
import math
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gradweave import clock
from gradweave.bounds import throughput
from gradweave.errors import OptionError
from gradweave.schedule.schedule import COPY, REDUCE, Collective, Schedule, take_rows
from gradweave.schedulers.hierarchical.exchange import exchanges_of, hops_of
from gradweave.schedulers.hierarchical.grid import Grid
from gradweave.schedulers.hierarchical.priority_kernel import Wires, play_by_priority
from gradweave.schedulers.hierarchical.shares import least_time_shares
from gradweave.schedulers.hierarchical.trees import (
    Composed,
    composed,
    joined,
    link_seconds,
    orders_of,
    wires_of,
)
from gradweave.schedulers.hierarchical.tuning import TUNING
from gradweave.schedulers.scheduler import Scheduler, Traits, check_counts
from gradweave.stop import Stop
from gradweave.topology.topology import Topology

DENOMINATOR = 1 << 24
"""Shares are multiples of about one part in so many."""


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
        return Traits(
            own_pieces=True, takes_size=math.isinf(self.gradient_bytes), by_groups=True
        )

    def _make(self, topology: Topology, collective: Collective, seed: int, stop: Stop) -> Schedule:
        grid = Grid.of(topology)
        hops = hops_of(grid)
        exchanges = exchanges_of(grid, hops, stop)
        wires = wires_of(topology, hops)
        orders = orders_of(len(grid.sizes))[: self.orders]
        first = composed(grid, hops, exchanges, orders[0])
        search = _Search(topology, collective, wires, self, stop)
        search.cut(first)
        if collective == "all_reduce" and not search.is_content:
            others = [composed(grid, hops, exchanges, order) for order in orders[1:]]
            for trees in _divided(topology, [first, *others], wires):
                search.cut(trees)
        return search.schedule()


def _divided(topology: Topology, several: list[Composed], wires: Wires) -> list[Composed]:
    """Parts of several orders: with equal shares of all roots, and with those that take least time.

    The second where that takes less, and roots are not too many to find out.
    """
    held = [link_seconds(one, wires) for one in several]
    by_order, equal_s = least_time_shares(np.stack([each.mean(axis=0) for each in held]))
    equal = [one.share * weight for one, weight in zip(several, by_order, strict=True)]
    divided = [joined(several, equal)] if by_order[0] < 1 - TUNING.slack else []
    if topology.num_servers <= TUNING.max_free_roots:
        free, free_s = least_time_shares(np.concatenate(held))
        if free_s < equal_s * (1 - TUNING.enough):
            of_root = free.reshape(len(several), -1)
            shares = [
                one.share * weight[one.parts.root] * topology.num_servers
                for one, weight in zip(several, of_root, strict=True)
            ]
            divided.append(joined(several, shares))
    return divided


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
    ) -> None:
        self._topology, self._collective = topology, collective
        self._options, self._stop = options, stop
        self._gradient_bytes = options.gradient_bytes
        if math.isinf(self._gradient_bytes):
            nothing = np.zeros(len(wires.rate))
            wires = wires._replace(overhead=nothing, latency=nothing)
            self._gradient_bytes = float(wires.bandwidth.max())
        self._wires = wires
        self._stages = np.array([collective != "all_gather", collective != "reduce_scatter"])
        self._best: _Cut | None = None

    @property
    def is_content(self) -> bool:
        """Whether no trees could take much less time, or none is left to look for others."""
        if self._stop.reached():
            return True
        least = throughput(self._topology, "all_reduce", overlap=True).seconds(self._gradient_bytes)
        return self._best is not None and self._best.seconds <= least * (1 + TUNING.enough)

    def cut(self, trees: Composed) -> None:
        """Cuts trees' parts into more and more chunks for as long as that is worth it."""
        fastest, patience = math.inf, TUNING.patience
        for chunks in self._counts(trees):
            begun = clock.now()
            cut = self._played(trees, chunks)
            better = cut.seconds < fastest * (1 - TUNING.min_gain)
            patience = TUNING.patience if better else patience - 1
            fastest = min(fastest, cut.seconds)
            if self._best is None or cut.seconds < self._best.seconds * (1 - TUNING.slack):
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
        per_chunk = len(trees.share) * self._topology.num_servers * int(self._stages.sum())
        most = min(TUNING.max_chunks, max(1, TUNING.max_transfers // per_chunk))
        return [1 << k for k in range(most.bit_length())]

    def _played(self, trees: Composed, chunks: int) -> _Cut:
        """Pieces of about one size, those of each order spread evenly over the sequence."""
        of_order = np.bincount(trees.order, trees.share)
        count = np.maximum(np.rint(of_order * chunks), of_order > 0).astype(np.int64)
        part = np.repeat(np.arange(len(trees.share)), count[trees.order])
        number = np.arange(len(part)) - np.repeat(
            np.cumsum(count[trees.order]) - count[trees.order], count[trees.order]
        )
        when = (number + 0.5) / count[trees.order[part]]
        sequence = np.argsort(when, kind="stable")
        part, when = part[sequence], when[sequence]
        # With whole chunks of each order all pieces are of one size, and links never wait.
        share = trees.share[part] / of_order[trees.order[part]] / count.sum()
        turns = int(trees.turn.max()) + 1
        place = np.unique(when, return_inverse=True)[1].reshape(-1) * turns + trees.turn[part]
        # Copies of a chunk are as urgent as reduces of the next one.
        rank = np.stack([place, place + 1]) * trees.keys
        start, seconds = play_by_priority(
            trees.parts,
            self._wires,
            part,
            share / share.sum() * self._gradient_bytes,
            rank,
            self._stages,
            math.inf,
        )
        return _Cut(trees, part, share / share.sum(), place, start, seconds)

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
            shares=share.astype(np.int64) if np.ptp(best.share) > 1e-12 else None,
        )
