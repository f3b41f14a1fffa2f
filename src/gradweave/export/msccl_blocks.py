"""A server's program as thread blocks of MSCCL, each with its steps in order."""

import dataclasses

import numpy as np

from gradweave.execute.program import LOCAL, Action, Program
from gradweave.export.buffers import Buffers, Place
from gradweave.schedules.schedule import COPY, Schedule

NOTHING: Place = ("i", -1)
"""Read and written by a step that only waits."""


@dataclasses.dataclass
class BlockStep:
    """One step of a thread block, and the step of another thread block that it waits for."""

    type: str
    """``s`` send, ``r`` receive, ``rrc`` receive, reduce and store, ``cpy`` copy, ``nop`` wait."""
    read: Place
    written: Place
    waits_for: tuple[int, int] | None = None
    """Thread block and step."""
    awaited: bool = False
    """Whether another thread block waits for this step."""


@dataclasses.dataclass
class Block:
    """One thread block; its steps run one after the other."""

    send: int = -1
    """Rank that it sends to, −1 for none."""
    receive: int = -1
    """Rank that it receives from, −1 for none."""
    steps: list[BlockStep] = dataclasses.field(default_factory=list)


def blocks_of(schedule: Schedule, rank: int) -> tuple[list[Block], Buffers]:
    """One thread block for each server to send to, and one for each to receive from.

    So sends and receives overlap. Steps are in the order (round, piece, sends first, row of the
    schedule), the same at both ends of every pair. Everything that a step waits for comes earlier
    in that order, at its server or another: a send waits for earlier writes, a receive for its
    message and for the sends and writes of the data that it overwrites. Therefore there is no
    deadlock, even if only one message of a pair can be in flight.

    Returns:
        The thread blocks, and the server's buffers.

    Raises:
        InvalidScheduleError: the schedule is invalid, or switches add in it.
        ScheduleError: the collective's pieces cannot be laid out; see `Buffers`.
    """
    program = Program.of(schedule, rank)
    return _BlockWriter(program, Buffers(schedule, rank)).blocks()


class _BlockWriter:
    """Writes the steps in an order in which a step comes after all that it waits for."""

    def __init__(self, program: Program, buffers: Buffers) -> None:
        self._program, self._buffers = program, buffers
        sends = program.kind == Action.SEND
        ways = sorted(
            {(not sent, int(peer)) for sent, peer in zip(sends, program.peer, strict=True)}
        )
        self._block = {way: number for number, way in enumerate(ways)}
        self._blocks = [
            Block(receive=peer) if receives else Block(send=peer) for receives, peer in ways
        ]
        self._step_of: dict[int, tuple[int, int]] = {}  # by action
        # How many steps of each block are known to be complete: at each step, and now per block.
        self._known_at: dict[tuple[int, int], np.ndarray] = {}
        self._known = np.zeros((len(ways), len(ways)), np.int64)

    def blocks(self) -> tuple[list[Block], Buffers]:
        for action in self._order():
            self._write(int(action))
        for piece in self._buffers.left_in_input():
            read = self._buffers.at(piece)
            self._blocks[0].steps.append(BlockStep("cpy", read, self._buffers.write(piece)))
        return self._blocks, self._buffers

    def _order(self) -> np.ndarray:
        program, row = self._program, self._program.transfer
        return np.lexsort(
            (
                np.arange(len(row)),
                row,
                program.kind != Action.SEND,
                program.piece,
                program.schedule.round[row],
            )
        )

    def _write(self, action: int) -> None:
        program = self._program
        kind, row = Action(program.kind[action]), int(program.transfer[action])
        copied = program.schedule.op[row] == COPY
        if kind == Action.RECEIVE and program.place[action] >= 0:
            return  # The next action's step both receives and writes.
        actions = [action - 1, action] if kind in LOCAL else [action]
        block = self._block[kind != Action.SEND, int(program.peer[action])]
        waits = {
            self._step_of[int(other)]
            for each in actions
            for other in program.after[slice(*program.after_offsets[each : each + 2])]
            if int(other) not in actions
        }
        piece = int(program.piece[action])
        read = self._buffers.at(piece)
        if kind == Action.SEND:
            step = BlockStep("s", read, read)
        elif copied:
            written = self._buffers.write(piece)
            step = BlockStep("r", written, written)
        else:
            step = BlockStep("rrc", read, self._buffers.write(piece))
        place = self._append(block, step, waits)
        self._step_of.update(dict.fromkeys(actions, place))

    def _append(self, block: int, step: BlockStep, waits: set[tuple[int, int]]) -> tuple[int, int]:
        """Appends a step, with a `nop` for each step that it waits for beyond one."""
        known, steps = self._known[block], self._blocks[block].steps
        needed = []
        # The latest first: it has itself waited for earlier ones.
        for other, number in sorted(waits, key=lambda place: -self._known_at[place].sum()):
            if other != block and known[other] <= number:
                needed.append((other, number))
                np.maximum(known, self._known_at[other, number], out=known)
        for place in needed[:-1]:
            steps.append(BlockStep("nop", NOTHING, NOTHING, place))
        step.waits_for = needed[-1] if needed else None
        steps.append(step)
        for other, number in needed:
            self._blocks[other].steps[number].awaited = True
        known[block] = len(steps)
        self._known_at[block, len(steps) - 1] = known.copy()
        return block, len(steps) - 1
