"""Dependencies among a piece's transfers: their order, and the longest path from each."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradweave.common.compiled import kernel
from gradweave.topology.topology import Floats, Integers


class Dependencies(NamedTuple):
    """The transfers: at most M per piece, the same for all pieces of a part.

    A transfer waits for all transfers that its source needs first; `following` holds the same
    relation in the other direction.
    """

    hop: NDArray[np.int64]
    """[parts, M] hop of each transfer; −1 for the missing transfers of parts with fewer than M."""
    waits: NDArray[np.int64]
    """[parts, M] number of transfers of the same piece that each waits for."""
    following: NDArray[np.int64]
    """Transfers that wait for each transfer, part by part."""
    first_following: NDArray[np.int64]
    """[parts, M+1] index of the first of `following` for each transfer."""
    ready: NDArray[np.float64]
    """[parts, M] seconds at which each transfer's source is ready."""
    tail_s: NDArray[np.float64]
    """[parts, M] seconds of latency and overhead on the longest path from a transfer, itself
    included, to the end of its piece."""
    tail_s_per_byte: NDArray[np.float64]
    """[parts, M] seconds per byte of the piece on that path."""


@kernel
def topological_order(waits: Integers, first: Integers, following: Integers) -> NDArray[np.int64]:
    """[M] transfers of a piece in topological order: Kahn's algorithm, O(M + edges).

    Args:
        waits: [M] how many transfers each waits for.
        first: [M+1] index of the first of `following` for each transfer.
        following: the transfers that wait for each transfer.
    """
    left, order, count = waits.copy(), np.empty(len(waits), np.int64), 0
    for m in range(len(waits)):
        if not left[m]:
            order[count] = m
            count += 1
    done = 0
    while done < count:
        m = order[done]
        done += 1
        for i in range(first[m], first[m + 1]):
            left[following[i]] -= 1
            if not left[following[i]]:
                order[count] = following[i]
                count += 1
    return order


@kernel
def tails(
    waits: Integers,
    first: Integers,
    following: Integers,
    latency: Floats,
    overhead: Floats,
    s_per_byte: Floats,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """[parts, M] seconds, and seconds per byte, of the longest path from each transfer to the end.

    Args:
        waits: [parts, M] how many transfers each waits for.
        first: [parts, M+1] index of the first of `following` for each transfer.
        following: the transfers that wait for each transfer, part by part.
        latency: [parts, M] seconds of each transfer.
        overhead: [parts, M] added after the latency: rounding decides ties.
        s_per_byte: [parts, M] seconds per byte of each transfer.
    """
    tail_s, tail_s_per_byte = np.empty(waits.shape), np.empty(waits.shape)
    for p in range(len(waits)):
        for m in topological_order(waits[p], first[p], following)[::-1]:
            seconds, per_byte = 0.0, 0.0
            for i in range(first[p, m], first[p, m + 1]):
                seconds = max(seconds, tail_s[p, following[i]])
                per_byte = max(per_byte, tail_s_per_byte[p, following[i]])
            tail_s[p, m] = seconds + latency[p, m] + overhead[p, m]
            tail_s_per_byte[p, m] = per_byte + s_per_byte[p, m]
    return tail_s, tail_s_per_byte


@kernel
def most_after(last: NDArray[np.bool_], value: Floats) -> NDArray[np.float64]:
    """[X] the largest later value in the same part; 0 for the last.

    Args:
        last: [X] whether each is the last of its part.
        value: [X] values, at least 0.
    """
    most = np.empty(len(value))
    for x in range(len(value) - 1, -1, -1):
        most[x] = 0.0 if last[x] else max(most[x + 1], value[x + 1])
    return most
