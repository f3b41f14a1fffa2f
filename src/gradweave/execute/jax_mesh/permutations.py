"""A schedule as static steps: the permutations of each round, and each server's part in them.

This module is plain NumPy; `jax_mesh` turns the steps into a JAX program.

A round has as many slots as the busiest of its servers has sends or receives. In a slot, every
server sends at most one piece, along one permutation; all slots read before anything is written.
The same number of writes follows. In write j, every server combines a piece that it received or
sent into its buffer, in the order of `gradweave.execute.exchanges.writes`.
"""

import dataclasses
import itertools
import weakref

import numpy as np
from numpy.typing import NDArray

from gradweave.execute.exchanges import OWN, exchanged, writes
from gradweave.execute.matchings import matchings
from gradweave.schedules.schedule import Schedule

IDLE = 2
"""The op of a server without a part in a write; a third op next to `REDUCE` and `COPY`."""
SEND, WRITE, OP, TAKE = range(4)
"""Rows of `Steps.table`."""
_SENT = -1
"""Until the number of slots is known, `TAKE` has this minus s for the piece sent in slot s."""
MOST_UNROLLED = 32
"""If there are more permutations than this, all rounds become one loop with a branch per form, so
that the code for reading and writing is compiled only once."""

Permutation = tuple[tuple[int, int], ...]
"""Pairs of ranks: source and target."""


@dataclasses.dataclass(frozen=True)
class Form:
    """The properties that rounds must share to run by the same code."""

    permutations: tuple[Permutation, ...]
    """One permutation per slot."""
    ops: tuple[frozenset[int], ...]
    """Ops that occur in each write, including `IDLE`."""
    takes_own: bool = False
    """Whether some write takes a piece that its server sent."""


@dataclasses.dataclass(frozen=True)
class Loop:
    """Rounds that share code: one round, rounds of one form, or rounds of several forms."""

    forms: tuple[Form, ...]
    form: tuple[int, ...]
    """The form of each round."""
    slots: int
    """Columns of the table per round: the slots, or the writes, of the widest form."""
    start: int
    """Column of the table at which the first round begins."""

    @property
    def takes_own(self) -> bool:
        """Whether entries of `TAKE` past the last slot refer to pieces that were sent."""
        return any(form.takes_own for form in self.forms)

    @property
    def ops(self) -> tuple[frozenset[int], ...]:
        """Ops that occur in each write in any of the rounds."""
        nothing = frozenset((IDLE,))
        of = [form.ops + (nothing,) * (self.slots - len(form.ops)) for form in self.forms]
        return tuple(frozenset().union(*ops) for ops in zip(*of, strict=True))


@dataclasses.dataclass(frozen=True, eq=False)
class Steps:
    """A schedule as loops over rounds."""

    loops: tuple[Loop, ...]
    table: NDArray[np.int32]
    """[N, 4, slots of all rounds] by rank: piece to send, piece to write to, op of the write, and
    slot of the piece that is written; for a piece that was sent, its slot plus the loop's slots."""


_steps: weakref.WeakKeyDictionary[Schedule, Steps] = weakref.WeakKeyDictionary()


def steps(schedule: Schedule) -> Steps:
    """The steps of a schedule; derived once per object.

    >>> import gradweave as gw
    >>> ring = steps(gw.schedulers.Ring().schedule(gw.topology.ring(8)))
    >>> [(len(loop.form), loop.ops) for loop in ring.loops]
    [(7, (frozenset({0}),)), (7, (frozenset({1}),))]
    """
    if schedule not in _steps:
        _steps[schedule] = _joined(_rounds(schedule), schedule.topology.num_servers)
    return _steps[schedule]


@dataclasses.dataclass(frozen=True, eq=False)
class _Round:
    form: Form
    table: NDArray[np.int32]
    """[N, 4, slots]"""


def _rounds(schedule: Schedule) -> list[_Round]:
    """The rounds that have transfers."""
    parts = itertools.starmap(range, itertools.pairwise(schedule.round_offsets.tolist()))
    return [_round(schedule, rows) for rows in parts if len(rows)]


