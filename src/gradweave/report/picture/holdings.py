"""How many contributions each node holds of each piece, as transfers arrive."""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from gradweave.schedules.schedule import REDUCE, Schedule


class Holdings:
    """Contributions held by nodes, updated by transfers; counts suffice for a valid schedule."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self.held = _at_start(schedule)
        """[V, P] contributions; a complete sum has those of `complete`."""
        self._sent = _carried(schedule, self.held.copy())

    def arrive(self, transfers: NDArray) -> None:
        """Applies some transfers, in the order of the schedule."""
        _arrive(self._schedule, self.held, transfers, self._sent[transfers])


def _at_start(schedule: Schedule) -> NDArray[np.float32]:
    topology = schedule.topology
    held = np.zeros((topology.num_nodes, schedule.pieces), np.float32)
    given = schedule.contributors  # data of other servers counts nothing
    held[given.servers, given.owner] = 1.0
    return held


def complete(schedule: Schedule) -> NDArray[np.int64]:
    """[P] number of contributions in a complete sum of each piece."""
    return schedule.contributors.sizes


def asked(schedule: Schedule) -> NDArray[np.bool_]:
    """[V, P] whether a node must receive each piece; all true without a demand."""
    everywhere = schedule.demand is None
    table = np.full((schedule.topology.num_nodes, schedule.pieces), everywhere)
    if not everywhere:
        gets = schedule.destinations
        table[gets.servers, gets.owner] = True
    return table


def _carried(schedule: Schedule, held: NDArray) -> NDArray[np.float32]:
    """[T] contributions in each transfer; a round's reads all precede its first write."""
    sent = np.zeros(schedule.num_transfers, np.float32)
    offsets = schedule.round_offsets.tolist()
    for first, end in pairwise(offsets):
        now = np.arange(first, end)
        sent[now] = held[schedule.source[now], schedule.piece[now]]
        _arrive(schedule, held, now, sent[now])
    return sent


def _arrive(schedule: Schedule, held: NDArray, transfers: NDArray, sent: NDArray) -> None:
    cells = (schedule.target[transfers], schedule.piece[transfers])
    reduces = schedule.op[transfers] == REDUCE
    np.add.at(held, (cells[0][reduces], cells[1][reduces]), sent[reduces])
    held[cells[0][~reduces], cells[1][~reduces]] = sent[~reduces]
