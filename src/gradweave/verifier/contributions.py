"""Contribution counts: which servers' parts are in each partial sum, and how often.

The state is, for every server and piece, a vector with one count per server. A reduce adds the
source's vector as it was at the round's start; a copy overwrites the target's. Stored naively that
is N³ integers. Here counts are stored as two bit planes, *at least once* and *at least twice*: a
reduce never lowers counts, and only a count of exactly one can be right at the end, so saturating
at two loses nothing. A vector is then 2·⌈N/64⌉ words. Pieces do not interact and are checked in
blocks that fit the given memory: servers × pieces in a block × N/4 bytes at a time. If a block ends
wrong, the faulty piece is counted again with exact integers, so that the message can say how often.

Most pieces need none of this. First, `gradweave.verifier.copies` proves that pieces that are only
copied end right, and `gradweave.verifier.disjoint`, with one number per server and piece, that most
others do. The rest are counted here.
"""

import itertools

import numpy as np
from numpy.typing import NDArray

from gradweave.schedules.schedule import COPY, Schedule
from gradweave.verifier.copies import not_copied
from gradweave.verifier.disjoint import not_proved
from gradweave.verifier.verdict import Violation

_WORD = 64
_Planes = tuple[NDArray[np.uint64], NDArray[np.uint64]]


def first_wrong_count(
    schedule: Schedule, *, aggregating_switches: bool, block_bytes: int
) -> Violation | None:
    """Plays the contributions and finds the first server and piece with a wrong result.

    At the start each server has its own contribution once. At the end each destination of a piece
    must have one contribution of each of the piece's contributors, and no others: the memory of
    other servers counts as a stale contribution, so that adding or copying it is detected.
    """
    topology = schedule.topology
    holders = np.arange(topology.num_nodes) if aggregating_switches else topology.servers
    doubtful = not_proved(schedule, holders, block_bytes, not_copied(schedule))
    return _first_wrong_of(schedule, holders, doubtful, block_bytes) if doubtful.size else None


