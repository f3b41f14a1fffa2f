"""Rounds for transfers that have an order: as early as links and data allow."""

import numpy as np
from numpy.typing import NDArray

from gradweave.compiled import kernel


@kernel
def rounds_in_order(
    links: NDArray[np.int64],
    first: NDArray[np.int64],
    hop: NDArray[np.int64],
    cell_from: NDArray[np.int64],
    cell_to: NDArray[np.int64],
    cells: int,
    count: int,
    adds: NDArray[np.bool_] | None = None,
) -> NDArray[np.int64]:
    """[T] the earliest round of each transfer in which all before it on its links stay before it.

    One transfer a link and round, so that the event model gives each the whole rate of its route;
    and it serves a link's transfers in the order of the schedule. So it keeps the times.

    Args:
        links: link directions of the hops.
        first: [H+1] where each hop's links start.
        hop: [T] hop of each transfer, in the order in which they start.
        cell_from: [T] server and piece that it reads, as one number.
        cell_to: [T] those that it writes.
        cells: servers times pieces.
        count: L.
        adds: [T] whether it adds to what has been copied to where it writes, and has to wait for
            that; none, if not given.
    """
    ready, free = np.zeros(cells, np.int64), np.zeros(count, np.int64)
    rounds = np.empty(len(hop), np.int64)
    for t in range(len(hop)):
        at = ready[cell_from[t]]
        if adds is not None and adds[t]:
            at = max(at, ready[cell_to[t]])
        for i in range(first[hop[t]], first[hop[t] + 1]):
            at = max(at, free[links[i]])
        for i in range(first[hop[t]], first[hop[t] + 1]):
            free[links[i]] = at + 1
        rounds[t] = at
        ready[cell_to[t]] = max(ready[cell_to[t]], at + 1)  # sums come from several
    return rounds
