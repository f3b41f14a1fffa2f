"""An exact proof by disjoint sums that a piece ends right, with one number per server and piece.

Most schedules send a sum once and do not use it afterwards. All sums in use then have different
contributions, which need not be listed: their number is enough, and a sum of as many contributions
as there are servers has each of them once. Other schedules, such as recursive doubling, are not
proved here, right or wrong; `gradweave.verifier.contributions` counts their contributions.
"""

import itertools

import numpy as np
from numpy.typing import NDArray

from gradweave.schedules.demand import Sets
from gradweave.schedules.schedule import Schedule
from gradweave.verifier.blocks import Block, blocks

BYTES = 8
"""Minimum memory for cells per transfer: less than the schedule itself takes, and enough for all
pieces together if each server receives each of them."""


def not_proved(
    schedule: Schedule, holders: NDArray, block_bytes: int, pieces: NDArray[np.int64] | None = None
) -> NDArray[np.int64]:
    """Pieces, in ascending order, that this proof does not show to end right.

    A cell is a holder's memory of a piece. It is

    - *apart*, a number from 0 to N−1: a sum of that many contributions, each once, of which no
      other cell that is apart has any;
    - *full*, N: every contribution once;
    - *spent*, N+1: unknown.

    At the start each contributor's cell is apart, or full if it is the only contributor, and other
    servers' cells are spent. A reduce from one apart cell into another adds their numbers, and the
    source becomes spent; the sum is full if the numbers add up to the number of contributors. A
    copy of a full cell makes its target full. A piece with any other transfer is not proved. All
    transfers of a round read the state before it.

    Args:
        schedule: a schedule with valid routes and ends, and without conflicting copies.
        holders: nodes that hold pieces, ascending: the servers, and switches that aggregate.
        block_bytes: memory for the cells; at least the schedule's size is used.
        pieces: pieces to check, in ascending order; all if not given.
    """
    pieces = np.arange(schedule.pieces) if pieces is None else pieces
    count = schedule.topology.num_servers
    kind = np.uint16 if count + 1 <= np.iinfo(np.uint16).max else np.uint32
    memory = max(block_bytes, BYTES * schedule.num_transfers)
    width = max(1, memory // (np.dtype(kind).itemsize * len(holders)))
    doubtful = [pieces[:0]]
    for first in range(0, len(pieces), width):
        some = _Cells(schedule, holders, pieces[first : first + width], kind)
        for block in blocks(schedule):
            some.play(block)
        doubtful.append(some.pieces[~some.right()])
    return np.concatenate(doubtful)


class _Cells:
    """The cells of some pieces."""

    def __init__(
        self,
        schedule: Schedule,
        holders: NDArray,
        pieces: NDArray[np.int64],
        kind: type[np.unsignedinteger],
    ) -> None:
        topology = schedule.topology
        self.schedule, self.pieces, self.holders = schedule, pieces, len(holders)
        self.place = np.full(topology.num_nodes, -1, np.int64)
        self.place[holders] = np.arange(len(holders))
        self.number = np.full(schedule.pieces, -1, np.int64)
        self.number[pieces] = np.arange(len(pieces))
        self.full, self.spent = topology.num_servers, topology.num_servers + 1
        self.held = np.zeros(len(pieces) * len(holders), kind)
        """[pieces · holders] the state of each cell, piece by piece."""
        self.parts = schedule.contributors.sizes[pieces].astype(kind)
        """[pieces] number of contributors of each."""
        self.some_give = bool((self.parts < self.full).any())
        """Whether a piece has fewer contributors than there are servers."""
        at_start = np.where(self.parts == 1, self.full, 1).astype(kind)
        self._by_piece()[:] = np.where(topology.is_server[holders], self.spent, 0)
        np.copyto(self._by_piece(), at_start[:, None], where=self._among(schedule.contributors))
        self.failed = np.zeros(len(pieces), bool)
        """[pieces] whether some transfer is outside the proof."""

    def play(self, block: Block) -> None:
        """Plays a block's transfers, round by round."""
        piece, copied, edges = block.piece, block.copied, block.rounds()
        source, target = self.place[block.source], self.place[block.target]
        if len(self.pieces) < self.schedule.pieces:
            piece = self.number[piece]
            mine = piece >= 0
            piece, source, target = piece[mine], source[mine], target[mine]
            copied = copied[mine]
            edges = np.concatenate([[0], np.cumsum(mine)])[edges].tolist()
        read, written = piece * self.holders + source, piece * self.holders + target
        sent_away = np.sort(read[~copied])
        self._fail(sent_away[1:], sent_away[1:] == sent_away[:-1])
        for low, high in itertools.pairwise(edges):
            rows = slice(low, high)
            self._play_round(read[rows], written[rows], copied[rows])

    def right(self) -> NDArray[np.bool_]:
        """[pieces] whether each is proved to end right."""
        complete = self._by_piece() == self.full
        return ~self.failed & (complete | ~self._among(self.schedule.destinations)).all(axis=1)

    def _play_round(self, read: NDArray, written: NDArray, copied: NDArray[np.bool_]) -> None:
        held, sums = self.held, self.held[read]
        if not copied.all():
            reduces = ~copied if copied.any() else slice(None)
            sent, summed = read[reduces], written[reduces]
            self._fail(sent, sums[reduces] >= self.full)
            held[sent] = self.spent
            self._fail(summed, held[summed] >= self.full)  # also if it was sent away in this round
            np.add.at(held, summed, sums[reduces])
            if self.some_give:
                held[summed[held[summed] == self.parts[summed // self.holders]]] = self.full
        if copied.any():
            self._fail(read, copied & (sums != self.full))
            held[written[copied]] = self.full

    def _among(self, sets: Sets) -> NDArray[np.bool_]:
        """[pieces, holders] whether each holder is in these pieces' sets; one row if all agree."""
        mine = sets.take(self.pieces)
        if (mine.stored == mine.stored[0]).all():
            mine = mine.take(np.zeros(1, np.int64))
        table = np.zeros((len(mine), self.holders), bool)
        table[mine.owner, self.place[mine.servers]] = True
        return table

    def _fail(self, cells: NDArray, which: NDArray[np.bool_]) -> None:
        if which.any():
            self.failed[cells[which] // self.holders] = True

    def _by_piece(self) -> NDArray:
        return self.held.reshape(len(self.pieces), self.holders)
