"""Candidate hops: the routes by which one server can send to another in one transfer."""

import dataclasses

import numpy as np
from numpy.typing import NDArray

from gradweave.topology.routes import follow, switch_only_trees
from gradweave.topology.topology import Topology


@dataclasses.dataclass(frozen=True, eq=False)
class Hops:
    """Routes between servers with only switches inside."""

    source: NDArray[np.int64]
    """[H] rank of the server that a hop leaves."""
    target: NDArray[np.int64]
    """[H] rank of the server that it enters."""
    route_nodes: NDArray[np.int32]
    """The routes, one after the other, both ends included."""
    route_offsets: NDArray[np.int64]
    """[H+1] where each route starts."""
    links: NDArray[np.int64]
    """Link directions of the routes, one route after the other."""

    @property
    def first_link(self) -> NDArray[np.int64]:
        """[H+1] where each hop's links start."""
        return self.route_offsets - np.arange(len(self.route_offsets))

    @staticmethod
    def of(topology: Topology, *, variants: int = 1, nearest: int | None = None) -> "Hops":
        """Shortest switch-only routes between each two servers that have one.

        Args:
            topology: the network.
            variants: how many times to look for a shortest route between two servers: once by the
                pinned tie rule, then with ties broken at random; alike ones are kept once.
            nearest: keep the hops to this many nearest servers only, ties by rank from the server
                on; all if not given.
        """
        route_tables = [_routes(*switch_only_trees(topology), topology)]
        rng = np.random.default_rng(0)
        for _ in range(variants - 1):
            route_tables.append(_routes(*_at_random(topology, rng), topology))
        width = max(table.shape[1] for table in route_tables)
        tables = [
            np.pad(t, ((0, 0), (0, width - t.shape[1])), constant_values=-1) for t in route_tables
        ]
        table = np.unique(np.concatenate(tables), axis=0) if variants > 1 else tables[0]
        lengths = (table >= 0).sum(axis=1)
        ends = table[:, 0], table[np.arange(len(table)), lengths - 1]
        source, target = (topology.rank[nodes].astype(np.int64) for nodes in ends)
        order = np.lexsort((source, target))
        if nearest is not None:
            count = topology.num_servers
            order = np.lexsort(((target - source) % count, lengths, source))
            place = np.arange(len(order)) - np.searchsorted(source[order], source[order])
            order = order[place < nearest]
        table, lengths = table[order], lengths[order]
        nodes = table[table >= 0]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        links = topology.links_along(nodes, offsets)
        return Hops(source[order], target[order], nodes, offsets, links)

    def lanes(self, capacity: NDArray, most: int) -> NDArray[np.int64]:
        """Hops by number, each as often as its narrowest link can carry it in a round.

        Args:
            capacity: [L] transfers per round of each link direction.
            most: lanes of one hop at most.
        """
        narrowest = np.minimum.reduceat(np.asarray(capacity)[self.links], self.first_link[:-1])
        return np.repeat(np.arange(len(self.source)), np.minimum(narrowest, most))


def _routes(toward: NDArray, lengths: NDArray, topology: Topology) -> NDArray[np.int32]:
    """One row of nodes per pair of servers with a route, filled up with −1."""
    to, source = np.nonzero(lengths[:, topology.servers] > 0)
    nodes, offsets = follow(toward[to], topology.servers[source], topology.servers[to])
    counts = np.diff(offsets)
    table = np.full((len(to), int(counts.max(initial=1))), -1, np.int32)
    place = np.arange(len(nodes)) - np.repeat(offsets[:-1], counts)
    table[np.repeat(np.arange(len(to)), counts), place] = nodes
    return table


def _at_random(topology: Topology, rng: np.random.Generator) -> tuple[NDArray, NDArray]:
    """As `switch_only_trees`, with each node's neighbours looked at in random order."""
    from gradweave.topology.breadth_first import switch_only_parents

    shuffled = np.lexsort((rng.random(len(topology.source)), topology.source))
    targets = topology.target[shuffled]
    targets.flags.writeable = False  # as the network's own, so that the search is compiled once
    return switch_only_parents(topology.first_link, targets, topology.is_server, topology.servers)
