"""A periodic schedule: in each period, each two servers meet in the same slot.

Where ports are the bottleneck, transfers that start as their links get free soon leave ports that
wait for each other. Here a period sends one piece over each tree. In its slot d, every server sends
to the one d ranks after it: all send and all receive at one time. That is how a full star, and any
switch, is filled completely. A transfer whose data is not there in its slot waits for that of the
next period. Times come out of the event model, which keeps each link's order.
"""

import numpy as np
from numpy.typing import NDArray

from gradweave.schedulers.unequal.cuts import Cut
from gradweave.schedulers.unequal.parts import Parts
from gradweave.schedulers.unequal.tuning import TUNING


def periodic_slots(parts: Parts, cut: Cut) -> NDArray[np.int64]:
    """[P·M] the slot of each transfer, piece by piece, counted from the first period's start.

    Args:
        parts: with the trees that each of their pieces takes.
        cut: the pieces, see `periodic_cut`.
    """
    servers, transfers = parts.topology.num_servers, parts.trees.hop.shape[1]
    hop = parts.trees.hop
    distance = (parts.target[hop] - parts.source[hop]) % servers - 1
    stages = 2 if 0 < parts.reduces < transfers else 1
    copies = np.arange(transfers) >= parts.reduces
    slot = stages * distance + (copies if stages == 2 else 0)
    length = stages * (servers - 1)
    later = _periods_later(parts, slot, length)
    count = np.bincount(cut.part, minlength=len(parts.root))
    periods = int(np.gcd.reduce(count))
    period = cut.number * periods // count[cut.part]
    at = (period[:, None] + later[cut.part]) * length + slot[cut.part]
    return at.reshape(-1)


def _periods_later(parts: Parts, slot: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    """[parts, M] how many periods after its piece's first a transfer has its slot.

    As few as let its data arrive before.
    """
    from gradweave.schedulers.kernels.precedence import topological_order

    trees = parts.trees
    later = np.zeros_like(slot)
    for part, (mine, first) in enumerate(zip(slot, trees.first_following, strict=True)):
        for transfer in topological_order(trees.waits[part], first, trees.following).tolist():
            arrival = later[part, transfer] * length + mine[transfer] + TUNING.arrival_margin
            then = trees.following[first[transfer] : first[transfer + 1]]
            later[part, then] = np.maximum(later[part, then], -((mine[then] - arrival) // length))
    return later
