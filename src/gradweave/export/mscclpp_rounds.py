"""A schedule as operations of MSCCL++: puts into other servers' memory, signals, sums.

Every server goes through the rounds in order. In a round it first puts its outgoing chunks, then
signals the servers that it sent to, then waits for those that send to it, then adds or copies what
they put. There is no barrier between rounds.
"""

import dataclasses
import itertools

import numpy as np

from gradweave.export.buffers import SCRATCH, Buffers, Place
from gradweave.schedules.schedule import COPY, Schedule

Remote = tuple[int, str, int]
"""Another server's chunk: rank, buffer, chunk."""

MAX_CHANNELS_AT_ONCE = 8
"""Maximum number of channels that an operation signals or waits for."""
MAX_BUFFERS_AT_ONCE = 8
"""Maximum number of chunks that an operation puts or adds up; the executor accepts two more."""

_STARTED = -1
"""Event: a server has started. Event 2t: it signalled in round t; 2t+1: it added in round t."""


@dataclasses.dataclass(frozen=True)
class Operation:
    """One operation of a thread block, by all its threads.

    Only ``nop`` synchronizes the threads.
    """

    name: str
    read: tuple[Place, ...] = ()
    written: tuple[Place, ...] = ()
    put: tuple[Remote, ...] = ()
    """Destinations of the chunks that it reads."""
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
    """Ranks that it sends to or receives from."""


def sequences_of(schedule: Schedule) -> list[Sequence]:
    """The operations of all servers, by rank.

    A transfer is put into a slot of the target's scratch memory that no other transfer uses, and
    added or copied from there by the target. A copy goes directly to its final place, provided that
    its source knows by then, from the signals that reached it, that the target has finished with
    that piece's earlier rounds. Before the first put each server waits for a signal from its
    targets, since an earlier kernel may still use their memory.

    Raises:
        ScheduleError: the collective's pieces cannot be laid out; see `Buffers`.
    """
    return _OperationWriter(schedule).sequences()


class _OperationWriter:
    """Writes the operations of all servers, round by round."""

    def __init__(self, schedule: Schedule) -> None:
        servers = schedule.topology.num_servers
        self._schedule = schedule
        rank = schedule.topology.rank
        self._source, self._target = rank[schedule.source], rank[schedule.target]
        self._buffers = [Buffers(schedule, each) for each in range(servers)]
        self._scratch = [buffers.scratch_chunks for buffers in self._buffers]
        self._operations: list[list[Operation]] = [[] for _ in range(servers)]
        # [N, N] the latest event of each server (column) that each server (row) knows of.
        self._known = np.full((servers, servers), _STARTED - 1)
        self._last: dict[tuple[int, int], int] = {}  # by rank and piece: last event that uses it

    def sequences(self) -> list[Sequence]:
        self._start()
        for number, (first, last) in enumerate(itertools.pairwise(self._schedule.round_offsets)):
            if last > first:
                self._round(number, range(first, last))
        for rank, buffers in enumerate(self._buffers):
            for piece in buffers.left_in_input():
                read = buffers.at(piece)
                self._add(rank, Operation("copy", (read,), (buffers.write(piece),)))
        return [
            Sequence(
                buffers,
                operations,
                scratch,
                sorted(self._peers(rank)),
            )
            for rank, (buffers, operations, scratch) in enumerate(
                zip(self._buffers, self._operations, self._scratch, strict=True)
            )
        ]

    def _peers(self, rank: int) -> set[int]:
        return self._sends_to(rank) | self._receives_from(rank)

    def _sends_to(self, rank: int) -> set[int]:
        return set(self._target[self._source == rank].tolist())

    def _receives_from(self, rank: int) -> set[int]:
        return set(self._source[self._target == rank].tolist())

    def _add(self, rank: int, *operations: Operation) -> None:
        self._operations[rank].extend(operations)

    def _synchronize(self, rank: int, name: str, peers: set[int]) -> None:
        """Signals peers or waits for them, in as few operations as possible."""
        for batch in _batched(sorted(peers), MAX_CHANNELS_AT_ONCE):
            self._add(rank, Operation(name, peers=batch))

    def _start(self) -> None:
        for rank in range(len(self._buffers)):
            sends_to = self._sends_to(rank)
            self._synchronize(rank, "signal", self._receives_from(rank))
            self._synchronize(rank, "wait", sends_to)
            if sends_to:
                self._add(rank, NOP)
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
        signalled = self._known.copy()
        for rank, sent in by_source.items():
            self._send(rank, sent, read_at, put_at)
        for rank, received in by_target.items():
            self._synchronize(rank, "wait", {int(source[row]) for row in received})
            self._add(rank, NOP)
            self._store(rank, received, put_at)
            for row in received:
                np.maximum(self._known[rank], signalled[source[row]], out=self._known[rank])
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
                at[row] = SCRATCH, self._scratch[rank]
                self._scratch[rank] += 1
        return at

    def _send(
        self, rank: int, rows: list[int], read_at: dict[int, Place], put_at: dict[int, Place]
    ) -> None:
        # One operation reads one buffer.
        for _, group in itertools.groupby(
            sorted(rows, key=lambda row: read_at[row][0]), key=lambda row: read_at[row][0]
        ):
            for batch in _batched(list(group), MAX_BUFFERS_AT_ONCE):
                put = tuple((int(self._target[row]), *put_at[row]) for row in batch)
                self._add(rank, Operation("put", tuple(read_at[row] for row in batch), put=put))
        self._add(rank, NOP)
        self._synchronize(rank, "signal", {int(self._target[row]) for row in rows})

    def _store(self, rank: int, rows: list[int], put_at: dict[int, Place]) -> None:
        """Adds or copies the chunks that were put, with additions in the schedule's order.

        In a valid schedule a copy is the only transfer to its piece in that round.
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
                for batch in _batched(of_piece, MAX_BUFFERS_AT_ONCE - 1):
                    read = buffers.at(piece), *(put_at[row] for row in batch)
                    operations.append(Operation("re", read, (buffers.write(piece),)))
            by_piece.append(operations)
        for wave in itertools.zip_longest(*by_piece):
            operations = [operation for operation in wave if operation is not None]
            self._add(rank, *operations, *([NOP] if operations else []))


def _grouped(rows: range | list[int], column: np.ndarray) -> dict[int, list[int]]:
    """Rows by their entry in a column, each group in order."""
    groups: dict[int, list[int]] = {}
    for row in rows:
        groups.setdefault(int(column[row]), []).append(row)
    return groups


def _batched(items: list[int], size: int) -> list[tuple[int, ...]]:
    return [tuple(items[first : first + size]) for first in range(0, len(items), size)]
