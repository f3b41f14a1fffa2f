"""Where the parts of a demand's blocks are in the memory of one server."""

import dataclasses

import numpy as np
from numpy.typing import NDArray

from gradweave.schedule.schedule import Schedule


@dataclasses.dataclass(frozen=True, eq=False)
class Layout:
    """One server's workspace: its part of what moves, piece by piece.

    It has the pieces that the server contributes to, is to get, or passes on, in the order of the
    blocks. What it brings and gets are the same blocks one after the other, without the others.
    """

    size: NDArray[np.int64]
    """[P] elements of each piece."""
    start: NDArray[np.int64]
    """[P] where each piece begins in the workspace; −1 of those that it never has."""
    given: NDArray[np.bool_]
    """[P] pieces that it contributes to."""
    wanted: NDArray[np.bool_]
    """[P] pieces that it is to get."""
    length: int
    """Elements of the workspace."""

    @staticmethod
    def of(schedule: Schedule, rank: int, itemsize: int) -> "Layout":
        """The workspace of one server.

        Args:
            schedule: of a demand.
            rank: of the server.
            itemsize: bytes of an element.

        Raises:
            OptionError: blocks that elements of that size do not fill.
            ScheduleError: a schedule without a demand.
        """
        gives, gets = schedule.contributors, schedule.destinations
        bounds = schedule.piece_offsets(-(-schedule.demanded.total_bytes // itemsize))
        server = int(schedule.topology.servers[rank])
        given, wanted, used = np.zeros((3, schedule.pieces), bool)
        given[gives.owner[gives.servers == server]] = True
        wanted[gets.owner[gets.servers == server]] = True
        used[schedule.piece[(schedule.source == server) | (schedule.target == server)]] = True
        used |= given | wanted
        size = np.diff(bounds)
        ends = np.cumsum(np.where(used, size, 0))
        start = np.where(used, ends - size, -1)
        return Layout(size, start, given, wanted, int(ends[-1]))

    def pieces(self, workspace: NDArray) -> list[NDArray]:
        """P views of the workspace, empty ones of pieces that the server never has."""
        sizes = np.where(self.start < 0, 0, self.size)
        starts = np.maximum(self.start, 0)
        pairs = zip(starts.tolist(), sizes.tolist(), strict=True)
        return [workspace[begin : begin + size] for begin, size in pairs]

    def elements(self, which: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Places in the workspace of the elements of some pieces, one piece after the other.

        Args:
            which: [P] pieces that it has.
        """
        size, start = self.size[which], self.start[which]
        first = np.cumsum(size) - size
        return np.arange(int(size.sum())) + np.repeat(start - first, size)
