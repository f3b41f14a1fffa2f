"""The layout of a demand's blocks in the memory of one server."""

import dataclasses
import functools

import numpy as np
from numpy.typing import NDArray

from gradweave.schedules.schedule import Schedule
from gradweave.schedules.shares import apportion


@dataclasses.dataclass(frozen=True, eq=False)
class Layout:
    """One server's workspace: memory for all pieces that pass through the server.

    It has the pieces that the server contributes to, receives as a result, or passes on, in the
    order of the blocks. The input and output arrays of a call have the same blocks in that order,
    without the blocks that the server neither contributes to nor receives.
    """

    size: NDArray[np.int64]
    """[P] elements of each piece."""
    start: NDArray[np.int64]
    """[P] start of each piece in the workspace; −1 for pieces that never reach this server."""
    given: NDArray[np.bool_]
    """[P] whether the server contributes to the piece."""
    wanted: NDArray[np.bool_]
    """[P] whether the server must receive the piece as a result."""
    length: int
    """Number of elements in the workspace."""

    @staticmethod
    def of(schedule: Schedule, rank: int, itemsize: int) -> "Layout":
        """The workspace of one server.

        Args:
            schedule: a schedule of a demand.
            rank: rank of the server.
            itemsize: bytes per element.

        Raises:
            OptionError: the blocks are not multiples of that size.
            ScheduleError: the schedule has no demand.
        """
        elements = -(-schedule.demanded.total_bytes // itemsize)
        return Layout._of_sizes(schedule, rank, np.diff(schedule.piece_offsets(elements)))

    @staticmethod
    def resized(schedule: Schedule, rank: int, elements: int) -> "Layout":
        """The workspace of one server if every block has a size other than planned.

        Args:
            schedule: a schedule of a demand.
            rank: rank of the server.
            elements: number of elements in each block; the pieces keep their shares of it.
        """
        blocks = np.split(schedule.weights, schedule.first_pieces[1:])
        sizes = np.concatenate([apportion(elements, weights) for weights in blocks])
        return Layout._of_sizes(schedule, rank, sizes)

    @staticmethod
    def _of_sizes(schedule: Schedule, rank: int, size: NDArray[np.int64]) -> "Layout":
        gives, gets = schedule.contributors, schedule.destinations
        server = int(schedule.topology.servers[rank])
        given, wanted, used = np.zeros((3, schedule.pieces), bool)
        given[gives.owner[gives.servers == server]] = True
        wanted[gets.owner[gets.servers == server]] = True
        used[schedule.piece[(schedule.source == server) | (schedule.target == server)]] = True
        used |= given | wanted
        ends = np.cumsum(np.where(used, size, 0))
        start = np.where(used, ends - size, -1)
        return Layout(size, start, given, wanted, int(ends[-1]))

    def pieces(self, workspace: NDArray) -> list[NDArray]:
        """P views of the workspace; empty for pieces that never reach this server."""
        return [workspace[begin:end] for begin, end in self.cuts]

    @functools.cached_property
    def cuts(self) -> tuple[tuple[int, int], ...]:
        """[P] start and end of each piece in the workspace; both 0 for absent pieces."""
        starts = np.maximum(self.start, 0)
        ends = np.where(self.start < 0, 0, starts + self.size)
        return tuple(zip(starts.tolist(), ends.tolist(), strict=True))

    @functools.cached_property
    def elements(self) -> int:
        """Elements of all pieces, including those that a server lacks; the same at all servers."""
        return int(self.size.sum())

    def count(self, which: NDArray[np.bool_]) -> int:
        """The number of elements in some pieces.

        Args:
            which: [P] the pieces.
        """
        return int(self.size[which].sum())

    def copies(self, which: NDArray[np.bool_]) -> list[tuple[slice, slice]]:
        """Maps some pieces in the workspace to a packed array of only these pieces.

        Args:
            which: [P] pieces in this workspace.

        Returns:
            The fewest possible pairs of slices: in the workspace, and in the packed array.
        """
        begin, size = self.start[which], self.size[which]
        place = np.cumsum(size) - size
        first = np.flatnonzero(np.diff(begin - place, prepend=-1))
        ends = np.append(place[first[1:]], size.sum()) if len(first) else first
        return [
            (slice(at, at + end - packed), slice(packed, end))
            for at, packed, end in zip(
                begin[first].tolist(), place[first].tolist(), ends.tolist(), strict=True
            )
        ]

    def summed(self, schedule: Schedule) -> list[tuple[int, int]]:
        """The result pieces with several contributors, and the number of contributors of each."""
        found = np.flatnonzero(self.wanted & (schedule.contributors.sizes > 1))
        counts = schedule.contributors.sizes[found]
        return list(zip(found.tolist(), counts.tolist(), strict=True))
