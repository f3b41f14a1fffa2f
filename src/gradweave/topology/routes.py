"""Shortest routes by number of links, ties broken by a fixed rule, and k shortest routes.

**The tie rule.** The shortest-path tree of a root is the one that a first-in first-out
breadth-first search finds when it visits each node's neighbours in ascending order of id: a node's
parent is the neighbour that was discovered first. On BCube this gives dimension order (highest
level first); on every network it depends on the ids alone.
"""

from collections.abc import Iterator
from itertools import islice

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradweave.errors import TopologyError
from gradweave.topology.topology import Integers, Topology


def shortest_path_trees(topology: Topology, roots: NDArray | None = None) -> NDArray[np.int32]:
    """Finds a shortest-path tree towards each root, over servers and switches alike.

    Args:
        topology: the network.
        roots: [R] node ids; all servers if not given.

    Returns:
        [R, V] the next node from each node towards the root; −1 at the root itself.

    >>> import gradweave as gw
    >>> gw.topology.shortest_path_trees(gw.topology.ring(5), roots=[0])
    array([[-1,  0,  1,  4,  0]], dtype=int32)
    """
    from gradweave.topology.breadth_first import breadth_first_parents

    roots = topology.servers if roots is None else np.asarray(roots, np.int32)
    return breadth_first_parents(topology.first_link, topology.target, roots)


def shortest_route(topology: Topology, source: int, target: int) -> tuple[int, ...]:
    """The shortest route of the tie rule between two nodes, both included.

    It may pass through servers.

    >>> import gradweave as gw
    >>> gw.topology.shortest_route(gw.topology.star(4), 1, 3)
    (1, 4, 3)
    """
    parent = shortest_path_trees(topology, np.array([target]))[0]
    route = [source]
    while route[-1] != target:
        route.append(int(parent[route[-1]]))
    return tuple(route)


def k_shortest_routes(
    topology: Topology, source: int, target: int, k: int
) -> list[tuple[int, ...]]:
    """Up to k routes between two servers through switches only, shortest first.

    Args:
        topology: the network.
        source: server that sends.
        target: server that receives.
        k: how many routes at most.

    Returns:
        Routes, each a tuple of nodes with both ends; empty where every path passes through another
        server.

    Raises:
        TopologyError: an end is not a server, or both are the same.

    Source: Yen 1971, in networkx's ``shortest_simple_paths``.
    """
    import networkx as nx

    for end in (source, target):
        if not 0 <= end < topology.num_nodes or not topology.is_server[end]:
            raise TopologyError(f"route from {source} to {target}: {end} is not a server")
    if source == target:
        raise TopologyError(f"route from {source} to {target}: the ends must be two servers")
    inside = ~topology.is_server
    inside[[source, target]] = True
    keep = inside[topology.source] & inside[topology.target]
    graph = nx.Graph()
    graph.add_nodes_from((source, target))
    graph.add_edges_from(
        zip(topology.source[keep].tolist(), topology.target[keep].tolist(), strict=True)
    )
    routes: Iterator[list[int]] = nx.shortest_simple_paths(graph, source, target)
    try:
        return [tuple(route) for route in islice(routes, k)]
    except nx.NetworkXNoPath:
        return []


def switch_only_trees(
    topology: Topology, roots: NDArray | None = None, *, targets: Integers | None = None
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Finds the shortest routes towards each root that pass through switches only.

    Args:
        topology: the network.
        roots: [R] node ids; all servers if not given.
        targets: [L] ``topology.target`` with each node's neighbours in another order, which breaks
            ties in place of their ids.

    Returns:
        [R, V] the next node towards each root and [R, V] the number of links to it, by the tie rule
        of this module; both −1 where every path passes through another server, the first also at
        the root itself.
    """
    from gradweave.topology.breadth_first import switch_only_parents

    roots = topology.servers if roots is None else np.asarray(roots, np.int32)
    targets = topology.target if targets is None else targets
    return switch_only_parents(topology.first_link, targets, topology.is_server, roots)


def follow(
    toward_root: NDArray, starts: NDArray, stop: NDArray, tree: NDArray | None = None
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Follows routes along trees.

    Args:
        toward_root: [R, V] the next node towards the end, one row per tree.
        starts: [M] where each route starts.
        stop: [M] where it ends.
        tree: [M] the tree that each route follows; if not given, there is one for each.

    Returns:
        The routes' nodes, one route after the other, both ends included, and their offsets [M+1].
    """
    row = np.arange(len(starts)) if tree is None else tree
    walker = np.asarray(starts)
    columns = [walker]
    while (moving := walker != stop).any():
        following = np.where(moving, toward_root[row, walker], -1)
        columns.append(following)
        walker = np.where(moving, following, walker)
    table = np.stack(columns, axis=1)
    inside = table >= 0
    return table[inside].astype(np.int32), np.concatenate([[0], np.cumsum(inside.sum(axis=1))])


def server_routes(
    topology: Topology, source: ArrayLike | None = None, target: ArrayLike | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int32], NDArray[np.int64]]:
    """Routes between servers: their ranks, and nodes and offsets of the routes.

    Args:
        topology: the network.
        source: [M] ranks of those that send; every pair if not given.
        target: [M] ranks of those that receive.
    """
    if source is None or target is None:
        source, target = np.nonzero(~np.eye(topology.num_servers, dtype=bool))
    source, target = np.asarray(source, np.int64), np.asarray(target, np.int64)
    toward, length = switch_only_trees(topology)
    if (length[:, topology.servers] < 0).any():
        toward = np.where(toward >= 0, toward, shortest_path_trees(topology))
        if (length[target, topology.servers[source]] < 0).any():
            toward = shortest_path_trees(topology)
    starts, stops = topology.servers[source], topology.servers[target]
    nodes, offsets = follow(toward, starts, stops, target)
    return source, target, nodes, offsets


def hop_distances(topology: Topology) -> NDArray[np.int32]:
    """[N, N] least number of transfers from server to server, by rank.

    One transfer may pass any number of switches.

    >>> import gradweave as gw
    >>> int(gw.topology.hop_distances(gw.topology.bcube(n=3, k=1)).max())
    2
    """
    from gradweave.topology.breadth_first import server_hops

    return server_hops(topology.first_link, topology.target, topology.is_server, topology.servers)
