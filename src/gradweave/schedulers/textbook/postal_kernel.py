"""Trees grown by arrival times of messages, compiled."""

import numpy as np
from numpy.typing import NDArray

from gradweave.common.compiled import kernel
from gradweave.topology.topology import Floats, Integers


@kernel(inner=True, allocates=False)
def grow(
    order: Integers,
    roots: Integers,
    source: Integers,
    first_into: Integers,
    links: Integers,
    first_link: Integers,
    hold: Floats,
    latency: Floats,
    informed: Floats,
    free: Floats,
    hop: NDArray[np.int64],
    turn: NDArray[np.int64],
) -> float:
    """The latest arrival of a broadcast if servers are informed in a given order.

    The next server is the first in the order that an informed server can reach, over the hop with
    the earliest arrival; ties by the hop's number.

    Args:
        order: [M] ranks of the servers to inform.
        roots: ranks of the servers that are informed from the start.
        source: [H] rank of the server that each hop leaves.
        first_into: [N+1] index of the first hop that enters each server.
        links: link directions of the hops, concatenated.
        first_link: [H+1] index of each hop's first link.
        hold: [H] seconds for which a message holds its links.
        latency: [H] seconds from then until it arrives.
        informed: [N] output: when each server is informed, infinite if it is not.
        free: [L] scratch: when each link becomes free.
        hop: [N] output: the hop by which each server is informed; −1 for others.
        turn: [N] output: how many servers are informed before each.
    """
    informed[:], free[:], hop[:] = np.inf, 0.0, -1
    informed[roots] = 0.0
    latest, waiting = 0.0, len(order)
    while waiting:
        found = False
        for place in range(len(order)):
            server = order[place]
            if informed[server] < np.inf:
                continue
            arrival, chosen, begun = np.inf, -1, 0.0
            for h in range(first_into[server], first_into[server + 1]):
                start = informed[source[h]]
                if start + hold[h] + latency[h] >= arrival:
                    continue
                for i in range(first_link[h], first_link[h + 1]):
                    start = max(start, free[links[i]])
                if start + hold[h] + latency[h] < arrival:
                    arrival, chosen, begun = start + hold[h] + latency[h], h, start
            if chosen < 0:
                continue
            for i in range(first_link[chosen], first_link[chosen + 1]):
                free[links[i]] = begun + hold[chosen]
            informed[server], hop[server] = arrival, chosen
            turn[server] = len(order) - waiting
            latest, found = max(latest, arrival), True
            waiting -= 1
            break
        if not found:
            return np.inf
    return latest


@kernel
def grow_best(
    orders: NDArray[np.int64],
    roots: Integers,
    tries: int,
    seed: int,
    source: Integers,
    first_into: Integers,
    links: Integers,
    first_link: Integers,
    hold: Floats,
    latency: Floats,
    link_count: int,
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """The tree of the best order, among given orders and those reached by moving single servers.

    Args:
        orders: [K, M] orders to start with, without roots.
        roots: ranks of the servers that are informed from the start.
        tries: number of moves.
        seed: the seed of the moves.
        source: as in `grow`, like the following.
        first_into: [N+1]
        links: link directions.
        first_link: [H+1]
        hold: [H] seconds.
        latency: [H] seconds.
        link_count: L.

    Returns:
        [N] when each server is informed, [N] by which hop, and [N] after how many others.
    """
    count = len(first_into) - 1
    informed, free, hop = np.empty(count), np.empty(link_count), np.empty(count, np.int64)
    turn = np.zeros(count, np.int64)
    best, order = np.inf, orders[0].copy()
    for k in range(len(orders)):
        latest = grow(
            orders[k], roots, source, first_into, links, first_link, hold, latency,
            informed, free, hop, turn,
        )  # fmt: skip
        if latest < best:
            best, order = latest, orders[k].copy()
    np.random.seed(seed)
    moved = order.copy()
    for _ in range(tries if len(order) > 1 else 0):
        a, b = np.random.randint(len(order)), np.random.randint(len(order))
        moved[:] = order
        if a < b:
            moved[a:b] = order[a + 1 : b + 1]
        else:
            moved[b + 1 : a + 1] = order[b:a]
        moved[b] = order[a]
        latest = grow(
            moved, roots, source, first_into, links, first_link, hold, latency,
            informed, free, hop, turn,
        )  # fmt: skip
        # Moves between equally good orders are made as well: they lead away from a plateau.
        if latest <= best:
            best = latest
            order[:] = moved
    grow(
        order,
        roots,
        source,
        first_into,
        links,
        first_link,
        hold,
        latency,
        informed,
        free,
        hop,
        turn,
    )
    return informed, hop, turn
