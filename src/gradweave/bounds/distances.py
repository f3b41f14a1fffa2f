"""Least sums of links' costs between nodes and servers."""

import numpy as np
from numpy.typing import NDArray

from gradweave.topology.topology import Floats, Integers


def node_distances(
    servers: Integers, cost: Floats, ends: tuple[Integers, Integers], nodes: int
) -> NDArray[np.float64]:
    """[V, S] least sum of the links' costs from each node to some servers, by any way.

    Bellman and Ford's algorithm for all servers at once: as many passes over the links as the
    longest of these ways has links.

    Args:
        servers: [S] nodes.
        cost: [L] of each link direction; infinite where it may not be used.
        ends: [L] nodes that links begin and end at; exchanged, ways lead from the servers.
        nodes: V.
    """
    start, end = ends
    least = np.full((nodes, len(servers)), np.inf)
    least[servers, np.arange(len(servers))] = 0.0
    while True:
        shorter = least.copy()
        np.minimum.at(shorter, start, least[end] + cost[:, None])
        if (shorter == least).all():
            return least
        least = shorter
