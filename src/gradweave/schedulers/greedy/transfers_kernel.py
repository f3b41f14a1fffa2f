"""The transfers of grown trees, with their dependencies, links and features."""

import numpy as np
from numpy.typing import NDArray

from gradweave.common.compiled import kernel
from gradweave.schedulers.greedy.tree_packing_kernel import FROM, TOWARDS, Grown
from gradweave.schedulers.kernels.precedence import Dependencies, tails, topological_order
from gradweave.schedulers.kernels.wires import Wires
from gradweave.topology.topology import Floats, Integers

FEATURES = ("order", "tail", "head", "load", "second stage", "leaf")
"""Features of a transfer: its piece's position in the order; the longest path from it to the
piece's end, itself included; the longest path from the piece's beginning to it; the total load of
its route's busiest link; whether it is of the second stage; whether no transfer waits for it. Paths
and loads are in units of the largest link load."""


@kernel
def transfers_of(
    grown: Grown,
    root: Integers,
    stages: Integers,
    bandwidth: NDArray[np.float64],
    latency: Floats,
    overhead: Floats,
) -> tuple[Dependencies, Wires]:
    """The transfers of each part's trees, and their hops, one hop per transfer.

    Transfers are sorted by stage, then by the rank of the server whose hop it is.

    Args:
        grown: the trees.
        root: [P] rank of each part's root.
        stages: the stages that were grown.
        bandwidth: [L] bytes per second.
        latency: [L] seconds.
        overhead: [L] seconds.
    """
    parts, servers = len(root), grown.parent.shape[2]
    each = len(stages) * (servers - 1)
    hop = np.arange(parts * each).reshape(parts, each)
    wires = _wires(grown, root, bandwidth, latency, overhead)
    waits = np.zeros((parts, each), np.int64)
    most = len(stages) * servers + servers * servers  # copies of a root may wait for all into it
    following = np.empty(parts * most, np.int64)
    first = np.empty((parts, each + 1), np.int64)
    count = 0
    for p in range(parts):
        count = _follow(grown.parent[p], stages, root[p], waits[p], following, first[p], count)
    shape = (parts, each)  # each transfer has a hop of its own
    tail_s, tail_s_per_byte = tails(
        waits,
        first,
        following,
        wires.latency.reshape(shape),
        wires.overhead.reshape(shape),
        (1.0 / wires.rate).reshape(shape),
    )
    ready = np.zeros((parts, each))
    return Dependencies(hop, waits, following[:count], first, ready, tail_s, tail_s_per_byte), wires


@kernel(inner=True)
def _wires(
    grown: Grown,
    root: Integers,
    bandwidth: NDArray[np.float64],
    latency: Floats,
    overhead: Floats,
) -> Wires:
    """The links of every transfer's hop, with rates and delays."""
    parts, stages, servers, longest = grown.route.shape
    hops = parts * stages * (servers - 1)
    links, first = np.empty(hops * longest, np.int64), np.zeros(hops + 1, np.int64)
    rate, held, delay = np.full(hops, np.inf), np.zeros(hops), np.zeros(hops)
    hop = count = 0
    for p in range(parts):
        for i in range(stages):
            for server in range(servers):
                if server == root[p]:
                    continue
                for link in grown.route[p, i, server]:
                    if link < 0:
                        break
                    links[count] = link
                    rate[hop] = min(rate[hop], bandwidth[link])
                    held[hop] = max(held[hop], overhead[link])
                    delay[hop] += latency[link]
                    count += 1
                hop += 1
                first[hop] = count
    return Wires(links[:count], first, rate, held, delay, bandwidth)


@kernel(inner=True)
def _follow(
    parent: Integers,
    stages: Integers,
    root: int,
    waits: Integers,
    following: Integers,
    first: Integers,
    count: int,
) -> int:
    """Writes which transfers wait for each transfer of a part; returns the next free index."""
    servers = parent.shape[1]
    m, last = 0, len(stages) - 1
    for i in range(len(stages)):
        for server in range(servers):
            if server == root:
                continue
            first[m] = count
            m += 1
            up = parent[i, server]
            if stages[i] == TOWARDS and up != root:
                following[count] = i * (servers - 1) + up - (up > root)
                waits[following[count]] += 1
                count += 1
            elif stages[last] == FROM:
                # Copies of what the server received; from the root, of the complete sum.
                giver = server if stages[i] == FROM else root
                for child in range(servers):
                    if parent[last, child] == giver:
                        following[count] = last * (servers - 1) + child - (child > root)
                        waits[following[count]] += 1
                        count += 1
    first[m] = count
    return count


@kernel
def features_of(
    trees: Dependencies, wires: Wires, part: Integers, size: Floats
) -> NDArray[np.float32]:
    """[P, M, F] the features of each transfer.

    Args:
        trees: the trees of the parts.
        wires: the network's wires.
        part: [P] part that each piece belongs to, in order.
        size: [P] bytes of each piece.
    """
    pieces, each = len(part), trees.hop.shape[1]
    load, head_s, head_s_per_byte = np.zeros(len(wires.bandwidth)), *_heads(trees, wires)
    for p in range(pieces):
        for m in range(each):
            hop = trees.hop[part[p], m]
            for link in wires.links[wires.first[hop] : wires.first[hop + 1]]:
                load[link] += wires.overhead[hop] + size[p] / wires.bandwidth[link]
    most = load.max()
    known = np.zeros((pieces, each, 6), np.float32)
    for p in range(pieces):
        one = part[p]
        for m in range(each):
            hop = trees.hop[one, m]
            busiest = 0.0
            for link in wires.links[wires.first[hop] : wires.first[hop + 1]]:
                busiest = max(busiest, load[link])
            tail = trees.tail_s[one, m] + size[p] * trees.tail_s_per_byte[one, m]
            head = head_s[one, m] + size[p] * head_s_per_byte[one, m]
            known[p, m, 0], known[p, m, 1] = (p + 0.5) / pieces, tail / most
            known[p, m, 2], known[p, m, 3] = head / most, busiest / most
            known[p, m, 4] = 2 * m >= each
            known[p, m, 5] = trees.first_following[one, m] == trees.first_following[one, m + 1]
    return known


@kernel(inner=True)
def _heads(trees: Dependencies, wires: Wires) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """[parts, M] seconds, and seconds per byte, before each transfer of a piece may start."""
    parts, each = trees.hop.shape
    seconds, per_byte = np.zeros((parts, each)), np.zeros((parts, each))
    for p in range(parts):
        first = trees.first_following[p]
        for m in topological_order(trees.waits[p], first, trees.following):
            hop = trees.hop[p, m]
            after = seconds[p, m] + wires.latency[hop] + wires.overhead[hop]
            for then in trees.following[first[m] : first[m + 1]]:
                seconds[p, then] = max(seconds[p, then], after)
                per_byte[p, then] = max(per_byte[p, then], per_byte[p, m] + 1 / wires.rate[hop])
    return seconds, per_byte
