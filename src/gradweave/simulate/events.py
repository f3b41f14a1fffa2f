"""The event-driven simulator's loop, compiled."""

import numpy as np
from numpy.typing import NDArray

from gradweave.compiled import kernel
from gradweave.topology.topology import Floats, Integers


@kernel
def play_events(
    round_offsets: Integers,
    piece: Integers,
    source: Integers,
    target: Integers,
    links: Integers,
    route_start: Integers,
    link_seconds: Floats,
    link_latency: Floats,
    first_lane: Integers,
    nodes: int,
    pieces: int,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Start and end of each transfer; see `gradweave.simulate.event_seconds`.

    Args:
        round_offsets: [rounds+1] where each round's transfers start.
        piece: [T] piece.
        source: [T] node.
        target: [T] node.
        links: link directions of all routes.
        route_start: [T+1] where each transfer's links start.
        link_seconds: [L] time that one piece occupies a lane.
        link_latency: [L] seconds.
        first_lane: [L+1] where each link direction's lanes start.
        nodes: V.
        pieces: P.
    """
    transfers = len(piece)
    start, end = np.zeros(transfers), np.zeros(transfers)
    ready = np.zeros((nodes, pieces))
    lane_free = np.zeros(first_lane[-1])
    lane = np.empty(nodes, np.int64)
    for r in range(len(round_offsets) - 1):
        for t in range(round_offsets[r], round_offsets[r + 1]):
            begin, duration, latency = ready[source[t], piece[t]], 0.0, 0.0
            for i in range(route_start[t], route_start[t + 1]):
                link = links[i]
                best = first_lane[link]
                for candidate in range(best + 1, first_lane[link + 1]):
                    if lane_free[candidate] < lane_free[best]:
                        best = candidate
                lane[i - route_start[t]] = best
                begin = max(begin, lane_free[best])
                duration = max(duration, link_seconds[link])
                latency += link_latency[link]
            for i in range(route_start[t + 1] - route_start[t]):
                lane_free[lane[i]] = begin + duration
            start[t], end[t] = begin, begin + duration + latency
        # Only now, so that a transfer of this round does not wait for another of the same round.
        for t in range(round_offsets[r], round_offsets[r + 1]):
            ready[target[t], piece[t]] = max(ready[target[t], piece[t]], end[t])
    return start, end
