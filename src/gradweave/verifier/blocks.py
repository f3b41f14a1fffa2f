"""Transfers in blocks of whole rounds, so that a check's memory does not grow with the schedule."""

import dataclasses
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from gradweave.schedules.schedule import COPY, Schedule

TRANSFERS = 1 << 18
"""Minimum transfers per block except the last: enough for NumPy, few enough for caches."""


@dataclasses.dataclass(frozen=True, eq=False)
class Block:
    """Transfers of some rounds, as 64-bit integers."""

    begin: int
    """First row of the schedule in the block."""
    round: NDArray[np.int64]
    """[M] as in the schedule, like the following fields."""
    piece: NDArray[np.int64]
    source: NDArray[np.int64]
    target: NDArray[np.int64]
    copied: NDArray[np.bool_]
    """[M] whether the transfer overwrites."""
    nodes: NDArray[np.int64]
    """The routes' nodes, one route after the other."""
    offsets: NDArray[np.int64]
    """[M+1] where each route starts in `nodes`."""

    @staticmethod
    def of(schedule: Schedule, begin: int, end: int) -> "Block":
        """Rows `begin` to `end − 1`."""
        length = schedule.route_length
        if length is None:
            offsets = schedule.route_offsets[begin : end + 1].astype(np.int64)
        else:
            offsets = np.arange(begin, end + 1, dtype=np.int64) * length
        rows = slice(begin, end)
        return Block(
            begin,
            schedule.round[rows].astype(np.int64),
            schedule.piece[rows].astype(np.int64),
            schedule.source[rows].astype(np.int64),
            schedule.target[rows].astype(np.int64),
            schedule.op[rows] == COPY,
            schedule.route_nodes[offsets[0] : offsets[-1]].astype(np.int64),
            offsets - offsets[0],
        )

    def __len__(self) -> int:
        return len(self.round)

    def rounds(self) -> list[int]:
        """Where each round starts, and the end."""
        inner = np.flatnonzero(self.round[1:] != self.round[:-1]) + 1
        return [0, *inner.tolist(), len(self)]


def blocks(schedule: Schedule) -> Iterator[Block]:
    """All transfers, in order."""
    rounds, begin = schedule.round, 0
    while begin < schedule.num_transfers:
        last = rounds[min(begin + TRANSFERS, schedule.num_transfers) - 1]
        end = int(np.searchsorted(rounds, last, side="right"))
        yield Block.of(schedule, begin, end)
        begin = end
