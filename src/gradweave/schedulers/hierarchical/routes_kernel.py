"""Routes between servers of a line, through switches, shared out over those that are shortest."""

import numpy as np
from numpy.typing import NDArray

from gradweave.compiled import kernel
from gradweave.topology.topology import Floats, Integers

FAR = 1 << 20
"""In place of a number of links: no route through switches."""
MOST_LINKS = 15
"""Of a route."""


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
    """Links of a shortest route from each sender to its receiver, and [H] how many they are.

    Of several next links on shortest routes that is taken which carries least so far, for its
    bandwidth. None where there is no route through switches alone.

    Args:
        first_link: [V+1] where each node's links start.
        target: [L].
        is_server: [V].
        bandwidth: [L].
        senders: [H] nodes, receiver by receiver.
        first_sender: [R+1] where those of each receiver start.
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
    """Links from each node to the root, through switches; how many nodes there are on the queue."""
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
