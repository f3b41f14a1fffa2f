"""Routes between servers of a line, through switches, balanced over the shortest routes."""

import numpy as np
from numpy.typing import NDArray

from gradweave.common.compiled import kernel
from gradweave.topology.topology import Floats, Integers

FAR = 1 << 20
"""Sentinel distance: no route through switches."""
MOST_LINKS = 15
"""Most links of a route."""


@kernel
def shared_routes(
    first_link: Integers,
    target: Integers,
    is_server: NDArray[np.bool_],
    bandwidth: Floats,
    senders: Integers,
    first_sender: Integers,
    receivers: Integers,
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Links of a shortest route from each sender to its receiver, and [H] the number of links.

    Among several next links on shortest routes, it takes the one with the smallest load for its
    bandwidth so far. A pair without a route through switches only gets no links.

    Args:
        first_link: [V+1] index of each node's first link.
        target: [L] node that each link enters.
        is_server: [V] whether each node is a server.
        bandwidth: [L] bandwidth of each link.
        senders: [H] nodes, receiver by receiver.
        first_sender: [R+1] index of each receiver's first sender.
        receivers: [R] nodes.
    """
    links = np.empty(16 * 1024, np.int32)
    lengths = np.zeros(len(senders), np.int64)
    away = np.full(len(is_server), FAR, np.int64)
    queue = np.empty(len(is_server), np.int64)
    load = np.zeros(len(target))
    used = 0
    for r in range(len(receivers)):
        reached = _distances(first_link, target, is_server, receivers[r], away, queue)
        for h in range(first_sender[r], first_sender[r + 1]):
            node = senders[h]
            if away[node] > MOST_LINKS or node == receivers[r]:
                continue
            if used + MOST_LINKS > len(links):
                links = np.concatenate((links, np.empty(len(links), np.int32)))
            while node != receivers[r]:
                best = -1
                for link in range(first_link[node], first_link[node + 1]):
                    if away[target[link]] == away[node] - 1 and (
                        not is_server[target[link]] or target[link] == receivers[r]
                    ):
                        more = (load[link] + 1) / bandwidth[link]
                        if best < 0 or more < (load[best] + 1) / bandwidth[best]:
                            best = link
                load[best] += 1
                links[used] = best
                used += 1
                lengths[h] += 1
                node = target[best]
        for i in range(reached):
            away[queue[i]] = FAR
    return links[:used], lengths


@kernel(inner=True, allocates=False)
def _distances(
    first_link: Integers,
    target: Integers,
    is_server: NDArray[np.bool_],
    root: int,
    away: NDArray[np.int64],
    queue: NDArray[np.int64],
) -> int:
    """Distances in links from each node to the root, through switches; returns the queue's end."""
    away[root], queue[0] = 0, root
    head, tail = 0, 1
    while head < tail:
        node = queue[head]
        head += 1
        if is_server[node] and node != root:
            continue
        for link in range(first_link[node], first_link[node + 1]):
            following = target[link]
            if away[following] == FAR:
                away[following] = away[node] + 1
                queue[tail] = following
                tail += 1
    return tail
