"""A schedule as static steps: the permutations of each round, and each server's part in them.

Plain NumPy; `jax_mesh` turns the steps into a JAX program.

A round has slots, as many as one of its servers sends or receives at most. In a slot every server
sends one piece at most, along one permutation; all slots read before anything is written. As many
writes follow. In write j every server combines the piece that its j-th transfer of the round
received into its buffer. That keeps the schedule's order of additions.
"""

import dataclasses
import itertools
import weakref

import numpy as np
from numpy.typing import NDArray

from gradweave.execute.matchings import matchings
from gradweave.schedule.schedule import Schedule

IDLE = 2
"""The op of a server that has nothing in a write; beside `REDUCE` and `COPY`."""
SEND, WRITE, OP, TAKE = range(4)
"""Rows of `Steps.table`."""
MOST_UNROLLED = 32
"""With more permutations than this, all rounds become one loop with a branch per form, so that the
code that reads and writes is compiled once for all of them."""

Permutation = tuple[tuple[int, int], ...]
"""Pairs of ranks, source and target."""


@dataclasses.dataclass(frozen=True)
class Form:
    """What rounds must share to run by the same code."""

    permutations: tuple[Permutation, ...]
    """One per slot."""
    ops: tuple[frozenset[int], ...]
    """Ops that occur in each write, `IDLE` among them."""


@dataclasses.dataclass(frozen=True)
class Loop:
    """Rounds that share code: one round, rounds of one form, or rounds of several forms."""

    forms: tuple[Form, ...]
    form: tuple[int, ...]
    """Form of each round."""
    slots: int
    """Columns of the table per round: the slots of the widest form."""
    start: int
    """Column at which the first round begins."""

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
    slot of the piece that is written."""


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
    rank, servers = schedule.topology.rank, schedule.topology.num_servers
    source, target = rank[schedule.source], rank[schedule.target]
    parts = itertools.starmap(slice, itertools.pairwise(schedule.round_offsets))
    return [
        _round(source[rows], target[rows], schedule.piece[rows], schedule.op[rows], servers)
        for rows in parts
        if rows.start < rows.stop
    ]


def _round(source: NDArray, target: NDArray, piece: NDArray, op: NDArray, servers: int) -> _Round:
    """The transfers of one round, in the schedule's order."""
    slot, write = matchings(source, target, servers), _count_before(target)
    slots = int(slot.max()) + 1
    table = np.zeros((servers, 4, slots), np.int32)
    table[:, OP] = IDLE
    table[source, SEND, slot] = piece
    table[target, WRITE, write] = piece
    table[target, OP, write] = op
    table[target, TAKE, write] = slot
    pairs: list[list[tuple[int, int]]] = [[] for _ in range(slots)]
    order = np.argsort(source, kind="stable")
    for c, *pair in zip(
        *(column[order].tolist() for column in (slot, source, target)), strict=True
    ):
        pairs[c].append((pair[0], pair[1]))
    ops = tuple(frozenset(np.unique(column).tolist()) for column in table[:, OP].T)
    return _Round(Form(tuple(map(tuple, pairs)), ops), table)


def _count_before(values: NDArray) -> NDArray[np.int64]:
    """Number of earlier entries with the same value."""
    order = np.argsort(values, kind="stable")
    starts = np.flatnonzero(np.diff(values[order], prepend=-1))
    lengths = np.diff(np.append(starts, len(values)))
    counts = np.empty(len(values), np.int64)
    counts[order] = np.arange(len(values)) - np.repeat(starts, lengths)
    return counts


def _joined(rounds: list[_Round], servers: int) -> Steps:
    """Successive rounds of one form become a loop; where that is too much code, all rounds do."""
    runs = [list(run) for _, run in itertools.groupby(rounds, key=lambda each: each.form)]
    if sum(len(run[0].form.permutations) for run in runs) > MOST_UNROLLED:
        runs = [rounds]
    loops, tables, start = [], [np.zeros((servers, 4, 0), np.int32)], 0
    for run in runs:
        number = {form: i for i, form in enumerate(dict.fromkeys(each.form for each in run))}
        slots = max(len(form.permutations) for form in number)
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
    return wider
