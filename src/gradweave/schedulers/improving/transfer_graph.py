"""A schedule's transfers and their precedence, to order them and size their pieces again."""

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gradweave.schedulers.kernels.wires import Wires, wires_of
from gradweave.schedulers.ordering.cuts import DENOMINATOR, integer_shares
from gradweave.schedules.schedule import REDUCE, Schedule

if TYPE_CHECKING:
    from gradweave.schedulers.kernels.precedence import Dependencies


@dataclasses.dataclass(frozen=True, eq=False)
class TransferGraph:
    """Transfers that may start in any order in which each has the data that it sends.

    X transfers are sorted by piece, and in the schedule's order within a piece.
    """

    origin: Schedule
    """The schedule that was read."""
    wires: Wires
    """The distinct routes."""
    first: NDArray[np.int64]
    """[P+1] index of each piece's first transfer."""
    row: NDArray[np.int64]
    """[X] place of each transfer in the schedule's order."""
    hop: NDArray[np.int64]
    """[X] route of each transfer."""
    op: NDArray[np.int64]
    """[X] `REDUCE` or `COPY`."""
    adds: NDArray[np.bool_]
    """[X] whether a transfer adds to a copy, which must be there before."""
    root: NDArray[np.int64]
    """[P] rank of each root."""
    group: NDArray[np.int64]
    """[P] group of each piece: the bytes of a group of pieces are given."""
    before: NDArray[np.int64]
    after: NDArray[np.int64]
    """[E] pairs of transfers of which the second must come after the first."""

    @staticmethod
    def of(schedule: Schedule) -> "TransferGraph":
        """Reads a valid schedule."""
        from gradweave.schedulers.improving.transfers_kernel import dependencies

        topology = schedule.topology
        order = np.lexsort((schedule.round, schedule.piece))
        wires, hop = wires_of(schedule)
        counts = np.bincount(schedule.piece, minlength=schedule.pieces)
        first = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        op = schedule.op[order].astype(np.int64)
        ends = (end[order].astype(np.int64) for end in (schedule.source, schedule.target))
        before, after, adds = dependencies(
            first,
            schedule.round[order].astype(np.int64),
            *ends,
            op == REDUCE,
            topology.num_nodes,
        )
        root = topology.rank[schedule.root].astype(np.int64)
        # Bytes may move between the pieces of a block, or of a root in a single stage; in an
        # all-reduce, between all pieces, as any server may root any share.
        group = np.zeros(schedule.pieces, np.int64)
        if schedule.demand is not None and schedule.block is not None:
            group = schedule.block.astype(np.int64)
        elif schedule.collective != "all_reduce":
            group = root
        return TransferGraph(
            schedule,
            wires,
            first,
            order,
            hop[order],
            op,
            adds,
            root,
            group,
            before,
            after,
        )

    @property
    def pieces(self) -> int:
        """P."""
        return len(self.root)

    @functools.cached_property
    def piece(self) -> NDArray[np.int64]:
        """[X] piece of each transfer."""
        return np.repeat(np.arange(self.pieces), np.diff(self.first))

    def trees(self) -> "Dependencies":
        """The transfers for list scheduling, as one part of one piece."""
        from gradweave.schedulers.ordering.list_scheduling import dependencies

        return dependencies(self.hop[None], self.before, self.after)

    def hold_s(self, size: NDArray[np.float64]) -> NDArray[np.float64]:
        """[X] seconds for which each transfer holds its links.

        Args:
            size: [P] bytes of each piece.
        """
        wires, hop = self.wires, self.hop
        return wires.overhead[hop] + size[self.piece] / wires.rate[hop]

    def reordered(self, start: NDArray, size: NDArray[np.float64]) -> Schedule:
        """The schedule in which transfers start in this order.

        Args:
            start: [X] times or places whose order is kept.
            size: [P] bytes of each piece.
        """
        from gradweave.schedulers.ordering.lower import lower

        order = np.argsort(start, kind="stable")
        origin = self.origin
        columns: dict[str, Any] = {}
        if origin.demand is not None and origin.block is not None:
            columns = {"demand": origin.demand, "block": self.group}
        return lower(
            origin.topology,
            self.wires.links,
            self.wires.first,
            self.hop[order],
            piece=self.piece[order],
            op=self.op[order],
            root=self.root,
            adds=self.adds[order],
            collective=vars(origin)["collective"],
            shares=self._shares(size),
            **columns,
        )

    def without(self, pieces: NDArray[np.bool_]) -> "TransferGraph":
        """The transfers of other pieces.

        Args:
            pieces: [P] the pieces to leave out; each group keeps one.
        """
        kept = ~pieces
        rows = kept[self.piece]
        number = np.cumsum(rows) - 1
        pairs = rows[self.before]
        return dataclasses.replace(
            self,
            first=np.concatenate([[0], np.cumsum(np.diff(self.first)[kept])]),
            row=self.row[rows],
            hop=self.hop[rows],
            op=self.op[rows],
            adds=self.adds[rows],
            root=self.root[kept],
            group=self.group[kept],
            before=number[self.before[pairs]],
            after=number[self.after[pairs]],
        )

    def _shares(self, size: NDArray[np.float64]) -> NDArray[np.int64]:
        """[P] sizes as integer shares, with the same sum in each group."""
        if not self.group.any():
            return integer_shares(size)
        roots = self.origin.topology.num_servers if self.origin.demand is None else 1
        return integer_shares(size, self.group, DENOMINATOR // roots)
