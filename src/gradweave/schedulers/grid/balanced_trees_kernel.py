"""One tree per root over a line's direct links, with balanced loads."""

import numpy as np
from numpy.typing import NDArray

from gradweave.common.compiled import kernel
from gradweave.topology.topology import Floats

PASSES = 20
"""How often each tree is grown; after the first pass, given the loads of all others."""
SHARPNESS = 10.0
"""Logarithm of the cost ratio between the fullest link and an empty link."""
NEAR = 0.03
"""Weight of a piece's delay from the root, relative to its time at the largest bandwidth. These
three constants were chosen by hand on a box of MI250s, for small loads and small depths, among six
weights and three sharpnesses. On 8 and 32 boxes, only a weight of 0.1 was simulated for
comparison."""


@kernel
def balanced_trees(bandwidth: Floats) -> NDArray[np.int64]:
    """[m, m] the parent of each server in each root's tree; a root is its own parent.

    Prim's algorithm, with costs exponential in a link's load relative to the fullest link, plus the
    distance to the root: the mix of Alpert et al. A tree serves both directions: data to the root
    takes the links opposite to data from it. A link's load is therefore the sum of both directions,
    or twice the larger of them: at first all pieces move to roots, and at last all move away, so
    one direction is idle. The pass with the smallest maximum load is kept.

    Args:
        bandwidth: [m, m] bandwidth of the link from each server to each, relative to the largest; 0
            without a link. Links go both ways, and connect all servers.

    Source: Alpert, Hu, Huang and Kahng, "A direct combination of the Prim and Dijkstra
        constructions for improved performance-driven global routing", 1993.
    """
    servers = len(bandwidth)
    parent = np.full((servers, servers), -1)
    best, least = parent.copy(), np.inf
    outwards = np.zeros(bandwidth.shape)
    for again in range(PASSES):
        for root in range(servers):
            if again:
                _carry(bandwidth, parent[root], -1.0, outwards)
            _grow(bandwidth, _both_ways(outwards), root, parent[root])
            _carry(bandwidth, parent[root], 1.0, outwards)
        fullest = _both_ways(outwards).max()
        if fullest < least:
            least, best = fullest, parent.copy()
    return best


@kernel(inner=True)
def _both_ways(outwards: Floats) -> Floats:
    return outwards + np.maximum(outwards, outwards.T)


@kernel(inner=True, allocates=False)
def _carry(bandwidth: Floats, parent: NDArray[np.int64], size: float, outwards: Floats) -> None:
    """Adds a tree to the loads of the links away from its root."""
    for server in range(len(parent)):
        above = parent[server]
        if above != server:
            outwards[above, server] += size / bandwidth[above, server]


@kernel(inner=True)
def _grow(bandwidth: Floats, load: Floats, root: int, parent: NDArray[np.int64]) -> None:
    """Writes one tree."""
    servers, fullest = len(parent), max(load.max(), 1e-12)
    away, cost = np.full(servers, np.inf), np.full(servers, np.inf)
    inside = np.zeros(servers, np.bool_)
    away[root], cost[root], parent[root] = 0.0, 0.0, root
    for _ in range(servers):
        added = -1
        for server in range(servers):
            if not inside[server] and (added < 0 or cost[server] < cost[added]):
                added = server
        inside[added] = True
        for server in range(servers):
            if inside[server] or not bandwidth[added, server]:
                continue
            takes = 1 / bandwidth[added, server]
            dual = takes * np.exp(SHARPNESS * (load[added, server] / fullest - 1.0))
            with_delay = dual + NEAR * (away[added] + takes)
            if with_delay < cost[server]:
                cost[server], parent[server] = with_delay, added
                away[server] = away[added] + takes
