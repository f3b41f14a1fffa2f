"""Steps: the longest sequence of dependent transfers in a schedule."""

import itertools

import numpy as np

from gradweave.schedules.given import ScheduleLike, as_schedule


def steps(schedule: ScheduleLike) -> int:
    """Length of the longest chain of transfers that each wait for the previous one's data.

    It is the schedule's time in latencies, which dominates for small messages. A piece that is
    copied after it was reduced continues the same chain.

    Args:
        schedule: a valid schedule.

    Source: Cai et al. 2021 (SCCL), whose schedules have C chunks, S steps and R rounds.

    >>> import gradweave as gw
    >>> ring = gw.schedulers.Ring().schedule("ring:4")
    >>> ring.rounds, steps(ring)
    (6, 6)
    """
    schedule = as_schedule(schedule)
    pieces = schedule.pieces
    made = np.zeros(schedule.topology.num_nodes * pieces, np.int32)
    sent = schedule.source.astype(np.int64) * pieces + schedule.piece
    received = schedule.target.astype(np.int64) * pieces + schedule.piece
    for low, high in itertools.pairwise(schedule.round_offsets.tolist()):
        longer = made[sent[low:high]] + 1
        np.maximum.at(made, received[low:high], longer)
    return int(made.max(initial=0))
