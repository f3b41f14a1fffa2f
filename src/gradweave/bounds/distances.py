"""Shortest distances between nodes and servers under given link costs."""

import numpy as np
from numpy.typing import NDArray

from gradweave.topology.topology import Floats, Integers


def node_distances(
    servers: Integers, cost: Floats, ends: tuple[Integers, Integers], nodes: int
) -> NDArray[np.float64]:
    """[V, S] minimum sum of link costs from each node to each of some servers, over any path.

    Args:
        servers: [S] nodes.
        cost: [L] cost of each link direction; infinite if it must not be used.
        ends: [L] source and target nodes of the links; exchange them for paths from the servers.
        nodes: V.
    """
    least = np.full((nodes, len(servers)), np.inf)
    least[servers, np.arange(len(servers))] = 0.0
    return shortened(least, cost, ends)


def shortened(
    least: NDArray[np.float64], cost: Floats, ends: tuple[Integers, Integers]
) -> NDArray[np.float64]:
    """[V, S] minimum cost from each node, over any path, to a node at its initial cost.

    Bellman and Ford's algorithm for all columns in one pass. It takes as many passes over the links
    as the longest of these paths has links. Changes the initial costs in place, and returns them.

    Args:
        least: [V, S] initial cost of each node; infinite if no path may end there.
        cost: [L] cost of each link direction; infinite if it must not be used.
        ends: [L] source and target nodes of the links; exchange them for paths to the nodes.
    """
    from gradweave.bounds.distances_kernel import shorten

    start, end = (np.ascontiguousarray(one, np.int64) for one in ends)
    shorten(least, np.ascontiguousarray(cost, np.float64), start, end)
    return least
