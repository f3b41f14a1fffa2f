"""Minimum-cost arborescences that span all servers, and flatter trees that cost little more."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradweave.common.compiled import kernel
from gradweave.topology.topology import Floats, Integers
from gradweave.topology.units import ROUNDING

NEW, ON_PATH, REACHED = 0, 1, 2
"""States of a node while trees grow."""


@kernel
def minimum_arborescences(
    cost: Floats, tolerance: float
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """For each root the minimum-cost arborescence; among equal ones a flat one.

    Edmonds' algorithm in Tarjan's form for dense graphs: a path grows backwards along the cheapest
    arcs; a cycle is contracted to one node. O(N²) per root.

    Args:
        cost: [N, N] cost of the arc from each server to each other; infinite if there is none.
        tolerance: extra cost that an arc may have if it brings a server nearer to the root.

    Returns:
        [N] cost of each root's tree, and [N, N] each server's parent in it; the root's is −1.

    Source: Edmonds, "Optimum branchings", 1967; Tarjan, "Finding optimum branchings", 1977; Gabow,
        Galil, Spencer and Tarjan, "Efficient algorithms for finding minimum spanning trees in
        undirected and directed graphs", 1986, for growing a single path.
    """
    servers = len(cost)
    total, parents = np.zeros(servers), np.empty((servers, servers), np.int64)
    for root in range(servers):
        total[root] = _flat_tree(cost, tolerance, root, parents[root])
    return total, parents


@kernel
def minimum_arborescence(
    cost: Floats, tolerance: float, root: int
) -> tuple[float, NDArray[np.int64]]:
    """The tree of one root, and its cost; see `minimum_arborescences`."""
    parent = np.empty(len(cost), np.int64)
    return _flat_tree(cost, tolerance, root, parent), parent


@kernel(inner=True)
def write_arborescence(cost: Floats, flatter: float, root: int, parent: Integers) -> None:
    """Writes the tree of one root within another kernel.

    Args:
        cost: [N, N] as in `minimum_arborescences`.
        flatter: extra cost that an arc may have if it brings a server nearer to the root, relative
            to the mean cost of the tree's arcs.
        root: rank.
        parent: [N] output.
    """
    _edmonds(cost, root, parent)
    total = _cost_of(cost, root, parent)
    _flatten(cost, (flatter + ROUNDING) * total / max(len(parent) - 1, 1), root, parent)


@kernel(inner=True)
def _flat_tree(cost: Floats, tolerance: float, root: int, parent: Integers) -> float:
    """Writes a minimum-cost tree, flattened, and returns its cost."""
    _edmonds(cost, root, parent)
    _flatten(cost, tolerance, root, parent)
    return _cost_of(cost, root, parent)


@kernel(inner=True, allocates=False)
def _cost_of(cost: Floats, root: int, parent: Integers) -> float:
    total = 0.0
    for v in range(len(parent)):
        if v != root:
            total += cost[parent[v], v]
    return total


class _Growing(NamedTuple):
    """A growing tree. Nodes are the servers, then the contracted cycles."""

    into: NDArray[np.float64]
    """[2N, N] reduced cost of the arc from each server into a node: its excess over the arcs
    taken."""
    head: NDArray[np.int64]
    """[2N, N] the server in the node that this arc enters."""
    outermost: NDArray[np.int64]
    """[N] the outermost node that contains each server."""
    cycle: NDArray[np.int64]
    """[2N] the cycle that contains each node, or −1."""
    tail: NDArray[np.int64]
    """[2N] the server from which a node's cheapest arc comes."""
    entered: NDArray[np.int64]
    """[2N] the server in the node that this arc enters."""
    state: NDArray[np.int8]
    """[2N] `NEW`, `ON_PATH` or `REACHED` from the root."""
    path: NDArray[np.int64]
    """[2N] nodes, each entered by its arc from the next node."""


@kernel(inner=True)
def _edmonds(cost: Floats, root: int, parent: Integers) -> None:
    """Writes the minimum-cost arborescence from a root."""
    _grow(_nothing_grown(cost, root), parent)


@kernel(inner=True, allocates=False)
def _grow(growing: _Growing, parent: Integers) -> None:
    """Grows paths backwards until the root reaches every server, and writes the tree."""
    servers = nodes = len(parent)
    for start in range(servers):
        length = 0
        if growing.state[growing.outermost[start]] != REACHED:
            length = _append(growing, 0, growing.outermost[start])
        while length:
            node = growing.path[length - 1]
            before = growing.outermost[_take_cheapest(growing, node)]
            if growing.state[before] == REACHED:
                growing.state[growing.path[:length]] = REACHED
                length = 0
            elif growing.state[before] == NEW:
                length = _append(growing, length, before)
            else:
                length = _make_cycle(growing, length, before, nodes)
                nodes += 1
    # Expand cycles from the outermost nodes inwards: the arc that enters a cycle replaces the
    # cycle's arc into that server, and likewise in the cycles within.
    for node in range(nodes - 1, -1, -1):
        inner = growing.entered[node]
        while inner >= 0 and inner != node:
            growing.tail[inner] = growing.tail[node]
            growing.entered[inner] = growing.entered[node]
            inner = growing.cycle[inner]
    for v in range(servers):
        parent[v] = growing.tail[v]


