"""The order of additions if servers exchange a piece, each sending its value to all others.

Each of these servers ends with the sum of the same values. To get the same bits everywhere, they
add in the order of server ids, and a server's local value takes its place in that order. In all
other cases, a server adds received values to the value that it holds, in the schedule's order.
"""

import weakref
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradweave.schedules.schedule import COPY, REDUCE, Schedule

OWN = -1
"""Stands for the server's value at the beginning of the round, instead of a row."""


class Write(NamedTuple):
    """A server's change to a piece at the end of a round."""

    row: int
    """Row of the transfer that delivers the data, or `OWN`."""
    op: int
    """`COPY` replaces the piece; `REDUCE` combines with it."""
    first_own: bool = False
    """Whether the server must first save its value for a later write."""


_exchanged: weakref.WeakKeyDictionary[Schedule, NDArray[np.bool_]] = weakref.WeakKeyDictionary()


def exchanged(schedule: Schedule) -> NDArray[np.bool_]:
    """[T] whether a transfer is one of several into a piece that its target also sends that round.

    All of these transfers reduce, as do those by which the target sends. Cached per object.
    """
    if schedule not in _exchanged:
        cells = [
            end.astype(np.int64) * schedule.pieces + schedule.piece
            for end in (schedule.target, schedule.source)
        ]
        names, cell = np.unique(np.concatenate(cells), return_inverse=True)
        into, out = (
            schedule.round.astype(np.int64) * len(names) + each for each in np.split(cell, 2)
        )
        reduces = schedule.op == REDUCE
        _, of, count = np.unique(into, return_inverse=True, return_counts=True)
        _exchanged[schedule] = reduces & (count[of] > 1) & np.isin(into, out[reduces])
    return _exchanged[schedule]


def writes(schedule: Schedule, rows: Iterable[int]) -> Iterator[Write]:
    """The writes of one server in a round, in order.

    Args:
        schedule: the schedule.
        rows: the transfers to that server in the round, in the schedule's order.
    """
    meets, op = exchanged(schedule), schedule.op
    together: dict[int, list[int]] = {}
    for row in rows:
        if meets[row]:
            together.setdefault(int(schedule.piece[row]), []).append(row)
        else:
            yield Write(row, COPY if op[row] == COPY else REDUCE)
    for some in together.values():
        own = int(schedule.target[some[0]])
        order = sorted((int(schedule.source[row]), row) for row in some)
        before = sum(node < own for node, _ in order)
        if before < 2:  # the first two values may be added in either order
            yield from (Write(row, REDUCE) for _, row in order)
            continue
        for place, (_, row) in enumerate(order):
            if place == before:
                yield Write(OWN, REDUCE)
            yield Write(row, REDUCE if place else COPY, first_own=not place)
        if before == len(order):
            yield Write(OWN, REDUCE)
