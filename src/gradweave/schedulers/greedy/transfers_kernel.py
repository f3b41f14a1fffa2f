"""The transfers of grown trees, with their dependencies and links."""

import numpy as np
from numpy.typing import NDArray

from gradweave.compiled import kernel
from gradweave.schedulers.greedy.tree_packing_kernel import FROM, TOWARDS, Grown
from gradweave.schedulers.kernels.precedence import tails
from gradweave.schedulers.kernels.wires import Wires
from gradweave.schedulers.ordering.event_simulation_kernel import Trees
from gradweave.topology.topology import Floats, Integers


@kernel
def transfers_of(
    grown: Grown,
    root: Integers,
    stages: Integers,
    bandwidth: NDArray[np.float64],
    latency: Floats,
    overhead: Floats,
) -> tuple[Trees, Wires]:
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
    return Trees(hop, waits, following[:count], first, ready, tail_s, tail_s_per_byte), wires


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
