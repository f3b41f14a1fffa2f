"""The loop of the event-driven simulator, compiled."""

import numpy as np
from numpy.typing import NDArray

from gradweave.common.compiled import kernel
from gradweave.topology.topology import Floats, Integers
from gradweave.topology.units import ROUNDING


@kernel
def play_events(
    round_offsets: Integers,
    piece: Integers,
    source: Integers,
    target: Integers,
    earliest: Floats,
    links: Integers,
    route_start: Integers,
    rate: Floats,
    hold: Floats,
    bandwidth: Floats,
    latency: Floats,
    first_slot: Integers,
    nodes: int,
    pieces: int,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Start and end of each transfer; see `gradweave.simulator.event_seconds`.

    Each link has slots for the last transfers that took part of its bandwidth. A transfer is only
    forgotten if it ends before any later one starts, so bandwidth is never taken twice.

    Args:
        round_offsets: [rounds+1] where each round's transfers start.
        piece: [T] piece.
        source: [T] node.
        target: [T] node.
        earliest: [T] seconds at which each transfer's source is ready.
        links: link directions of all routes.
        route_start: [T+1] where each transfer's links start.
        rate: [T] bytes per second, at most each of its links' bandwidth.
        hold: [T] seconds for which it occupies that bandwidth on its links.
        bandwidth: [L] bytes per second.
        latency: [L] seconds.
        first_slot: [L+1] where each link direction's slots start.
        nodes: V.
        pieces: P.
    """
    transfers = len(piece)
    start, end = np.zeros(transfers), np.zeros(transfers)
    ready = np.zeros((nodes, pieces))
    taken, taken_until = np.zeros(first_slot[-1]), np.zeros(first_slot[-1])
    free_from = np.zeros(len(bandwidth))
    for r in range(len(round_offsets) - 1):
        for t in range(round_offsets[r], round_offsets[r + 1]):
            begin, delay = max(earliest[t], ready[source[t], piece[t]]), 0.0
            for i in range(route_start[t], route_start[t + 1]):
                begin = max(begin, free_from[links[i]])
                delay += latency[links[i]]
            i = route_start[t]
            while i < route_start[t + 1]:
                link, left, soonest = links[i], bandwidth[links[i]], np.inf
                for slot in range(first_slot[link], first_slot[link + 1]):
                    if taken_until[slot] > begin:
                        left -= taken[slot]
                        soonest = min(soonest, taken_until[slot])
                if left < rate[t] * (1 - ROUNDING):
                    # At the new start another transfer may be on a link checked before, so start
                    # again at the first link. Each time, a transfer on the route has ended, so this
                    # happens at most as often as the route has slots.
                    begin, i = soonest, route_start[t]
                else:
                    i += 1
            free = begin + hold[t]
            for i in range(route_start[t], route_start[t + 1]):
                link = links[i]
                oldest = first_slot[link]
                for slot in range(oldest + 1, first_slot[link + 1]):
                    if taken_until[slot] < taken_until[oldest]:
                        oldest = slot
                free_from[link] = max(free_from[link], taken_until[oldest])
                taken[oldest], taken_until[oldest] = rate[t], free
            start[t], end[t] = begin, free + delay
        # Only now, so that transfers in this round do not wait for each other.
        for t in range(round_offsets[r], round_offsets[r + 1]):
            ready[target[t], piece[t]] = max(ready[target[t], piece[t]], end[t])
    return start, end
