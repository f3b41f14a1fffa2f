"""Pieces that are only copied from where they start: an exact proof that needs no table of servers.

An all-to-all of 512 servers has 261,632 pieces, each of which passes a few servers. A table of what
each server holds of each piece, as in `gradweave.verify.disjoint`, is nearly empty then. Here what
is kept grows with the transfers alone.
"""

import numpy as np
from numpy.typing import NDArray

from gradweave.schedule.schedule import REDUCE, Schedule

TABLE_BYTES = 2
"""What `gradweave.verify.disjoint` keeps for each server and piece."""


def not_copied(schedule: Schedule) -> NDArray[np.int64]:
    """Pieces, in ascending order, that this proof does not show to end right.

    It is for pieces of a demand whose block has one contributor, and of which every transfer is a
    copy. A cell is a node's memory of such a piece. It is written by a copy in its round, and at
    the contributor before all rounds; it is read by a copy as its round begins, and at a
    destination after all rounds. A piece is proved if each of its cells that is read has been
    written before.

    Then every write writes the whole piece. At the contributor that is so; and if it is so of all
    writes before a round, what a copy reads in that round was written before, the last time as all
    other times by the whole piece. So what the destinations hold in the end is whole, too.

    All writes and reads are sorted by cell and time, 8 bytes each; a cell's first must be a write.
    Where that would take more memory than the table does, nothing is proved here.

    Args:
        schedule: without routes, ends or conflicting copies that are wrong.
    """
    everything = np.arange(schedule.pieces)
    if schedule.demand is None:
        return everything
    alone = schedule.contributors.sizes == 1
    alone[schedule.piece[schedule.op == REDUCE]] = False
    pieces = np.flatnonzero(alone)
    rows = slice(None) if alone.all() else np.flatnonzero(alone[schedule.piece])
    piece = schedule.piece[rows].astype(np.int64)
    starts, ends = (sets.take(pieces) for sets in (schedule.contributors, schedule.destinations))
    happens = 2 * len(piece) + len(starts.servers) + len(ends.servers)
    nodes, end = schedule.topology.num_nodes, 2 * schedule.rounds + 2
    bits = end.bit_length()
    table = TABLE_BYTES * len(pieces) * schedule.topology.num_servers
    if 8 * happens > table or (schedule.pieces * nodes) << bits > np.iinfo(np.int64).max:
        return everything
    # Even times are those of reads, odd ones of writes: 2t + 2 and 2t + 3 in round t.
    begins = 2 * schedule.round[rows].astype(np.int64) + 2
    keys = np.concatenate(
        [
            ((nodes * pieces + starts.servers) << bits) + 1,
            ((nodes * piece + schedule.source[rows]) << bits) + begins,
            ((nodes * piece + schedule.target[rows]) << bits) + begins + 1,
            ((nodes * pieces[ends.owner] + ends.servers) << bits) + end,
        ]
    )
    keys.sort()
    cell, read = keys >> bits, keys & 1 == 0
    read[1:] &= cell[1:] != cell[:-1]  # a cell's first alone
    proved = alone
    proved[cell[read] // nodes] = False
    return np.flatnonzero(~proved)
