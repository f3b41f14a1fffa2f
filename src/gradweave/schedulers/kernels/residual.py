"""Residual bandwidth: what slow transfers leave of faster links on their routes.

A transfer is as fast as the scarcest link of its route, its bottleneck. The residual bandwidth of a
faster link is unusable, unless it carries other transfers, as slow, with other bottlenecks.
"""

import numpy as np
from numpy.typing import NDArray

from gradweave.compiled import kernel
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
        bandwidth: [L]
        servers: [N] nodes.
        cost: [N, N] of the path between each two servers; infinite where there is none.
        last: [N, V] the last link of the path from each server to each node.
        near_source: which of a path's equally scarce links counts: the first one, or the last.
            What `packed` and `planned` find depends on it, and each has its own.
    """
    slow = np.zeros((len(bandwidth), len(bandwidth)), np.bool_)
    for s in range(len(servers)):
        for to in range(len(servers)):
            if not np.isfinite(cost[s, to]):
                continue  # over other servers alone
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
    """How many transfers at a rate share each of some links; 0 of links that are slower.

    As many as fit, of those that are as slow: only those with another bottleneck count, since two
    behind one slow port come one by one.

    Args:
        links: some.
        rate: of the transfers, as the links' bandwidth.
        bandwidth: [L]
        slow: [L, L] as `bottlenecks_over` makes it.
    """
    at_once = np.empty(len(links), np.int64)
    for i in range(len(links)):
        alike = 0
        for other in range(len(bandwidth)):
            alike += slow[links[i], other] and bandwidth[other] <= rate * (1 + ROUNDING)
        at_once[i] = min(int(bandwidth[links[i]] / rate * (1 + ROUNDING)), max(alike, 1))
    return at_once
