"""The loop of `gradweave.schedules.overlap`."""

import numpy as np
from numpy.typing import NDArray

from gradweave.common.compiled import kernel


@kernel
def earliest_rounds(
    round_offsets: NDArray[np.int64],
    links: NDArray[np.int64],
    first_link: NDArray[np.int64],
    source: NDArray[np.int64],
    target: NDArray[np.int64],
    piece: NDArray[np.int64],
    copies: NDArray[np.bool_],
    capacity: NDArray[np.int64],
    nodes: int,
    pieces: int,
) -> NDArray[np.int64]:
    """The earliest round of each copy, in the schedule's order; reduces stay in their rounds.

    Correct because a copy only moves earlier, not before its source has the piece, not before the
    data that it overwrites was written and sent on, and only if its route has capacity left by the
    transfers before it in order. Takes at most transfers × rounds × hops steps.

    Args:
        round_offsets: [rounds+1] where each round's transfers start.
        links: links of all routes, one after the other.
        first_link: [T+1] where each transfer's links start.
        source: [T] node.
        target: [T] node.
        piece: [T] number.
        copies: [T] whether it is a copy.
        capacity: [L] capacity of each link.
        nodes: number of nodes.
        pieces: number of pieces.
    """
    rounds = len(round_offsets) - 1
    load = np.zeros((rounds, len(capacity)), np.int32)
    ready = np.zeros((nodes, pieces), np.int32)
    last_sent = np.zeros((nodes, pieces), np.int32)
    taken = np.empty(len(source), np.int64)
    for at in range(rounds):
        low, high = round_offsets[at], round_offsets[at + 1]
        for t in range(low, high):
            last_sent[source[t], piece[t]] = at
        for t in range(low, high):
            taken[t] = at
            if copies[t]:
                first = max(
                    ready[source[t], piece[t]],
                    ready[target[t], piece[t]],
                    last_sent[target[t], piece[t]],
                )
                for sooner in range(first, at):
                    if _has_room(load, links, first_link, capacity, sooner, t):
                        taken[t] = sooner
                        break
            for i in range(first_link[t], first_link[t + 1]):
                load[taken[t], links[i]] += 1
            now = ready[target[t], piece[t]]
            ready[target[t], piece[t]] = max(now, taken[t] + 1)
    return taken


@kernel(inner=True, allocates=False)
def _has_room(
    load: NDArray[np.int32],
    links: NDArray[np.int64],
    first_link: NDArray[np.int64],
    capacity: NDArray[np.int64],
    at: int,
    t: int,
) -> bool:
    """Whether each link of a transfer's route can carry it in a round."""
    for i in range(first_link[t], first_link[t + 1]):
        if load[at, links[i]] >= capacity[links[i]]:
            return False
    return True
