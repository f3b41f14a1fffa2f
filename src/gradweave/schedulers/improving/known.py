"""A schedule's transfers piece by piece, with what each waits for; in other orders and sizes."""

import dataclasses
import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradweave.schedulers.kernels.wires import Wires, wires_over
from gradweave.schedulers.ordering.cuts import DENOMINATOR
from gradweave.schedules.schedule import REDUCE, Schedule
from gradweave.schedules.shares import apportion
from gradweave.topology.topology import Topology


@dataclasses.dataclass(frozen=True, eq=False)
class Known:
    """Transfers that may start in any order in which each has the data that it sends.

    X transfers are sorted by piece, and in the schedule's order within a piece.
    """

    topology: Topology
    like: Schedule
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
    def of(schedule: Schedule) -> "Known":
        """Reads a valid schedule."""
        from gradweave.schedulers.improving.transfers_kernel import dependencies

        topology = schedule.topology
        order = np.lexsort((schedule.round, schedule.piece))
        links, first_link, hop = _distinct_routes(schedule)
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
        group = np.zeros(schedule.pieces, np.int64)
        if schedule.demand is not None and schedule.block is not None:
            group = schedule.block.astype(np.int64)
        elif schedule.collective != "all_reduce":
            group = root
        return Known(
            topology,
            schedule,
            wires_over(topology, links, first_link),
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

    @functools.cached_property
    def most(self) -> int:
        """M, the largest number of transfers of a piece."""
        return int(np.diff(self.first).max())

    @functools.cached_property
    def place(self) -> NDArray[np.int64]:
        """[X] index of each transfer in arrays [P, M]."""
        return self.piece * self.most + np.arange(len(self.hop)) - self.first[self.piece]

    def trees(self, *, backwards: bool = False) -> Any:
        """The transfers as `event_simulation_kernel.Trees`, each piece a part of its own.

        Args:
            backwards: whether time runs backwards, so that a transfer waits for those that need it.
        """
        from gradweave.schedulers.ordering.event_simulation_kernel import Trees

        shape = (self.pieces, self.most)
        before, after = (self.after, self.before) if backwards else (self.before, self.after)
        cells = shape[0] * shape[1]
        hop = np.full(cells, -1)
        hop[self.place] = self.hop
        waits = np.bincount(self.place[after], minlength=cells)
        ends = np.cumsum(np.bincount(self.place[before], minlength=cells))
        first = np.concatenate([[0], ends])
        following = (self.place % self.most)[after[np.argsort(self.place[before], kind="stable")]]
        nothing = np.zeros(shape)
        rows = first[np.arange(shape[0])[:, None] * shape[1] + np.arange(shape[1] + 1)]
        return Trees(
            hop.reshape(shape), waits.reshape(shape), following, rows, nothing, nothing, nothing
        )

    def hold_s(self, size: NDArray[np.float64]) -> NDArray[np.float64]:
        """[X] seconds for which each transfer holds its links.

        Args:
            size: [P] bytes of each piece.
        """
        wires, hop = self.wires, self.hop
        return wires.overhead[hop] + size[self.piece] / wires.rate[hop]

    def schedule(self, start: NDArray, size: NDArray[np.float64]) -> Schedule:
        """The schedule in which transfers start in this order.

        Args:
            start: [X] times or places whose order is kept.
            size: [P] bytes of each piece.
        """
        from gradweave.schedulers.ordering.lower import lower

        order = np.argsort(start, kind="stable")
        hop, piece, like = self.hop[order], self.piece[order], self.like
        columns: dict[str, Any] = {}
        if like.demand is not None and like.block is not None:
            columns = {"demand": like.demand, "block": self.group}
        return lower(
            self.topology,
            self.wires.links,
            self.wires.first,
            hop,
            piece=piece,
            op=self.op[order],
            root=self.root,
            adds=self.adds[order],
            collective=vars(like)["collective"],
            shares=self._integers(size),
            **columns,
        )

    def without(self, pieces: NDArray[np.bool_]) -> "Known":
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

    def _integers(self, size: NDArray[np.float64]) -> NDArray[np.int64]:
        """[P] sizes as integer shares, with the same sum in each group."""
        groups = int(self.group.max()) + 1
        whole = np.bincount(self.group, size, groups)[self.group]
        fine = np.maximum(np.rint(size / whole * DENOMINATOR), 1).astype(np.int64)
        if groups == 1:
            return fine
        shares, each = np.empty(len(size), np.int64), DENOMINATOR
        if self.like.demand is None:
            each //= self.topology.num_servers
        for one in np.unique(self.group):
            mine = np.flatnonzero(self.group == one)
            shares[mine] = apportion(each, fine[mine])
        return shares


def _distinct_routes(
    schedule: Schedule,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Links of the distinct routes, [H+1] where each begins, and [T] each transfer's route."""
    number: dict[bytes, int] = {}
    links, _ = schedule.route_links
    links = links.astype(np.int64)
    ends = schedule.route_offsets.astype(np.int64) - np.arange(schedule.num_transfers + 1)
    hop = np.empty(schedule.num_transfers, np.int64)
    for row, (begin, end) in enumerate(zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)):
        hop[row] = number.setdefault(links[begin:end].tobytes(), len(number))
    routes = [np.frombuffer(one, np.int64) for one in number]
    first = np.concatenate([[0], np.cumsum([len(one) for one in routes])]).astype(np.int64)
    return np.concatenate(routes), first, hop
