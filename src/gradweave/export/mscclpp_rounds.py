"""A schedule as operations of MSCCL++: puts into other servers' memory, signals, sums.

Every server goes through the rounds one after the other. In a round it first puts what it sends,
then signals those that it sent to, then waits for those that send to it, then adds or copies what
they put. No server waits for a round to be over elsewhere.
"""

import dataclasses
import itertools

import numpy as np

from gradweave.export.buffers import SCRATCH, Buffers, Place
from gradweave.schedule.schedule import COPY, Schedule

Remote = tuple[int, str, int]
"""Another server's chunk: rank, buffer, chunk."""

MAX_CHANNELS_AT_ONCE = 8
"""Most channels that one operation signals or waits for."""
MAX_BUFFERS_AT_ONCE = 8
"""Most chunks that one operation puts, or adds to one; the executor takes two more."""

_STARTED = -1
"""The event that a server has started; 2t is that it signalled in round t, 2t+1 that it added."""


@dataclasses.dataclass(frozen=True)
class Operation:
    """What all threads of a thread block do, one after the other.

    ``nop`` lets them wait for each other: nothing else does.
    """

    name: str
    read: tuple[Place, ...] = ()
    written: tuple[Place, ...] = ()
    put: tuple[Remote, ...] = ()
    """Where the chunks read are put."""
    peers: tuple[int, ...] = ()
    """Ranks signalled or waited for."""


NOP = Operation("nop")


@dataclasses.dataclass
class Sequence:
    """The operations of one server, and the memory and the connections that they need."""

    buffers: Buffers
    operations: list[Operation]
    scratch_chunks: int
    peers: list[int]
    """Ranks that it sends to or hears."""


def sequences_of(schedule: Schedule) -> list[Sequence]:
    """The operations of all servers, by rank.

    A transfer is put into a place of the target's scratch memory that no other transfer uses, and
    added or copied from there by the target. A copy goes where it belongs at once, provided that
    its source knows by then, from the signals that reached it, that the target has done all it
    does to that piece in earlier rounds. Before the first put each server waits for a signal from
    those it sends to: their memory may still be in use by what ran before.

    Raises:
        ScheduleError: the collective's pieces cannot be laid out; see `Buffers`.
    """
    return _Writer(schedule).sequences()


