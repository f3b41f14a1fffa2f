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
    def of(topology: Topology, *, nearest: int | None = None) -> "Hops":
        """The pinned shortest switch-only route between each two servers that have one.

        Args:
            topology: the network.
            nearest: keep the hops to this many nearest servers only, ties by rank from the server
                on; all if not given.
        """
        toward, lengths = switch_only_trees(topology)
        lengths = lengths[:, topology.servers]  # [to, from]
        to, source = np.nonzero(lengths > 0)
        if nearest is not None:
            count = topology.num_servers
            order = np.lexsort(((to - source) % count, lengths[to, source], source))
            place = np.arange(len(order)) - np.searchsorted(source[order], source[order])
            kept = np.sort(order[place < nearest])
            to, source = to[kept], source[kept]
        nodes, offsets = follow(toward[to], topology.servers[source], topology.servers[to])
        starts = np.delete(np.arange(len(nodes)), offsets[1:] - 1)
        links = topology.find_links(nodes[starts], nodes[starts + 1])
        return Hops(source, to, nodes, offsets, links)

    def lanes(self, capacity: NDArray, most: int) -> NDArray[np.int64]:
        """Hops by number, each as often as its narrowest link can carry it in a round.

        Args:
            capacity: [L] transfers per round of each link direction.
            most: lanes of one hop at most.
        """
        narrowest = np.minimum.reduceat(np.asarray(capacity)[self.links], self.first_link[:-1])
        return np.repeat(np.arange(len(self.source)), np.minimum(narrowest, most))
