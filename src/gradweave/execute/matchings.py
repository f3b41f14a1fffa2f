"""Divides a round's transfers into matchings, in which each server sends and receives at most once.

One `jax.lax.ppermute` carries out one matching.
"""

import numpy as np
from numpy.typing import NDArray

from gradweave.topology.topology import Integers


def matchings(source: Integers, target: Integers, servers: int) -> NDArray[np.int64]:
    """Divides transfers into the fewest matchings.

    This is an edge colouring of a bipartite multigraph with sources on one side and targets on the
    other. By Kőnig's theorem, the number of colours needed is the maximum number of transfers that
    one server sends or receives. Each edge gets the lowest colour that is free at both ends. If
    there is no such colour, two colours swap along the path that starts at the target, which frees
    one of them.

    Args:
        source: [T] rank of the sending server.
        target: [T] rank of the receiving server.
        servers: N.

    Returns:
        [T] matching of each transfer, from 0. The result does not depend on the order of the
        transfers.

    >>> matchings(np.array([0, 0, 1]), np.array([1, 2, 2]), 3).tolist()
    [0, 1, 0]
    """
    order = np.lexsort((target, source))
    colour = np.zeros(len(order), np.int64)
    if _degree(source, target) > 1:
        edges = list(zip(source[order].tolist(), (target[order] + servers).tolist(), strict=True))
        colour[order] = _colours(edges, 2 * servers, _degree(source, target))
    return colour


def _degree(source: Integers, target: Integers) -> int:
    """The maximum number of transfers that one server sends or receives."""
    return max((int(np.bincount(end).max()) for end in (source, target) if len(end)), default=0)


def _colours(edges: list[tuple[int, int]], nodes: int, colours: int) -> list[int]:
    """A colour for each edge, such that edges that share a node differ."""
    edge_of = [[-1] * colours for _ in range(nodes)]
    """By node and colour: the edge with that colour, or −1."""
    free = [(1 << colours) - 1] * nodes
    """By node: a bit mask of the colours that no edge uses there."""
    colour = [-1] * len(edges)
    for edge, (source, target) in enumerate(edges):
        common = free[source] & free[target]
        if common:
            taken = _lowest(common)
        else:
            taken = _lowest(free[source])
            _exchange(target, taken, _lowest(free[target]), edges, edge_of, free, colour)
        colour[edge] = taken
        for node in (source, target):
            edge_of[node][taken] = edge
            free[node] &= ~(1 << taken)
    return colour


def _exchange(
    start: int,
    one: int,
    other: int,
    edges: list[tuple[int, int]],
    edge_of: list[list[int]],
    free: list[int],
    colour: list[int],
) -> None:
    """Frees colour `one` at a node by swapping it with `other` along the path from there."""
    path, node, wanted = [], start, one
    while (edge := edge_of[node][wanted]) >= 0:
        path.append(edge)
        source, target = edges[edge]
        node = target if node == source else source
        wanted = other if wanted == one else one
    for edge in path:
        for end in edges[edge]:
            edge_of[end][colour[edge]] = -1
    for edge in path:
        colour[edge] = other if colour[edge] == one else one
        for end in edges[edge]:
            edge_of[end][colour[edge]] = edge
    for end in (start, node):  # nodes inside the path have both colours before and after
        held = sum(1 << c for c in (one, other) if edge_of[end][c] >= 0)
        free[end] = (free[end] | 1 << one | 1 << other) & ~held


def _lowest(bits: int) -> int:
    """The position of the lowest bit that is set."""
    return (bits & -bits).bit_length() - 1