class _Writer:
    """Writes the operations of all servers, round by round."""

    def __init__(self, schedule: Schedule) -> None:
        servers = schedule.topology.num_servers
        self._schedule = schedule
        rank = schedule.topology.rank
        self._source, self._target = rank[schedule.source], rank[schedule.target]
        self._buffers = [Buffers(schedule, each) for each in range(servers)]
        self._places = [buffers.scratch_chunks for buffers in self._buffers]
        self._operations: list[list[Operation]] = [[] for _ in range(servers)]
        # [N, N] the latest event of each server that each server knows of.
        self._known = np.full((servers, servers), _STARTED - 1)
        self._last: dict[tuple[int, int], int] = {}  # by rank and piece: last event that uses it

    def sequences(self) -> list[Sequence]:
        self._get_ready()
        for number, (first, last) in enumerate(itertools.pairwise(self._schedule.round_offsets)):
            if last > first:
                self._round(number, range(first, last))
        for rank, buffers in enumerate(self._buffers):
            for piece in buffers.left_in_input():
                read = buffers.at(piece)
                self._do(rank, Operation("copy", (read,), (buffers.write(piece),)))
        return [
            Sequence(buffers, operations, places, sorted(self._sends_to(rank) | self._hears(rank)))
            for rank, (buffers, operations, places) in enumerate(
                zip(self._buffers, self._operations, self._places, strict=True)
            )
        ]

    def _sends_to(self, rank: int) -> set[int]:
        return set(self._target[self._source == rank].tolist())

    def _hears(self, rank: int) -> set[int]:
        return set(self._source[self._target == rank].tolist())

    def _do(self, rank: int, *operations: Operation) -> None:
        self._operations[rank].extend(operations)

    def _tell(self, rank: int, name: str, peers: set[int]) -> None:
        """Signals or waits, for as many peers at a time as an operation takes."""
        for some in _batched(sorted(peers), MAX_CHANNELS_AT_ONCE):
            self._do(rank, Operation(name, peers=some))

    def _get_ready(self) -> None:
        for rank in range(len(self._buffers)):
            sends_to = self._sends_to(rank)
            self._tell(rank, "signal", self._hears(rank))
            self._tell(rank, "wait", sends_to)
            if sends_to:
                self._do(rank, NOP)
            self._known[rank, sorted(sends_to)] = _STARTED

    def _round(self, number: int, rows: range) -> None:
        piece = self._schedule.piece
        source, target = self._source, self._target
        for row in rows:
            self._last[source[row], piece[row]] = 2 * number
        put_at = self._destinations(rows)
        read_at = {row: self._buffers[source[row]].at(int(piece[row])) for row in rows}
        by_source, by_target = _grouped(rows, source), _grouped(rows, target)
        self._known[list(by_source), list(by_source)] = 2 * number
        told = self._known.copy()
        for rank, sent in by_source.items():
            self._send(rank, sent, read_at, put_at)
        for rank, heard in by_target.items():
            self._tell(rank, "wait", {int(source[row]) for row in heard})
            self._do(rank, NOP)
            self._store(rank, heard, put_at)
            for row in heard:
                np.maximum(self._known[rank], told[source[row]], out=self._known[rank])
                self._last[rank, piece[row]] = 2 * number + 1
            self._known[rank, rank] = 2 * number + 1

    def _destinations(self, rows: range) -> dict[int, Place]:
        """Where each transfer of a round is put."""
        at: dict[int, Place] = {}
        for row in rows:
            rank, piece = int(self._target[row]), int(self._schedule.piece[row])
            known = self._known[self._source[row], rank] >= self._last.get((rank, piece), _STARTED)
            if self._schedule.op[row] == COPY and known:
                at[row] = self._buffers[rank].written(piece)
            else:
                at[row] = SCRATCH, self._places[rank]
                self._places[rank] += 1
        return at

    def _send(
        self, rank: int, rows: list[int], read_at: dict[int, Place], put_at: dict[int, Place]
    ) -> None:
        # One operation reads one buffer.
        for _, alike in itertools.groupby(
            sorted(rows, key=lambda row: read_at[row][0]), key=lambda row: read_at[row][0]
        ):
            for some in _batched(list(alike), MAX_BUFFERS_AT_ONCE):
                put = tuple((int(self._target[row]), *put_at[row]) for row in some)
                self._do(rank, Operation("put", tuple(read_at[row] for row in some), put=put))
        self._do(rank, NOP)
        self._tell(rank, "signal", {int(self._target[row]) for row in rows})

    def _store(self, rank: int, rows: list[int], put_at: dict[int, Place]) -> None:
        """Adds or copies what was put; what is added to one piece, in the schedule's order.

        A valid schedule copies a piece alone: nothing else comes to it in that round.
        """
        buffers = self._buffers[rank]
        by_piece: list[list[Operation]] = []
        for piece, of_piece in _grouped(rows, self._schedule.piece).items():
            operations: list[Operation] = []
            if self._schedule.op[of_piece[0]] == COPY:
                read, written = put_at[of_piece[0]], buffers.write(piece)
                if read != written:
                    operations.append(Operation("copy", (read,), (written,)))
            else:
                for some in _batched(of_piece, MAX_BUFFERS_AT_ONCE - 1):
                    read = buffers.at(piece), *(put_at[row] for row in some)
                    operations.append(Operation("re", read, (buffers.write(piece),)))
            by_piece.append(operations)
        for wave in itertools.zip_longest(*by_piece):
            together = [operation for operation in wave if operation is not None]
            self._do(rank, *together, *([NOP] if together else []))


def _grouped(rows: range | list[int], column: np.ndarray) -> dict[int, list[int]]:
    """Rows by their entry in a column, each group in order."""
    groups: dict[int, list[int]] = {}
    for row in rows:
        groups.setdefault(int(column[row]), []).append(row)
    return groups


def _batched(items: list[int], size: int) -> list[tuple[int, ...]]:
    return [tuple(items[first : first + size]) for first in range(0, len(items), size)]
