"""Shortest distances between nodes and servers under given link costs."""

import numpy as np
from numpy.typing import NDArray

from gradweave.topology.topology import Floats, Integers


def node_distances(
    servers: Integers, cost: Floats, ends: tuple[Integers, Integers], nodes: int
) -> NDArray[np.float64]:
    """[V, S] minimum sum of link costs from each node to each of some servers, over any path.

    Bellman and Ford's algorithm for all servers in parallel. It takes as many passes over the links
    as the longest of these paths has links.

    Args:
        servers: [S] nodes.
        cost: [L] cost of each link direction; infinite if it must not be used.
        ends: [L] source and target nodes of the links; exchange them for paths from the servers.
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
