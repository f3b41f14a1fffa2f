"""A base tree grown from queues of hops: the compiled loop.

Hops over the same orbits of links are one kind, with one queue: all hops of that kind that leave
servers in the tree, servers in the order in which they were reached. In each round each kind in
turn takes hops from its queue while its links have room. A hop whose receiver already holds the
piece is dropped for good, so every hop is examined once, and no choice is random.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradweave.common.compiled import kernel
from gradweave.schedulers.kernels.slots import fits
from gradweave.schedulers.problem import Integers


class HopKinds(NamedTuple):
    """The hops that leave the root, sorted by kind; every other server has their images."""

    change: NDArray[np.int32]
    """[H, D] how each hop changes the coordinates of a server."""
    first_hop: Integers
    """[K+1] index of each kind's first hop."""
    links: Integers
    """The orbits of the links of each kind, concatenated; an orbit may occur twice."""
    first_link: Integers
    """[K+1] index of each kind's first link."""
    capacity: Integers
    """[R] hops of the base that each orbit carries per round."""


@kernel
def grow_from_queues(kinds: HopKinds, sizes: Integers, most: int) -> Integers:
    """[M, 3] round, rank of the sender and hop of each transfer; M < N − 1 if not all are reached.

    Args:
        kinds: the hops.
        sizes: [D] of the grid of servers, whose ranks are their places in it; the root has rank 0.
        most: rounds after which to give up.
    """
    servers, count = np.int64(1), np.int64(1)
    for size in sizes:
        servers *= size
    reached, held = np.zeros(servers, np.int64), np.zeros(servers, np.bool_)
    held[0] = True
    number = len(kinds.first_hop) - 1
    sender, hop = np.zeros(number, np.int64), kinds.first_hop[:-1].copy()  # heads of the queues
    place = np.zeros((number, len(sizes)), np.int64)  # coordinates of the senders
    used, transfers = np.zeros(len(kinds.capacity), np.int64), np.empty((servers - 1, 3), np.int64)
    for at in range(most):
        used[:] = 0
        before = count  # servers reached in this round send from the next on
        for kind in range(number):
            begin, end = kinds.first_link[kind], kinds.first_link[kind + 1]
            while (
                sender[kind] < before
                and count < servers
                and fits(kinds.capacity, used, kinds.links, begin, end)
            ):
                if hop[kind] == kinds.first_hop[kind]:
                    _set_place(place, kind, reached[sender[kind]], sizes)
                target = _moved(place, kind, kinds.change, hop[kind], sizes)
                if not held[target]:
                    for i in range(begin, end):
                        used[kinds.links[i]] += 1
                    transfers[count - 1, 0] = at
                    transfers[count - 1, 1] = reached[sender[kind]]
                    transfers[count - 1, 2] = hop[kind]
                    reached[count], held[target] = target, True
                    count += 1
                hop[kind] += 1
                if hop[kind] == kinds.first_hop[kind + 1]:
                    hop[kind] = kinds.first_hop[kind]
                    sender[kind] += 1
        if count in (before, servers):
            break
    return transfers[: count - 1]


@kernel(inner=True, allocates=False)
def _set_place(place: Integers, kind: int, rank: int, sizes: Integers) -> None:
    for axis in range(len(sizes) - 1, -1, -1):
        rank, place[kind, axis] = divmod(rank, sizes[axis])


@kernel(inlined=True)
def _moved(place: Integers, kind: int, change: Any, hop: int, sizes: Integers) -> Any:
    """The server to which a hop leads from the sender of a kind."""
    target = np.int64(0)
    for axis in range(len(sizes)):
        coordinate = place[kind, axis] + change[hop, axis]
        if coordinate >= sizes[axis]:
            coordinate -= sizes[axis]
        target = target * sizes[axis] + coordinate
    return target
