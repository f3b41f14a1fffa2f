"""A periodic schedule: in each period, every two servers meet in the same slot.

If ports are the bottleneck, transfers that start as soon as their links are free soon leave ports
waiting for each other. Here, instead, a period sends one piece over each tree, and in slot d of the
period every server sends to the server d ranks after it: all servers send and receive at the same
time. This is how a full star, or any switch, is used completely. A transfer whose data is not
available in its slot waits for that slot in the next period. Times come from the event model, which
keeps each link's order.
"""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gradweave.schedulers.ordering.cuts import Cut
from gradweave.schedulers.ordering.transfers import CarrierTransfers
from gradweave.schedulers.packing.tuning import TUNING
from gradweave.schedules.schedule import COPY

if TYPE_CHECKING:
    from gradweave.schedulers.kernels.precedence import Dependencies


def periodic_slots(transfers: CarrierTransfers, cut: Cut) -> NDArray[np.float64]:
    """[P·M] the slot of each transfer, piece by piece, counted from the first period's start.

    Infinite for missing transfers.

    Args:
        transfers: the transfers of the carriers.
        cut: the pieces, with as many of each carrier in each period; see `periodic_cut`.
    """
    trees, there = transfers.trees, transfers.trees.hop >= 0
    ranks = (transfers.target - transfers.source)[trees.hop]  # by which the target is ahead
    distance = np.where(there, ranks % transfers.topology.num_servers, 1)
    copies = transfers.op == COPY
    stages = 2 if copies.any() and not copies.all() else 1
    # Reductions and copies over the same distance have slots next to each other, so that both
    # stages of different pieces share every period.
    slot = stages * (distance - 1) + (copies if stages == 2 else 0)
    length = stages * int(distance.max())
    later = _periods_later(trees, slot, length)
    count = np.bincount(cut.part, minlength=len(trees.hop))
    periods = int(np.gcd.reduce(count))
    period = cut.number * periods // count[cut.part]
    at = (period[:, None] + later[cut.part]) * length + slot[cut.part]
    return np.where(there[cut.part], at, np.inf).reshape(-1)


def _periods_later(
    trees: "Dependencies", slot: NDArray[np.int64], length: int
) -> NDArray[np.int64]:
    """[parts, M] number of periods between a piece's first period and a transfer's slot.

    The number is the smallest for which the transfer's data arrives before the slot.
    """
    from gradweave.schedulers.kernels.precedence import topological_order

    later = np.zeros_like(slot)
    for part, (mine, first) in enumerate(zip(slot, trees.first_following, strict=True)):
        for transfer in topological_order(trees.waits[part], first, trees.following).tolist():
            arrival = later[part, transfer] * length + mine[transfer] + TUNING.arrival_margin
            then = trees.following[first[transfer] : first[transfer + 1]]
            later[part, then] = np.maximum(later[part, then], -((mine[then] - arrival) // length))
    return later