def _first_wrong_of(
    schedule: Schedule, holders: NDArray, pieces: NDArray[np.int64], block_bytes: int
) -> Violation | None:
    """The first of some pieces, in ascending order, with a wrong result, and where."""
    topology = schedule.topology
    row = np.full(topology.num_nodes, -1, np.int64)
    row[holders] = np.arange(len(holders))
    words = -(-topology.num_servers // _WORD)
    block = max(1, block_bytes // (2 * 8 * words * len(holders)))
    among = np.zeros(schedule.pieces, bool)
    among[pieces] = True
    rows = np.flatnonzero(among[schedule.piece])
    by_piece = rows[np.argsort(schedule.piece[rows], kind="stable")]
    first = np.searchsorted(schedule.piece[by_piece].astype(np.int64), pieces)
    first = np.append(first, len(rows))
    for start in range(0, len(pieces), block):
        some = pieces[start : start + block]
        rows = np.sort(by_piece[first[start] : first[start + len(some)]])
        planes = _initial(schedule, holders, len(some), words)
        _play(schedule, rows, row, some, planes)
        wrong = _wrong_destination(schedule, row, some, planes)
        if wrong is not None:
            return _explain(schedule, *wrong)
    return None


def _initial(schedule: Schedule, holders: NDArray, pieces: int, words: int) -> _Planes:
    """The two planes at the start: [holder * pieces-in-block + piece, words]."""
    topology = schedule.topology
    once = np.zeros((len(holders), pieces, words), np.uint64)
    at = np.flatnonzero(topology.is_server[holders])
    rank = topology.rank[holders[at]].astype(np.uint64)
    once[at, :, (rank // _WORD).astype(np.int64)] = (np.uint64(1) << (rank % np.uint64(_WORD)))[
        :, None
    ]
    once = once.reshape(-1, words)
    return once, np.zeros_like(once)


def _play(
    schedule: Schedule,
    rows: NDArray,
    holder_row: NDArray,
    pieces: NDArray,
    planes: _Planes,
) -> None:
    """Plays a block's transfers on its planes, round by round.

    All of a round's reads happen before its first write. A round is divided into layers in which
    every cell is written at most once, so that each layer is one indexed assignment.
    """
    place = np.searchsorted(pieces, schedule.piece[rows].astype(np.int64))
    read = holder_row[schedule.source[rows]] * len(pieces) + place
    written = holder_row[schedule.target[rows]] * len(pieces) + place
    rounds, copied = schedule.round[rows], schedule.op[rows] == COPY
    layer = _layers(rounds, written)
    order = np.lexsort((layer, rounds))
    read, written, rounds, layer, copied = (
        read[order],
        written[order],
        rounds[order],
        layer[order],
        copied[order],
    )
    once, twice = planes
    round_edges = _edges(rounds)
    layer_edges = _edges(rounds, layer)
    next_layer = 0
    for low, high in itertools.pairwise(round_edges):
        read_once, read_twice = once[read[low:high]], twice[read[low:high]]
        while layer_edges[next_layer] < high:
            begin, end = layer_edges[next_layer], layer_edges[next_layer + 1]
            rows_of_layer = slice(begin - low, end - low)
            _write(
                once,
                twice,
                written[begin:end],
                copied[begin:end],
                read_once[rows_of_layer],
                read_twice[rows_of_layer],
            )
            next_layer += 1


def _write(
    once: NDArray,
    twice: NDArray,
    cells: NDArray,
    copied: NDArray,
    read_once: NDArray,
    read_twice: NDArray,
) -> None:
    """Adds to distinct cells, or overwrites them where copied."""
    if not copied.all():
        held_once, held_twice = once[cells], twice[cells]
        summed_once, summed_twice = (
            held_once | read_once,
            held_twice | read_twice | (held_once & read_once),
        )
        if copied.any():
            summed_once = np.where(copied[:, None], read_once, summed_once)
            summed_twice = np.where(copied[:, None], read_twice, summed_twice)
        read_once, read_twice = summed_once, summed_twice
    once[cells] = read_once
    twice[cells] = read_twice


def _layers(rounds: NDArray, written: NDArray) -> NDArray[np.int64]:
    """Number of earlier transfers in the same round that write the same cell."""
    order = np.lexsort((written, rounds))
    index = np.arange(len(order))
    begins = np.ones(len(order), bool)
    begins[1:] = (written[order][1:] != written[order][:-1]) | (
        rounds[order][1:] != rounds[order][:-1]
    )
    layer = np.empty(len(order), np.int64)
    layer[order] = index - np.maximum.accumulate(np.where(begins, index, 0))
    return layer


def _edges(*columns: NDArray) -> list[int]:
    """Starts of runs of equal rows, and the end."""
    changes = np.zeros(max(len(columns[0]) - 1, 0), bool)
    for column in columns:
        changes |= column[1:] != column[:-1]
    inner = (np.flatnonzero(changes) + 1).tolist()
    return [0, *inner, len(columns[0])] if len(columns[0]) else [0]


def _wrong_destination(
    schedule: Schedule, holder_row: NDArray, pieces: NDArray, planes: _Planes
) -> tuple[int, int] | None:
    """The first piece with a destination without the required contributions, and that server."""
    words = planes[0].shape[1]
    once, twice = (plane.reshape(-1, len(pieces), words) for plane in planes)
    given = schedule.contributors.take(pieces)
    rank = schedule.topology.rank[given.servers]
    wanted = np.zeros((len(pieces), words), np.uint64)
    bit = np.uint64(1) << (rank % _WORD).astype(np.uint64)
    np.bitwise_or.at(wanted, (given.owner, rank // _WORD), bit)
    gets = schedule.destinations.take(pieces)
    at = holder_row[gets.servers], gets.owner
    right = ((once[at] == wanted[gets.owner]) & (twice[at] == 0)).all(axis=1)
    if right.all():
        return None
    first = int(right.argmin())
    return int(gets.servers[first]), int(pieces[gets.owner[first]])


def _explain(schedule: Schedule, server: int, piece: int) -> Violation:
    """Counts one piece exactly to find the wrong contribution at one server."""
    counts, topology = exact_counts(schedule, piece)[server], schedule.topology
    wanted = np.zeros(topology.num_servers, np.int64)
    wanted[topology.rank[schedule.contributors[piece]]] = 1
    # A missing contribution is more informative than the stale one that replaces it.
    wrong = np.flatnonzero(counts != wanted)
    rank = int(wrong[np.argmax(wanted[wrong])])
    contributor, expected, found = int(topology.servers[rank]), int(wanted[rank]), int(counts[rank])
    message = (
        f"end: {topology.node_name(server)} holds piece {piece} with the contribution of "
        f"{topology.node_name(contributor)} {_times(found)}; expected {_times(expected)}"
    )
    return Violation("result", message, None, expected, found, server=server, piece=piece)


def _times(count: int) -> str:
    return "once" if count == 1 else "never" if count == 0 else f"{count} times"


def exact_counts(schedule: Schedule, piece: int) -> NDArray[np.object_]:
    """[V, N] how often each node's sum of one piece contains each server's part, at the end.

    Python integers, since a schedule that doubles each round would overflow any other type.
    """
    topology = schedule.topology
    counts = np.zeros((topology.num_nodes, topology.num_servers), object)
    counts[topology.servers, np.arange(topology.num_servers)] = 1
    rows = np.flatnonzero(schedule.piece == piece)
    edges = _edges(schedule.round[rows])
    for low, high in itertools.pairwise(edges):
        at = rows[low:high]
        sent = counts[schedule.source[at]]
        for row, values in zip(at, sent, strict=True):
            target = schedule.target[row]
            counts[target] = values if schedule.op[row] == COPY else counts[target] + values
    return counts
