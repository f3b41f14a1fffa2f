"""Transfers in turns: period after period, each two servers meet at the same place in it.

Where ports are the bottleneck, transfers that start as their links get free soon leave ports that
wait for each other. Here a period sends one piece over each tree. In its turn d, every server sends
to the one d ranks after it: all send and all receive at one time. That is how a full star, and any
switch, is filled completely. A transfer whose data is not there when its turn comes waits for the
next period's. Times come out of the event model, which keeps each link's order.
"""

import numpy as np
from numpy.typing import NDArray

from gradweave.schedulers.unequal.cuts import Cut
from gradweave.schedulers.unequal.parts import Parts, waiting_order

MARGIN = 2
"""Turns between the arrival of data and the transfer that needs it."""


def turns(parts: Parts, cut: Cut) -> NDArray[np.int64]:
    """[P·M] the turn of each transfer, piece by piece, counted from the first period's start.

    Args:
        parts: with the trees that each of their pieces takes.
        cut: the pieces, see `periodic_cut`.
    """
    servers, transfers = parts.topology.num_servers, parts.trees.hop.shape[1]
    hop = parts.trees.hop
    distance = (parts.target[hop] - parts.source[hop]) % servers - 1
    stages = 2 if 0 < parts.reduces < transfers else 1
    copies = np.arange(transfers) >= parts.reduces
    turn = stages * distance + (copies if stages == 2 else 0)
    length = stages * (servers - 1)
    later = _periods_later(parts, turn, length)
    count = np.bincount(cut.part, minlength=len(parts.root))
    periods = int(np.gcd.reduce(count))
    period = cut.number * periods // count[cut.part]
    at = (period[:, None] + later[cut.part]) * length + turn[cut.part]
    return at.reshape(-1)


def _periods_later(parts: Parts, turn: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    """[parts, M] how many periods after its piece's first a transfer has its turn.

    As few as let its data arrive before.
    """
    trees = parts.trees
    later = np.zeros_like(turn)
    for part, (mine, first) in enumerate(zip(turn, trees.first_following, strict=True)):
        for transfer in waiting_order(trees.waits[part], first, trees.following):
            arrival = later[part, transfer] * length + mine[transfer] + MARGIN
            then = trees.following[first[transfer] : first[transfer + 1]]
            later[part, then] = np.maximum(later[part, then], -((mine[then] - arrival) // length))
    return later
