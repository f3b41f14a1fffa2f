"""Steps: how many transfers in a row a schedule makes."""

import itertools

import numpy as np

from gradweave.schedule.schedule import Schedule


def steps(schedule: Schedule) -> int:
    """The longest chain of transfers each of which waits for what the one before brought.

    It is the time that a schedule takes in latencies: what small messages take. A piece that is
    copied on after it was reduced goes on with the same chain.

    Args:
        schedule: a valid schedule.

    Source: Cai and others 2021 (SCCL), whose schedules have C chunks, S steps and R rounds.

    >>> import gradweave as gw
    >>> ring = gw.schedulers.Ring().schedule("ring:4")
    >>> ring.rounds, steps(ring)
    (6, 6)
    """
    pieces = schedule.pieces
    made = np.zeros(schedule.topology.num_nodes * pieces, np.int32)
    sent = schedule.source.astype(np.int64) * pieces + schedule.piece
    received = schedule.target.astype(np.int64) * pieces + schedule.piece
    for low, high in itertools.pairwise(schedule.round_offsets.tolist()):
        longer = made[sent[low:high]] + 1
        np.maximum.at(made, received[low:high], longer)
    return int(made.max(initial=0))