@kernel(inner=True)
def _nothing_grown(cost: Floats, root: int) -> _Growing:
    servers = len(cost)
    most = 2 * servers
    into, head = np.full((most, servers), np.inf), np.empty((most, servers), np.int64)
    for v in range(servers):
        head[v] = v
        for u in range(servers):
            into[v, u] = cost[u, v]
    state = np.full(most, NEW, np.int8)
    state[root] = REACHED
    nowhere = np.full(most, -1)
    return _Growing(
        into,
        head,
        np.arange(servers),
        nowhere,
        nowhere.copy(),
        nowhere.copy(),
        state,
        np.empty(most, np.int64),
    )


@kernel(inner=True, allocates=False)
def _append(growing: _Growing, length: int, node: int) -> int:
    """Appends a node to the path, and returns the new length."""
    growing.path[length] = node
    growing.state[node] = ON_PATH
    return length + 1


@kernel(inner=True, allocates=False)
def _take_cheapest(growing: _Growing, node: int) -> int:
    """Takes the cheapest arc into a node, and returns the server from which it comes.

    The costs of the node's other arcs are reduced by the cost of this arc.
    """
    best, least = -1, np.inf
    for u in range(len(growing.outermost)):
        if growing.outermost[u] != node and growing.into[node, u] < least:
            best, least = u, growing.into[node, u]
    growing.tail[node], growing.entered[node] = best, growing.head[node, best]
    for u in range(len(growing.outermost)):
        growing.into[node, u] -= least
    return best


@kernel(inner=True, allocates=False)
def _make_cycle(growing: _Growing, length: int, first: int, node: int) -> int:
    """Contracts the path from one of its nodes on; returns the path's new length."""
    servers = len(growing.outermost)
    while True:
        length -= 1
        part = growing.path[length]
        growing.cycle[part] = node
        for u in range(servers):
            # Arcs from within the cycle come along; `_take_cheapest` passes over them.
            if growing.into[part, u] < growing.into[node, u]:
                growing.into[node, u] = growing.into[part, u]
                growing.head[node, u] = growing.head[part, u]
        if part == first:
            break
    for v in range(servers):
        if growing.cycle[growing.outermost[v]] == node:
            growing.outermost[v] = node
    return _append(growing, length, node)


@kernel(inner=True)
def _flatten(cost: Floats, tolerance: float, root: int, parent: Integers) -> None:
    """Moves servers nearer to the root if that costs no more than the tolerance: shorter paths."""
    servers = len(parent)
    depth = np.zeros(servers, np.int64)
    for _ in range(servers):
        for v in range(servers):
            depth[v], u = 0, v
            while u != root:
                u = parent[u]
                depth[v] += 1
        changed = False
        for v in range(servers):
            if v == root or depth[v] <= 1:
                continue
            near, most = parent[v], cost[parent[v], v] + tolerance
            for u in range(servers):
                # A server less deep than v's parent is not below v. That holds for depths of the
                # pass's start, too old for servers that have moved since: every parent, former or
                # new, is less deep by these, so that no cycle can close.
                if depth[u] < depth[near] and cost[u, v] <= most:
                    near = u
            if near != parent[v]:
                parent[v] = near
                changed = True
        if not changed:
            return


@kernel(inner=True)
def reparent(cost: Floats, delay: Floats, root: int, parent: Integers) -> None:
    """Gives servers a parent with a smaller sum of delay and arc cost.

    Args:
        cost: [N, N] cost of the arc from each server to each other.
        delay: [N, N] delay over it, above 0: otherwise servers could become each other's parents.
        root: rank.
        parent: [N] a tree; changed.
    """
    servers = len(parent)
    reached = np.zeros(servers)
    for _ in range(servers):
        for v in range(servers):
            reached[v], u = 0.0, v
            while u != root:
                reached[v] += delay[parent[u], u]
                u = parent[u]
        changed = False
        for v in range(servers):
            if v == root:
                continue
            up = parent[v]
            least = (reached[up] + cost[up, v]) * (1 - ROUNDING)
            for u in range(servers):
                # Nothing gets later, so a server that is not reached after v is not below it.
                sooner = reached[u] + delay[u, v] <= reached[v]
                if sooner and reached[u] + cost[u, v] < least:
                    least, up = reached[u] + cost[u, v], u
            if up != parent[v]:
                parent[v], changed = up, True
                reached[v] = reached[up] + delay[up, v]
        if not changed:
            return