def _round(schedule: Schedule, rows: range) -> _Round:
    """The transfers of one round."""
    rank, servers = schedule.topology.rank, schedule.topology.num_servers
    part = slice(rows.start, rows.stop)
    source, target = rank[schedule.source[part]], rank[schedule.target[part]]
    piece = schedule.piece[part]
    slot = matchings(source, target, servers)
    slots = int(slot.max()) + 1
    pairs: list[list[tuple[int, int]]] = [[] for _ in range(slots)]
    order = np.argsort(source, kind="stable")
    for c, *pair in zip(
        *(column[order].tolist() for column in (slot, source, target)), strict=True
    ):
        pairs[c].append((pair[0], pair[1]))
    server, place, row, op = _written(schedule, part, target)
    own = row == OWN
    # The server's value at the start of the round goes to the same piece as the preceding write.
    row = np.where(own, np.roll(row, 1), row) - rows.start
    table = np.zeros((servers, 4, max(slots, int(place.max()) + 1)), np.int32)
    table[:, OP] = IDLE
    table[source, SEND, slot] = piece
    table[server, WRITE, place] = piece[row]
    table[server, OP, place] = op
    table[server, TAKE, place] = slot[row]
    for number in np.flatnonzero(own):
        sent = (source == server[number]) & (piece == piece[row[number]])
        table[server[number], TAKE, place[number]] = _SENT - slot[np.argmax(sent)]
    ops = tuple(frozenset(np.unique(column).tolist()) for column in table[:, OP].T)
    return _Round(Form(tuple(map(tuple, pairs)), ops, bool(own.any())), table)


def _written(schedule: Schedule, part: slice, target: NDArray) -> list[NDArray[np.int64]]:
    """Server, index of the write at that server, row and op of all writes in a round."""
    if not exchanged(schedule)[part].any():
        place, row = _count_before(target), np.arange(part.start, part.stop)
        return [target.astype(np.int64), place, row, schedule.op[part].astype(np.int64)]
    found = [
        (server, place, write.row, write.op)
        for server in np.unique(target).tolist()
        for place, write in enumerate(
            writes(schedule, (part.start + np.flatnonzero(target == server)).tolist())
        )
    ]
    return list(np.array(found, np.int64).T)


def _count_before(values: NDArray) -> NDArray[np.int64]:
    """Number of earlier entries with the same value."""
    order = np.argsort(values, kind="stable")
    starts = np.flatnonzero(np.diff(values[order], prepend=-1))
    lengths = np.diff(np.append(starts, len(values)))
    counts = np.empty(len(values), np.int64)
    counts[order] = np.arange(len(values)) - np.repeat(starts, lengths)
    return counts


def _joined(rounds: list[_Round], servers: int) -> Steps:
    """Turns consecutive rounds of one form into a loop, or all rounds if that is too much code."""
    runs = [list(run) for _, run in itertools.groupby(rounds, key=lambda each: each.form)]
    if sum(len(run[0].form.permutations) for run in runs) > MOST_UNROLLED:
        runs = [rounds]
    loops, tables, start = [], [np.zeros((servers, 4, 0), np.int32)], 0
    for run in runs:
        number = {form: i for i, form in enumerate(dict.fromkeys(each.form for each in run))}
        slots = max(len(form.ops) for form in number)
        form = tuple(number[each.form] for each in run)
        loops.append(Loop(tuple(number), form, slots, start))
        tables += [_widened(each.table, slots) for each in run]
        start += slots * len(run)
    return Steps(tuple(loops), np.concatenate(tables, axis=2))


def _widened(table: NDArray, slots: int) -> NDArray:
    """A round's table with columns for more slots, in which all servers are idle."""
    wider = np.zeros((*table.shape[:2], slots), table.dtype)
    wider[:, OP] = IDLE
    wider[:, :, : table.shape[2]] = table
    take = wider[:, TAKE]
    take[take <= _SENT] = slots + _SENT - take[take <= _SENT]
    return wider
