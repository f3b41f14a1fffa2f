"""Dependencies of a schedule's transfers, and the chains of transfers that decide its time."""

import numpy as np
from numpy.typing import NDArray

from gradweave.common.compiled import kernel
from gradweave.topology.topology import Floats, Integers
from gradweave.topology.units import ROUNDING


@kernel
def dependencies(
    first: Integers, rounds: Integers, source: Integers, target: Integers, adds: NDArray, nodes: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """Pairs of transfers of a piece of which the second must come after the first.

    A transfer needs all earlier writes to its piece at its source: the last copy, or the sums
    before any copy. Writes count from the next round on. A sum into a copy comes after it.

    Args:
        first: [P+1] index of each piece's first transfer.
        rounds: [X] round of each transfer, ascending within a piece.
        source: [X] server that sends.
        target: [X] server that receives.
        adds: [X] whether the transfer adds to what is there, so that it does not replace it.
        nodes: number of nodes.

    Returns:
        The first and the second of each pair, and [X] whether a transfer adds to a copy.
    """
    count = len(rounds)
    last = np.full(nodes, -1)  # the last write to a node's piece, and the write before each
    earlier = np.full(count, -1)
    copied, adds_to_copy = np.full(nodes, -1), np.zeros(count, np.bool_)  # each node's last copy
    before, after, pairs = np.empty(4 * count + 16, np.int64), np.empty(4 * count + 16, np.int64), 0
    for p in range(len(first) - 1):
        begin = first[p]
        while begin < first[p + 1]:
            end = begin
            while end < first[p + 1] and rounds[end] == rounds[begin]:
                at = last[source[end]]
                if pairs + 2 * (end - first[p] + 1) > len(before):
                    before = np.concatenate((before, np.empty(len(before), np.int64)))
                    after = np.concatenate((after, np.empty(len(after), np.int64)))
                if adds[end] and copied[target[end]] >= 0:
                    before[pairs], after[pairs] = copied[target[end]], end
                    adds_to_copy[end] = True
                    pairs += 1
                while at >= 0:
                    before[pairs], after[pairs] = at, end
                    pairs += 1
                    at = earlier[at]
                end += 1
            for x in range(begin, end):
                earlier[x] = last[target[x]] if adds[x] else -1
                last[target[x]] = x
                copied[target[x]] = copied[target[x]] if adds[x] else x
            begin = end
        for x in range(first[p], first[p + 1]):
            last[target[x]] = copied[target[x]] = -1
    return before[:pairs], after[:pairs], adds_to_copy


@kernel
def chains(
    ends: Integers,
    start: Floats,
    free: Floats,
    end: Floats,
    by_free: Integers,
    by_end: Integers,
    piece: Integers,
    source: Integers,
    target: Integers,
    per_byte: Floats,
    links: Integers,
    first: Integers,
    pieces: int,
) -> NDArray[np.float64]:
    """[E, P] seconds per byte of each piece on the chain of transfers that leads to some ends.

    Each transfer of a chain starts when its predecessor delivers its data or frees a link.

    Args:
        ends: [E] the last transfer of each chain.
        start: [X] when each transfer starts.
        free: [X] when it frees its links.
        end: [X] when it arrives.
        by_free: [X] transfers by `free`.
        by_end: [X] transfers by `end`.
        piece: [X] piece that it moves.
        source: [X] server that sends.
        target: [X] server that receives.
        per_byte: [X] seconds per byte.
        links: links of the routes, concatenated.
        first: [X+1] index of each route's first link.
        pieces: P.
    """
    found = np.zeros((len(ends), pieces))
    frees, arrives, count = free[by_free], end[by_end], len(start)
    for e in range(len(ends)):
        x = ends[e]
        while True:
            found[e, piece[x]] += per_byte[x]
            now = start[x]
            low, high, cause = now * (1 - ROUNDING), now * (1 + ROUNDING), -1
            if now <= 0.0:
                break
            i = np.searchsorted(arrives, low)
            # Only transfers that started sooner: the walk back in time ends.
            while i < count and arrives[i] <= high and cause < 0:
                y = by_end[i]
                if piece[y] == piece[x] and target[y] == source[x] and start[y] < now:
                    cause = y
                i += 1
            i = np.searchsorted(frees, low)
            while i < count and frees[i] <= high and cause < 0:
                y = by_free[i]
                if start[y] < now and _share_a_link(x, y, links, first):
                    cause = y
                i += 1
            if cause < 0:
                break  # a server that is ready late
            x = cause
    return found


@kernel(inlined=True)
def _share_a_link(x: int, y: int, links: Integers, first: Integers) -> bool:
    for i in range(first[x], first[x + 1]):
        for j in range(first[y], first[y + 1]):
            if links[i] == links[j]:
                return True
    return False
