"""Dependencies among a schedule's transfers that hold in any order of jobs, compiled."""

import numpy as np
from numpy.typing import NDArray

from gradweave.common.compiled import kernel
from gradweave.topology.topology import Integers


@kernel
def dependencies(
    first: Integers,
    round: Integers,
    source: Integers,
    target: Integers,
    copies: NDArray[np.bool_],
    owns: NDArray[np.bool_],
    most: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], bool]:
    """Dependencies among a piece's transfers: in any order that keeps them, all read the same data.

    A transfer waits for the previous writes to its source, and for transfers that read or copy to
    the data it overwrites. A sum also waits for the copy that it is added to; sums into the same
    data need no order among themselves. O(M²) per piece.

    Args:
        first: [P+1] index of each piece's first transfer; transfers are in the order of rounds.
        round: [T] round.
        source: [T] node.
        target: [T] node.
        copies: [T] whether it copies.
        owns: [T] whether the target contributes to the piece.
        most: M, most transfers of a piece.

    Returns:
        [P, M] how many transfers each waits for; the transfers that wait for each; [P, M+1] where
        those start; and whether that is complete: it is not if a transfer reads data that another
        of the same round overwrites.
    """
    pieces = len(first) - 1
    waits = np.zeros((pieces, most), np.int64)
    starts = np.zeros((pieces, most + 1), np.int64)
    following = np.empty(1024, np.int64)
    count = 0
    for p in range(pieces):
        for a in range(first[p], first[p + 1]):
            starts[p, a - first[p]] = count
            for b in range(a + 1, first[p + 1]):
                reads = source[b] == target[a]
                if round[a] == round[b]:
                    if reads or source[a] == target[b]:
                        return waits, following, starts, False
                    continue
                # A server that does not contribute has nothing to add to but what was copied to it
                # before.
                adds = copies[a] and not owns[b]
                over = target[a] == target[b] and (copies[b] or adds)
                if reads or over or source[a] == target[b]:
                    if count == len(following):
                        longer = np.empty(2 * count, np.int64)
                        longer[:count] = following
                        following = longer
                    following[count] = b - first[p]
                    count += 1
                    waits[p, b - first[p]] += 1
        starts[p, first[p + 1] - first[p] :] = count
    return waits, following[:count], starts, True
