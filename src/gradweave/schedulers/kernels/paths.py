"""Minimum-cost paths between servers, over switches only."""

import numpy as np
from numpy.typing import NDArray

from gradweave.common.compiled import kernel
from gradweave.topology.topology import Floats, Integers


@kernel
def cheapest_paths(
    first_link: Integers,
    target: Integers,
    link_cost: Floats,
    servers: Integers,
    is_server: NDArray[np.bool_],
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The cheapest path from each server to each node.

    Args:
        first_link: [V+1] index of the first link that leaves each node.
        target: [L] node that each link enters.
        link_cost: [L] cost of each link, at least 0.
        servers: [N] nodes.
        is_server: [V] whether each node is a server; servers end a path, switches forward.

    Returns:
        [N, V] cost, infinite without a path; [N, V] the path's last link, or −1.
    """
    nodes = len(is_server)
    cost = np.empty((len(servers), nodes))
    last = np.full((len(servers), nodes), -1, np.int64)
    waiting = np.empty(nodes, np.int64)
    for s in range(len(servers)):
        cheapest_from(
            first_link, target, is_server, link_cost, servers[s], True, cost[s], last[s], waiting
        )
        cost[s, servers[s]], last[s, servers[s]] = 0.0, -1
    return cost, last


@kernel(inner=True, allocates=False)
def cheapest_from(
    first_link: Integers,
    target: Integers,
    is_server: NDArray[np.bool_],
    link_cost: Floats,
    start: int,
    numbered: bool,
    cost: Floats,
    last: NDArray[np.int64],
    waiting: NDArray[np.int64],
) -> None:
    """Dijkstra's algorithm from one server, with a list of switches instead of a heap.

    This takes O(V²), which dense networks need anyway.

    Args:
        first_link: [V+1] index of the first link that leaves each node.
        target: [L] node that each link enters.
        is_server: [V] whether each node is a server; servers end a path.
        link_cost: [L] at least 0; infinite if a link may not be used.
        start: the server.
        numbered: whether, among equally near switches, the smallest number is expanded first;
            otherwise the first in the list is. This decides which of several equal paths is found.
        cost: [V] output, infinite without a path. The value of `start` is undefined.
        last: [V] output: the last link of the path to each node that has one.
        waiting: [V] scratch for switches reached but not yet expanded.
    """
    cost[:] = np.inf
    node, least, count = start, 0.0, 0
    while True:
        for link in range(first_link[node], first_link[node + 1]):
            there, to = least + link_cost[link], target[link]
            if there < cost[to]:
                # A switch is listed when it is first reached; its cost may still fall while it
                # waits.
                if not is_server[to] and cost[to] == np.inf:
                    waiting[count] = to
                    count += 1
                cost[to], last[to] = there, link
        best = -1
        for i in range(count):
            if best < 0 or cost[waiting[i]] < cost[waiting[best]]:
                best = i
            elif numbered and cost[waiting[i]] == cost[waiting[best]]:
                if waiting[i] < waiting[best]:
                    best = i
        if best < 0:
            return
        node = waiting[best]
        least = cost[node]
        count -= 1
        waiting[best] = waiting[count]
