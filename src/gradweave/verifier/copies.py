"""An exact proof for pieces that are only copied, without a table of all servers and pieces.

An all-to-all of 512 servers has 261,632 pieces, each of which passes a few servers. A table with
each server's share of each piece, as in `gradweave.verifier.disjoint`, would be nearly empty. The
tables here grow only with the number of transfers.
"""

import numpy as np
from numpy.typing import NDArray

from gradweave.schedules.schedule import REDUCE, Schedule

TABLE_BYTES = 2
"""Bytes that `gradweave.verifier.disjoint` uses for each server and piece."""


def not_copied(schedule: Schedule) -> NDArray[np.int64]:
    """Pieces, in ascending order, that this proof does not show to end right.

    It applies to pieces with one contributor, if all their transfers are copies. A cell is a node's
    memory of such a piece. A copy writes it in its round, and the contributor's cell is written
    before all rounds. A copy reads a cell when its round starts, and a destination's cell is read
    after all rounds. A piece is proved if each of its cells that is read has been written before.

    The destinations of a proved piece have all of it in the end, since every write is of the whole
    piece, by induction over the rounds: the contributor's first write is, and a copy reads a cell
    that an earlier round has written, so it writes the whole piece too.

    All writes and reads are sorted by cell and time, 8 bytes each; the first entry of a cell must
    be a write. If that took more memory than the table, nothing is proved here.

    Args:
        schedule: a schedule with valid routes and ends, and without conflicting copies.
    """
    everything = np.arange(schedule.pieces)
    alone = schedule.contributors.sizes == 1
    if not alone.any():
        return everything
    alone[schedule.piece[schedule.op == REDUCE]] = False
    pieces = np.flatnonzero(alone)
    rows = slice(None) if alone.all() else np.flatnonzero(alone[schedule.piece])
    piece = schedule.piece[rows].astype(np.int64)
    starts, ends = (sets.take(pieces) for sets in (schedule.contributors, schedule.destinations))
    happens = 2 * len(piece) + len(pieces) + int(ends.sizes.sum())
    nodes, end = schedule.topology.num_nodes, 2 * schedule.rounds + 2
    bits = end.bit_length()
    table = TABLE_BYTES * len(pieces) * schedule.topology.num_servers
    if 8 * happens > table or (schedule.pieces * nodes) << bits > np.iinfo(np.int64).max:
        return everything
    # Even times are reads, odd times writes: 2t + 2 and 2t + 3 in round t.
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
    read[1:] &= cell[1:] != cell[:-1]  # only the first entry of each cell
    proved = alone
    proved[cell[read] // nodes] = False
    return np.flatnonzero(~proved)
