"""Breadth-first searches over a topology's arrays, compiled for large networks only.

On a small network Python finishes before numba would be imported.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradweave.topology.topology import Floats, Integers

FEW = 4_000
"""Roots times link directions up to which Python searches, in milliseconds."""


def _compiled_if_large(search: Callable[..., Any]) -> Callable[..., Any]:
    """Compiles a search of (first_link, target, ..., roots) when there are many links to visit."""

    @functools.cache
    def compiled() -> Callable[..., Any]:
        from gradweave.common.compiled import kernel

        return kernel(search)

    @functools.wraps(search)
    def dispatched(*arguments: Any) -> Any:
        _, target, *_, roots = arguments
        return (search if len(roots) * len(target) <= FEW else compiled())(*arguments)

    return dispatched


@_compiled_if_large
def breadth_first_parents(
    first_link: Integers, target: Integers, roots: Integers
) -> NDArray[np.int32]:
    """[R, V] the neighbour that discovered each node in a search from each root; −1 at the root."""
    nodes = len(first_link) - 1
    parents = np.full((len(roots), nodes), -1, np.int32)
    queue = np.empty(nodes, np.int32)
    for r in range(len(roots)):
        seen = np.zeros(nodes, np.bool_)
        seen[roots[r]] = True
        queue[0] = roots[r]
        head, tail = 0, 1
        while head < tail:
            node = queue[head]
            head += 1
            for link in range(first_link[node], first_link[node + 1]):
                following = target[link]
                if not seen[following]:
                    seen[following] = True
                    parents[r, following] = node
                    queue[tail] = following
                    tail += 1
    return parents


@_compiled_if_large
def server_hops(
    first_link: Integers,
    target: Integers,
    is_server: NDArray[np.bool_],
    servers: Integers,
) -> NDArray[np.int32]:
    """[N, N] least number of server-to-server transfers between servers, by rank.

    A 0-1 breadth-first search: entering a switch is free and entering a server costs one. All nodes
    at distance d are expanded before those at d + 1; switches join the current distance.
    """
    nodes, count = len(first_link) - 1, len(servers)
    hops = np.empty((count, count), np.int32)
    current, following = np.empty(nodes, np.int32), np.empty(nodes, np.int32)
    for r in range(count):
        distance = np.full(nodes, -1, np.int32)
        distance[servers[r]] = 0
        current[0] = servers[r]
        size, depth = 1, 0
        while size:
            discovered = 0
            place = 0
            while place < size:
                node = current[place]
                place += 1
                for link in range(first_link[node], first_link[node + 1]):
                    neighbour = target[link]
                    if distance[neighbour] >= 0:
                        continue
                    if is_server[neighbour]:
                        distance[neighbour] = depth + 1
                        following[discovered] = neighbour
                        discovered += 1
                    else:
                        distance[neighbour] = depth
                        current[size] = neighbour
                        size += 1
            current, following = following, current
            size = discovered
            depth += 1
        for s in range(count):
            hops[r, s] = distance[servers[s]]
    return hops


@_compiled_if_large
def switch_only_parents(
    first_link: Integers,
    target: Integers,
    is_server: NDArray[np.bool_],
    roots: Integers,
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """As `breadth_first_parents`, but the search does not continue beyond the servers it reaches.

    Returns:
        [R, V] parents, −1 at the root and where every path passes through another server; [R, V]
        number of links, −1 there.
    """
    nodes = len(first_link) - 1
    parents = np.full((len(roots), nodes), -1, np.int32)
    lengths = np.full((len(roots), nodes), -1, np.int32)
    queue = np.empty(nodes, np.int32)
    for r in range(len(roots)):
        queue[0] = roots[r]
        lengths[r, roots[r]] = 0
        head, tail = 0, 1
        while head < tail:
            node = queue[head]
            head += 1
            if is_server[node] and node != roots[r]:
                continue
            for link in range(first_link[node], first_link[node + 1]):
                following = target[link]
                if lengths[r, following] < 0:
                    lengths[r, following] = lengths[r, node] + 1
                    parents[r, following] = node
                    queue[tail] = following
                    tail += 1
    return parents, lengths


@_compiled_if_large
def widest_parents(
    first_link: Integers,
    target: Integers,
    stops: NDArray[np.bool_],
    held: Floats,
    latency: Floats,
    weight: float,
    roots: Integers,
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Like `switch_only_parents`, with the quickest or widest of equally short routes to a root.

    Nodes are visited in the same order as there, so that parents are the same if all such routes
    are equal. All neighbours of a node that are nearer to the root are visited before it, so its
    route is final when it is the neighbour of others.

    Args:
        first_link: [V+1] as in `Topology`.
        target: [L] of each link direction.
        stops: [V] nodes beyond which the search does not continue, except at the root.
        held: [L] time of the bytes on the opposite direction of each link, towards the root.
        latency: [L] seconds of that direction.
        weight: of latency in a route's first criterion, which adds it to ``held`` of the scarcest
            link; ties go to the lower latency, then to the lower sum of ``held``.
        roots: [R] nodes.
    """
    nodes = len(first_link) - 1
    parents = np.full((len(roots), nodes), -1, np.int32)
    lengths = np.full((len(roots), nodes), -1, np.int32)
    queue = np.empty(nodes, np.int32)
    scarcest, late, total = np.zeros(nodes), np.zeros(nodes), np.zeros(nodes)  # of a node's route
    less, more = 1 - 1e-9, 1 + 1e-9  # `ROUNDING`: a sum in another order is not better
    for r in range(len(roots)):
        queue[0] = roots[r]
        lengths[r, roots[r]] = 0
        scarcest[roots[r]] = late[roots[r]] = total[roots[r]] = 0.0
        head, tail = 0, 1
        while head < tail:
            node = queue[head]
            head += 1
            if stops[node] and node != roots[r]:
                continue
            for link in range(first_link[node], first_link[node + 1]):
                following = target[link]
                if 0 <= lengths[r, following] <= lengths[r, node]:
                    continue
                by_this = max(scarcest[node], held[link])
                late_by_this = late[node] + latency[link]
                total_by_this = total[node] + held[link]
                if lengths[r, following] < 0:
                    lengths[r, following] = lengths[r, node] + 1
                    queue[tail] = following
                    tail += 1
                else:
                    first = by_this + weight * late_by_this
                    so_far = scarcest[following] + weight * late[following]
                    if first > so_far * more:
                        continue
                    if first >= so_far * less:
                        if late_by_this > late[following] * more:
                            continue
                        if late_by_this >= late[following] * less and (
                            total_by_this >= total[following] * less
                        ):
                            continue
                parents[r, following] = node
                scarcest[following] = by_this
                late[following] = late_by_this
                total[following] = total_by_this
    return parents, lengths
