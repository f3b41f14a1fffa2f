"""Shortest routes by number of links, ties broken by a fixed rule, and k shortest routes.

**The tie rule.** Among the routes with the fewest links, each node takes the route whose scarcest
link is the widest; ties go to the lowest latency (overheads included), then to the lowest total
time of a byte over all links. With `Topology.message_bytes`, the time of such a message is compared
first. Every node's route continues on the route of the node after it, as in a switch's table. If
all of that is equal, as with identical links, the shortest-path tree of a root is the tree that a
first-in first-out breadth-first search finds when it visits each node's neighbours in ascending
order of id: a node's parent is the neighbour that was discovered first. On BCube this gives
dimension order (highest level first).
"""

import math
from collections.abc import Iterator
from itertools import groupby, islice

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradweave.errors import TopologyError
from gradweave.topology.topology import Integers, Topology

MOST_ALIKE = 256
"""Number of equally short routes between two servers up to which all are compared."""


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
    if not _alike(topology):
        return _widest(topology, np.zeros(topology.num_nodes, np.bool_), roots)[0]
    return breadth_first_parents(topology.first_link, topology.target, roots)


def _alike(topology: Topology) -> bool:
    """Whether all links are identical, so that only ids decide."""
    columns = (topology.bandwidth_bytes_per_s, topology.latency_s, topology.overhead_s)
    return all(column.min() == column.max() for column in columns)


def _costs(topology: Topology) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """[L] time of the bytes on each link direction, [L] its latency, and the latency's weight."""
    per_byte, latency = 1 / topology.bandwidth_bytes_per_s, topology.latency_s + topology.overhead_s
    if math.isinf(topology.message_bytes):
        return per_byte, latency, 0.0
    return per_byte * topology.message_bytes, latency, 1.0


def _widest(
    topology: Topology, stops: NDArray[np.bool_], roots: NDArray[np.int32]
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    from gradweave.topology.breadth_first import widest_parents

    held, latency, weight = _costs(topology)
    back = topology.opposite
    return widest_parents(
        topology.first_link, topology.target, stops, held[back], latency[back], weight, roots
    )


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

    Equally short routes are sorted by the tie rule of this module, widest links first; beyond
    `MOST_ALIKE` of them, the rest follow in the order found.

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
        if not _alike(topology):
            routes = _widest_first(topology, routes)
        return [tuple(route) for route in islice(routes, k)]
    except nx.NetworkXNoPath:
        return []


def _widest_first(topology: Topology, routes: Iterator[list[int]]) -> Iterator[list[int]]:
    """The routes, ascending in length, with equally short ones sorted by the tie rule."""
    for length, group in groupby(routes, key=len):
        others = iter(group)
        compared = list(islice(others, MOST_ALIKE))
        offsets = np.arange(len(compared) + 1) * length
        for place in preference(topology, np.array(compared).ravel(), offsets).tolist():
            yield compared[place]
        yield from others


def preference(topology: Topology, nodes: NDArray, offsets: NDArray) -> NDArray[np.int64]:
    """[M] positions of the routes from best to worst by the tie rule, ignoring their length.

    Equal routes keep their order, as do all routes if all links are identical.

    Args:
        topology: the network.
        nodes: the routes' nodes, one route after the other, both ends included.
        offsets: [M+1] where each route starts.
    """
    if _alike(topology):
        return np.arange(len(offsets) - 1)
    held, latency, weight = _costs(topology)
    links = topology.links_along(nodes, offsets)
    first = (offsets - np.arange(len(offsets)))[:-1]
    late, total = (np.add.reduceat(column[links], first) for column in (latency, held))
    time = np.maximum.reduceat(held[links], first) + weight * late
    # Non-negative floats sort like their bits; dropping the last bits makes sums in another order
    # equal.
    return np.lexsort([key.view(np.int64) + (1 << 19) >> 20 for key in (total, late, time)])


def switch_only_trees(
    topology: Topology, roots: NDArray | None = None, *, targets: Integers | None = None
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Finds the shortest routes towards each root that pass through switches only.

    Args:
        topology: the network.
        roots: [R] node ids; all servers if not given.
        targets: [L] ``topology.target`` with each node's neighbours in another order, which then
            breaks all ties: with many such orders every shortest route appears.

    Returns:
        [R, V] the next node towards each root and [R, V] the number of links to it, by the tie rule
        of this module; both −1 where every path passes through another server, the first also at
        the root itself.
    """
    from gradweave.topology.breadth_first import switch_only_parents

    roots = topology.servers if roots is None else np.asarray(roots, np.int32)
    if targets is None and not _alike(topology):
        return _widest(topology, topology.is_server, roots)
    targets = topology.target if targets is None else targets
    return switch_only_parents(topology.first_link, targets, topology.is_server, roots)


def follow(
    toward_root: NDArray, starts: NDArray, stop: NDArray, tree: NDArray | None = None
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Follows routes along trees.

    Args:
        toward_root: [R, V] the next node towards the end, one row per tree.
        starts: [M] where each route starts.
        stop: [M] where each route ends.
        tree: [M] the tree that each route follows; if not given, each route has a separate tree.

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


def routes_between(
    topology: Topology, source: NDArray, target: NDArray
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Routes between pairs: over switches only if possible, else through servers.

    Args:
        topology: the network.
        source: [M] servers.
        target: [M] servers.

    Returns:
        The routes' nodes, concatenated, and their offsets [M+1].
    """
    distinct, row = np.unique(target, return_inverse=True)
    direct, lengths = switch_only_trees(topology, distinct)
    has_direct = lengths[row, source] >= 0
    toward = direct[row]
    if not has_direct.all():
        through = shortest_path_trees(topology, distinct)
        toward = np.where(has_direct[:, None], toward, through[row])
    return follow(toward, source, target)


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
