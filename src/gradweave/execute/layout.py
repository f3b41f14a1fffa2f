"""Where the parts of a demand's blocks are in the memory of one server."""

import dataclasses
import functools

import numpy as np
from numpy.typing import NDArray

from gradweave.schedule.schedule import Schedule
from gradweave.schedule.shares import apportion


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
        elements = -(-schedule.demanded.total_bytes // itemsize)
        return Layout._of_sizes(schedule, rank, np.diff(schedule.piece_offsets(elements)))

    @staticmethod
    def resized(schedule: Schedule, rank: int, elements: int) -> "Layout":
        """The workspace of one server, where every block has another size than was planned for.

        Args:
            schedule: of a demand.
            rank: of the server.
            elements: of each block; its pieces keep their shares.
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
        """P views of the workspace, empty ones of pieces that the server never has."""
        return [workspace[begin:end] for begin, end in self.cuts]

    @functools.cached_property
    def cuts(self) -> tuple[tuple[int, int], ...]:
        """[P] where each piece begins and ends in the workspace; 0 and 0 where it never is."""
        starts = np.maximum(self.start, 0)
        ends = np.where(self.start < 0, 0, starts + self.size)
        return tuple(zip(starts.tolist(), ends.tolist(), strict=True))

    def count(self, which: NDArray[np.bool_]) -> int:
        """How many elements some pieces have.

        Args:
            which: [P] pieces.
        """
        return int(self.size[which].sum())

    def copies(self, which: NDArray[np.bool_]) -> list[tuple[slice, slice]]:
        """Where some pieces are in the workspace, and where if they followed each other.

        Args:
            which: [P] pieces that it has.

        Returns:
            As few pairs of slices as there can be.
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
        """The pieces that it is to get, with how many contribute to each, where several do."""
        found = np.flatnonzero(self.wanted & (schedule.contributors.sizes > 1))
        counts = schedule.contributors.sizes[found]
        return list(zip(found.tolist(), counts.tolist(), strict=True))
