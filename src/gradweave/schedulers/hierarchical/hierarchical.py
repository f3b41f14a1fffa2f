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
        several = [composed(grid, hops, exchanges, orders[0])]
        shares = [several[0].share]
        if collective == "all_reduce" and not _is_fast_enough(topology, several[0], wires):
            several += [composed(grid, hops, exchanges, order) for order in orders[1:]]
            shares = _shares(topology, several, wires)
        return _Search(topology, collective, joined(several, shares), wires, self, stop).run()


def _is_fast_enough(topology: Topology, one: Composed, wires: Wires) -> bool:
    """Whether no trees would hold the busiest link for a shorter time."""
    held = one.share @ _of_parts(one, link_seconds(one, wires, (True, True)))
    least = 1 / float(throughput(topology, "all_reduce", overlap=True).bytes_per_s)
    return float(held.max()) <= least * (1 + TUNING.enough)


def _of_parts(one: Composed, of_roots: NDArray) -> NDArray:
    return of_roots[one.parts.root]


def _shares(
    topology: Topology, several: list[Composed], wires: Wires
) -> list[NDArray[np.float64]]:
    """[parts] of each order: what takes least time, by root where there are not too many."""
    held = [link_seconds(one, wires, (True, True)) for one in several]
    within = [one.share / np.bincount(one.parts.root, one.share)[one.parts.root] for one in several]
    if topology.num_servers > TUNING.max_free_roots:
        share, _ = least_time_shares(np.stack([each.mean(axis=0) for each in held]))
        return [one.share * weight for one, weight in zip(several, share, strict=True)]
    share, _ = least_time_shares(np.concatenate(held))
    by_order = share.reshape(len(several), -1)
    return [
        part * weight[one.parts.root]
        for one, part, weight in zip(several, within, by_order, strict=True)
    ]


class _Search:
    """Numbers of chunks that have been tried, and the best of them."""

    def __init__(
        self,
        topology: Topology,
        collective: Collective,
        trees: Composed,
        wires: Wires,
        options: Hierarchical,
        stop: Stop,
    ) -> None:
        self._topology, self._collective, self._trees = topology, collective, trees
        self._options, self._stop = options, stop
        self._gradient_bytes = options.gradient_bytes
        if math.isinf(self._gradient_bytes):
            nothing = np.zeros(len(wires.rate))
            wires = wires._replace(overhead=nothing, latency=nothing)
            self._gradient_bytes = float(wires.bandwidth.max())
        self._wires = wires
        self._stages = np.array([collective != "all_gather", collective != "reduce_scatter"])

    def run(self) -> Schedule:
        """The schedule in which the least time is taken."""
        best, fastest, patience = None, math.inf, TUNING.patience
        for chunks in self._counts():
            begun = clock.now()
            start, taken = self._played(chunks, fastest * (1 + TUNING.min_gain))
            better = taken < fastest * (1 - TUNING.min_gain)
            patience = TUNING.patience if better else patience - 1
            if best is None or taken < fastest:
                best, fastest = (chunks, start), taken
            next_s = 2 * (clock.now() - begun)  # the next has twice as many chunks
            if patience <= 0 or next_s > self._stop.seconds_left:
                break
        assert best is not None
        return self._schedule(*best)

    def _counts(self) -> list[int]:
        """Numbers of chunks to try, in this order."""
        if self._options.chunks is not None:
            return [self._options.chunks]
        if math.isinf(self._options.gradient_bytes):
            return [TUNING.chunks]
        per_chunk = len(self._trees.share) * self._topology.num_servers * int(self._stages.sum())
        most = min(TUNING.max_chunks, max(1, TUNING.max_transfers // per_chunk))
        return [1 << k for k in range(most.bit_length())]

    def _pieces(self, chunks: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """[P] part of each piece, and its chunk."""
        parts = len(self._trees.share)
        return np.tile(np.arange(parts), chunks), np.repeat(np.arange(chunks), parts)

    def _played(self, chunks: int, until: float) -> tuple[NDArray[np.float64], float]:
        part, chunk = self._pieces(chunks)
        trees = self._trees
        turns = int(trees.turn.max()) + 1
        # Copies of a chunk are as urgent as reduces of the next one.
        rank = chunk * turns + trees.turn[part]
        rank = np.stack([rank, rank + 1]) * trees.keys
        size = trees.share[part] / chunks * self._gradient_bytes
        return play_by_priority(
            trees.parts, self._wires, part, size, rank, self._stages, until
        )

    def _schedule(self, chunks: int, start: NDArray[np.float64]) -> Schedule:
        """Transfers in the order in which they start, in rounds that keep it."""
        from gradweave.schedulers.kernels.ordered_rounds import rounds_in_order

        topology, parts, wires = self._topology, self._trees.parts, self._wires
        servers, (part, _) = topology.num_servers, self._pieces(chunks)
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
        share = np.rint(self._trees.share[part] / self._trees.share.max() / chunks * DENOMINATOR)
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
