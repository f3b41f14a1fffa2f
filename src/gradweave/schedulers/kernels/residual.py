"""Residual bandwidth: the bandwidth that slow transfers leave unused on faster links.

A transfer is as fast as the slowest link of its route, its bottleneck. The residual bandwidth of a
faster link is unusable unless the link carries other, equally slow transfers with other
bottlenecks.
"""

import numpy as np
from numpy.typing import NDArray

from gradweave.common.compiled import kernel
from gradweave.topology.topology import Floats, Integers
from gradweave.topology.units import ROUNDING


@kernel
def bottlenecks_over(
    source: Integers,
    bandwidth: Floats,
    servers: Integers,
    cost: Floats,
    last: Integers,
    near_source: bool,
) -> NDArray[np.bool_]:
    """[L, L] whether the second link is the bottleneck of a path over the first. O(N² · path).

    Args:
        source: [L] node that each link leaves.
        bandwidth: [L] bandwidth of each link.
        servers: [N] nodes.
        cost: [N, N] cost of the path between every two servers; infinite if there is none.
        last: [N, V] the last link of the path from each server to each node.
        near_source: whether the first of a path's equally slow links counts, or the last. The
            results of `packed` and `planned` depend on it, and they differ in it.
    """
    slow = np.zeros((len(bandwidth), len(bandwidth)), np.bool_)
    for s in range(len(servers)):
        for to in range(len(servers)):
            if not np.isfinite(cost[s, to]):
                continue  # only reachable over other servers
            node, scarcest = servers[to], -1
            while node != servers[s]:
                link = last[s, node]
                scarcer = scarcest < 0 or bandwidth[link] < bandwidth[scarcest]
                if scarcer or (near_source and bandwidth[link] == bandwidth[scarcest]):
                    scarcest = link
                node = source[link]
            node = servers[to]
            while node != servers[s]:
                slow[last[s, node], scarcest] = True
                node = source[last[s, node]]
    return slow


@kernel
def transfers_at_once(
    links: Integers, rate: float, bandwidth: Floats, slow: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """How many transfers of a given rate share each of some links; 0 for slower links.

    It is as many as fit, limited to the equally slow bottlenecks behind the link: two transfers
    behind one slow port come one at a time.

    Args:
        links: the links.
        rate: the transfers' rate, in the unit of bandwidth.
        bandwidth: [L] bandwidth of each link.
        slow: [L, L] from `bottlenecks_over`.
    """
    at_once = np.empty(len(links), np.int64)
    for i in range(len(links)):
        alike = 0
        for other in range(len(bandwidth)):
            alike += slow[links[i], other] and bandwidth[other] <= rate * (1 + ROUNDING)
        at_once[i] = min(int(bandwidth[links[i]] / rate * (1 + ROUNDING)), max(alike, 1))
    return at_once
