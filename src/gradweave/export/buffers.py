"""Positions of a server's pieces in the input, output and scratch buffers of a GPU executor."""

import numpy as np
from numpy.typing import NDArray

from gradweave.errors import ScheduleError
from gradweave.execute.exchanges import exchanged
from gradweave.schedules.schedule import Schedule

INPUT, OUTPUT, SCRATCH = "i", "o", "s"
"""The buffers' names, in MSCCL's files and in MSCCL++'s."""

Place = tuple[str, int]
"""The name of a buffer and the index of a chunk in it; a chunk is as large as a piece."""


class Buffers:
    """The buffers of one server while a schedule runs: where each piece is read and written.

    A piece is in the input until it is first written. Writes go to the output, or to scratch memory
    if the collective leaves the piece out of this server's output. The input is never written, so
    one file serves both in-place calls, where input and output share memory, and out-of-place
    calls.

    An all-reduce has all pieces, in order, in input and output. In an all-gather a server's input
    has the pieces that it roots, and its output has all pieces, those of rank 0 first; a
    reduce-scatter is its mirror image.

    Raises:
        ScheduleError: an all-gather or reduce-scatter whose servers are not all roots of equally
            many pieces, which these executors cannot express.
    """

    def __init__(self, schedule: Schedule, rank: int) -> None:
        if exchanged(schedule).any():
            raise ScheduleError(
                "servers exchange a piece, more than two each with each, and add in the order of "
                "their ids; this format adds to what is there, so that their sums would differ in "
                "the last bits; export a schedule without such exchanges"
            )
        self._collective = schedule.collective
        root = schedule.topology.rank[schedule.root]
        self._at_root, self._position = _positions(schedule, root)
        self._mine = root == rank
        self._written: set[int] = set()
        self._scratch: dict[int, int] = {}
        if schedule.collective == "reduce_scatter":
            arriving = schedule.target == schedule.topology.servers[rank]
            partial = np.unique(schedule.piece[arriving])
            self._scratch = {
                int(piece): slot for slot, piece in enumerate(partial[~self._mine[partial]])
            }
        at_root = len(self._mine) // schedule.topology.num_servers
        self.input_chunks = at_root if schedule.collective == "all_gather" else len(self._mine)
        self.output_chunks = at_root if schedule.collective == "reduce_scatter" else len(self._mine)
        self.scratch_chunks = len(self._scratch)
        """Chunks of scratch memory for partial sums."""

    def at(self, piece: int) -> Place:
        """The current place of a piece.

        In an all-gather, it is undefined until it arrives at a server other than its root.
        """
        if piece in self._written or (self._collective == "all_gather" and not self._mine[piece]):
            return self.written(piece)
        if self._collective == "all_gather":
            return INPUT, int(self._at_root[piece])
        return INPUT, int(self._position[piece])

    def written(self, piece: int) -> Place:
        """The destination of writes to a piece."""
        if piece in self._scratch:
            return SCRATCH, self._scratch[piece]
        if self._collective == "reduce_scatter":
            return OUTPUT, int(self._at_root[piece])
        return OUTPUT, int(self._position[piece])

    def write(self, piece: int) -> Place:
        """Records a write to a piece and returns its destination."""
        self._written.add(piece)
        return self.written(piece)

    def left_in_input(self) -> list[int]:
        """Pieces of the output that no transfer wrote: those that an all-gather's root keeps."""
        if self._collective != "all_gather":
            return []
        return [
            piece for piece in np.flatnonzero(self._mine).tolist() if piece not in self._written
        ]


def _positions(schedule: Schedule, root: NDArray) -> tuple[NDArray, NDArray]:
    """[P] each piece's index among those of its root, and its index in a buffer that holds all."""
    if schedule.collective == "all_reduce":
        indices = np.arange(schedule.pieces)
        return indices, indices
    servers = schedule.topology.num_servers
    count = np.bincount(root, minlength=servers)
    if (count != count[0]).any():
        most, least = int(count.argmax()), int(count.argmin())
        most_at, least_at = (
            schedule.topology.node_name(int(schedule.topology.servers[rank]))
            for rank in (most, least)
        )
        raise ScheduleError(
            f"{schedule.collective}: expected every server to be the root of equally many pieces, "
            f"got {count[most]} at {most_at} and {count[least]} at {least_at}; "
            "make the schedule with one piece per server"
        )
    by_root = np.argsort(root, kind="stable")
    position = np.empty(schedule.pieces, np.int64)
    position[by_root] = np.arange(schedule.pieces)
    return position % count[0], position


def check_equal_pieces(schedule: Schedule, format: str) -> None:
    """Refuses pieces of unequal size, for formats whose chunks are equal.

    Raises:
        ScheduleError: naming the format.
    """
    if schedule.shares is not None:
        raise ScheduleError(
            f"shares: the chunks of {format} are of one size; gradweave export --equal-pieces, or "
            "gradweave.export.in_equal_pieces, makes such pieces"
        )


def plain_name(schedule: Schedule, name: str | None) -> str:
    """A name that every parser reads: at most 63 ASCII letters, digits and punctuation marks."""
    text = f"{schedule.collective}_{schedule.topology.name}" if name is None else name
    plain = "".join(
        letter if letter.isascii() and (letter.isalnum() or letter in "_-.:=,+") else "_"
        for letter in text
    )
    return plain[:63] or "gradweave"
