"""Max-flow loops for trees that share no link, compiled."""

import numpy as np

from gradweave.common.compiled import kernel
from gradweave.topology.topology import Integers


@kernel(inner=True, allocates=False)
def _augment(room: Integers, source: int, sink: int, came: Integers, queue: Integers) -> bool:
    """Augments the flow by one unit along a path with the fewest residual arcs, if there is one.

    Args:
        room: [V, V] residual capacity of each arc; written.
        source: node.
        sink: another node.
        came: [V] the node from which each node was reached; written.
        queue: [V] nodes in the order in which they were reached; written.
    """
    came[:] = -1
    came[source] = source
    queue[0] = source
    length, at = 1, 0
    while at < length and came[sink] < 0:
        node = queue[at]
        at += 1
        for other in range(len(room)):
            if room[node, other] > 0 and came[other] < 0:
                came[other] = node
                queue[length] = other
                length += 1
    if came[sink] < 0:
        return False
    node = sink
    while node != source:
        room[came[node], node] -= 1
        room[node, came[node]] += 1
        node = came[node]
    return True


@kernel(inner=True, allocates=False)
def _carries(
    arcs: Integers,
    source: int,
    sink: int,
    enough: int,
    room: Integers,
    came: Integers,
    queue: Integers,
) -> bool:
    """Whether `enough` units flow between two nodes; the last three arguments are scratch."""
    for u in range(len(arcs)):
        for v in range(len(arcs)):
            room[u, v] = arcs[u, v]
    for _ in range(enough):
        if not _augment(room, source, sink, came, queue):
            return False
    return True


@kernel
def most_that_flows(arcs: Integers, root: int, sinks: Integers, enough: int) -> int:
    """The smallest max-flow from a root to any of some nodes.

    Args:
        arcs: [V, V] units that each node can send to each other.
        root: node.
        sinks: nodes.
        enough: the count stops at this number.
    """
    room, came, queue = np.empty_like(arcs), np.empty(len(arcs), np.int64), np.empty_like(arcs[0])
    for sink in sinks:
        if sink != root:
            room[:] = arcs
            units = 0
            while units < enough and _augment(room, root, sink, came, queue):
                units += 1
            enough = units
    return enough


@kernel
def splits(
    arcs: Integers, root: int, sinks: Integers, enough: int, u: int, w: int, v: int, units: int
) -> bool:
    """Replaces units of arcs u→w and w→v by units of u→v, if `enough` still flow to all sinks.

    Args:
        arcs: [V, V] units; written.
        root: node.
        sinks: nodes that units must flow to.
        enough: how many units must flow to each.
        u: node.
        w: node.
        v: node; if it is u, the units are dropped.
        units: number of units of both arcs.
    """
    room, came, queue = np.empty_like(arcs), np.empty(len(arcs), np.int64), np.empty_like(arcs[0])
    arcs[u, w] -= units
    arcs[w, v] -= units
    if u != v:
        arcs[u, v] += units
    for sink in sinks:
        if sink != root and not _carries(arcs, root, sink, enough, room, came, queue):
            arcs[u, w] += units
            arcs[w, v] += units
            if u != v:
                arcs[u, v] -= units
            return False
    return True


@kernel
def grow_trees(
    arcs: Integers, root: int, count: int, order: Integers, parent: Integers
) -> tuple[int, int]:
    """Grows trees from one root that share no unit of an arc, all at once, level by level.

    An arc is taken if enough is left for every tree to reach every node. The check is a max-flow to
    the arc's end, in which each tree supplies one unit from all nodes it has. It suffices: each
    node set that the arc enters must be entered as often as there are trees without a node in it,
    and only sets with the arc's end can violate that.

    Args:
        arcs: [N, N] units; written: what is left.
        root: node.
        count: k, number of trees; as many units flow to every node.
        order: [k·N·N] order in which trees and arcs are tried at each level.
        parent: [k, N] written: the parent of each node in each tree, −1 at the root.

    Returns:
        The levels of the deepest tree, and the sum of all nodes' depths over all trees.

    Source: Lovász, "On two minimax theorems in graph", 1976; Edmonds, "Edge-disjoint branchings",
        1973 (for branchings that begin with any sets of nodes).
    """
    nodes = len(arcs)
    size = nodes + count + 1
    flow = np.zeros((size, size), np.int64)
    room, came = np.empty((size, size), np.int64), np.empty(size, np.int64)
    queue, depth = np.empty(size, np.int64), np.full((count, nodes), -1)
    flow[:nodes, :nodes] = arcs
    parent[:] = -1
    # A node for each tree gives one unit, over arcs that limit nothing, to whatever nodes the tree
    # has; the last node feeds all of these.
    for tree in range(count):
        depth[tree, root] = 0
        flow[nodes + tree, root] = count
        flow[nodes + count, nodes + tree] = 1
    left, level, total = count * (nodes - 1), 0, 0
    while left and level < nodes:
        for one in order:
            tree, arc = one // (nodes * nodes), one % (nodes * nodes)
            u, v = arc // nodes, arc % nodes
            if depth[tree, u] != level or depth[tree, v] >= 0 or flow[u, v] == 0:
                continue
            flow[u, v] -= 1
            flow[nodes + tree, v] = count
            if _carries(flow, nodes + count, v, count, room, came, queue):
                depth[tree, v], parent[tree, v] = level + 1, u
                left, total = left - 1, total + level + 1
            else:
                flow[u, v] += 1
                flow[nodes + tree, v] = 0
        level += 1
    arcs[:] = flow[:nodes, :nodes]
    return (level, total) if not left else (nodes, nodes * nodes * count)
