"""One tree a root over a line's direct links, with loads that are alike."""

import numpy as np
from numpy.typing import NDArray

from gradweave.compiled import kernel
from gradweave.topology.topology import Floats

PASSES = 20
"""How often each tree is grown: the later times beside all others."""
SHARPNESS = 10.0
"""Logarithm of how much more the fullest link costs than an empty one."""
NEAR = 0.03
"""Weight of what a piece takes from the root on, relative to what it takes at the largest
bandwidth. These three by hand on a box of MI250s: of six weights and three sharpnesses a pair whose
loads and depths are both small; played on 8 and 32 boxes beside a weight of 0.1 alone."""


@kernel
def balanced_trees(bandwidth: Floats) -> NDArray[np.int64]:
    """[m, m] of each root's tree, each server's next one towards it; its own at the root.

    As Prim's algorithm, with costs that are exponential in what links carry beside the fullest, and
    with the distance to the root: what Alpert et al. mix. A tree serves both ways: data to the root
    takes the opposite links of data from it. What a link carries is therefore its part of both, or
    twice that of one where this is more, since pieces first only go to roots, at last only from
    them. Of all passes the trees are kept whose fullest link carries least.

    Args:
        bandwidth: [m, m] of the link from each server to each, relative to the largest; 0 of none.
            Links go both ways, and connect all.

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
    """Adds a tree to what the links away from its root carry."""
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
