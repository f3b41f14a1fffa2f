"""Runs schedules over MPI by non-blocking messages, each sent as soon as its data is ready.

    mpirun -n 9 python train.py

    from mpi4py import MPI
    gradweave.mpi.all_reduce(gradient, schedule, MPI.COMM_WORLD)

If MPI has fault tolerance (Open MPI 5: ``mpirun --with-ft ulfm``), the death of a process raises
`LostServerError` at all other processes. Without it, MPI ends the whole job.
"""

import functools
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from gradweave.errors import OptionError, RunError
from gradweave.execute.layout import Layout
from gradweave.execute.lost import lost_server
from gradweave.execute.program import Action, Program, check_all_reduce, check_servers, is_own
from gradweave.execute.reduction import Reduction, check_reduction, combine
from gradweave.execute.signature import mismatch, signature
from gradweave.execute.tracker import Tracker
from gradweave.schedules.given import ScheduleLike, as_schedule
from gradweave.schedules.schedule import Schedule


def all_reduce(
    buffer: Any,
    schedule: ScheduleLike,
    comm: MPI.Intracomm = MPI.COMM_WORLD,
    *,
    reduction: Reduction = "sum",
) -> None:
    """Replaces each process's buffer by the reduction of all buffers, in place.

    All processes of the communicator call it, with buffers of the same length and type; this is
    checked first. For many calls with the same buffer, a `Collective` is cheaper.

    Args:
        buffer: a NumPy array of any shape and strides, or another object with a writable buffer.
        schedule: an all-reduce for as many servers as the communicator has processes; rank r is the
            r-th server in order of id.
        comm: the communicator.
        reduction: sum, mean, max or min.

    Raises:
        ScheduleError: the schedule is for another number of servers, or another collective.
        OptionError: the buffer is read-only, or its type has no such reduction.
        RunError: the processes disagree on schedule, length, type or reduction.
        LostServerError: a process went away.
    """
    schedule = as_schedule(schedule)
    check_all_reduce(schedule)
    array = _array(buffer)
    if array.flags.c_contiguous:
        Collective(schedule, array, comm, reduction=reduction).run()
    else:
        packed = np.ascontiguousarray(array)
        Collective(schedule, packed, comm, reduction=reduction).run()
        array[...] = packed


def exchange(
    send: Any,
    receive: Any,
    schedule: ScheduleLike,
    comm: MPI.Intracomm = MPI.COMM_WORLD,
    *,
    reduction: Reduction = "sum",
) -> None:
    """Carries out a demand: any collectives among any groups, such as an all-to-all.

    All processes of the communicator call it. Processes without a part in the demand pass empty
    arrays.

    Args:
        send: a contiguous array of the blocks that this process contributes to, in the demand's
            order. For an all-to-all, these are the blocks for all other processes, by rank. The
            array is not changed.
        receive: a contiguous array of the same type for the blocks that this process receives.
        schedule: a schedule of a demand for as many servers as the communicator has processes; rank
            r is the r-th server in order of id.
        comm: the communicator.
        reduction: sum, mean, max or min, for blocks with several contributors.

    Raises:
        ScheduleError: the schedule has no demand, or is for another number of servers.
        OptionError: an array has a wrong length or type, or is not contiguous.
        RunError: the processes disagree on schedule, type or reduction.
        LostServerError: a process went away.
    """
    schedule = as_schedule(schedule)
    check_servers(schedule, comm.size, what="MPI processes")
    given, wanted = np.asarray(send), _array(receive)
    if given.dtype != wanted.dtype:
        raise OptionError(f"receive: expected {given.dtype}, like send, got {wanted.dtype}")
    layout = Layout.of(schedule, comm.rank, given.dtype.itemsize)
    for name, array, pieces in (("send", given, layout.given), ("receive", wanted, layout.wanted)):
        expected = layout.count(pieces)
        if not array.flags.c_contiguous or array.size != expected:
            raise OptionError(
                f"{name}: expected {expected:,} contiguous elements of {given.dtype}, got "
                f"{array.size:,}"
            )
    workspace = np.empty(layout.length, given.dtype)
    for there, here in layout.copies(layout.given):
        workspace[there] = given.reshape(-1)[here]
    collective = Collective(schedule, workspace, comm, reduction=reduction)
    collective.run()
    collective.free()
    for there, here in layout.copies(layout.wanted):
        wanted.reshape(-1)[here] = workspace[there]


class Collective:
    """A collective on one buffer, prepared for many runs with one persistent request per message.

    Construction is collective. A schedule of any collective is accepted: a reduce-scatter leaves
    each piece at its root, and undefined values elsewhere; an all-gather reads each piece at its
    root.

    Args:
        schedule: the schedule.
        buffer: contiguous memory that must not move while the collective is used. For a demand, it
            is this server's workspace: see `gradweave.execute.layout.Layout`, and `exchange`.
        comm: the communicator.
        reduction: sum, mean, max or min.

    Raises:
        ScheduleError: the schedule is for another number of servers.
        OptionError: the buffer is not contiguous or cannot be written, or its type has no such
            reduction.
        RunError: the processes disagree on schedule, length, type or reduction.
        LostServerError: a process went away.
    """

    def __init__(
        self,
        schedule: ScheduleLike,
        buffer: Any,
        comm: MPI.Intracomm = MPI.COMM_WORLD,
        *,
        reduction: Reduction = "sum",
    ) -> None:
        self._steps: list[MPI.Prequest | Callable[[], None]] = []
        schedule = as_schedule(schedule)
        check_servers(schedule, comm.size, what="MPI processes")
        array = _array(buffer)
        if not array.flags.c_contiguous:
            raise OptionError("buffer: expected contiguous memory; copy it, or use all_reduce")
        self._array = array.reshape(-1)
        self._reduction: Reduction = check_reduction(
            reduction, floating=array.dtype.kind in "fcV", dtype=array.dtype
        )
        try:  # checked now, since an error in the middle of a run would leave other ranks waiting
            combine(self._reduction, *np.zeros((2, 1), array.dtype))
        except TypeError as error:
            raise OptionError(f"buffer: there is no {reduction} of {array.dtype}") from error
        self._comm = duplicate(comm)
        if schedule.demand is None:
            at = schedule.piece_offsets(self._array.size)
            sizes, elements = np.diff(at), self._array.size
            self._pieces = [self._array[at[p] : at[p + 1]] for p in range(schedule.pieces)]
            reduces = schedule.collective != "all_gather"
            self._shared = [(self._array, comm.size)] if reduces else []
        else:
            layout = Layout.of(schedule, comm.rank, array.dtype.itemsize)
            if layout.length != self._array.size:
                raise OptionError(
                    f"buffer: expected a workspace of {layout.length:,} elements, got "
                    f"{self._array.size:,}"
                )
            sizes, elements = layout.size, int(layout.size.sum())
            self._pieces = layout.pieces(self._array)
            self._shared = [(self._pieces[p], n) for p, n in layout.summed(schedule)]
        _compare(schedule, elements, array.dtype, reduction, self._comm)
        self._own = own_operation(schedule, self._reduction, array.dtype)
        self._program = Program.of(schedule, comm.rank)
        self._tracker = Tracker(self._program, sizes)
        largest = int(sizes.max())
        self._scratch = np.empty((self._program.places, largest), array.dtype)
        self._steps = [self._step(a) for a in range(len(self._program.kind))]
        self.sent_bytes = np.zeros(comm.size, np.int64)
        """[N] bytes sent to each rank so far, counted message by message."""

    def run(self) -> None:
        """Runs the collective; all processes call it."""
        try:
            self._run()
        except MPI.Exception as error:
            _broken.append(self)
            raise _explained(error, self._comm, self._program.schedule) from error
        if self._reduction == "mean":
            for part, contributors in self._shared:
                part /= np.asarray(contributors, part.dtype)

    def _run(self) -> None:
        if self._own is not None:
            self._comm.Allreduce(MPI.IN_PLACE, self._array, self._own)
            return
        ready = self._tracker.restart()
        requests: list[MPI.Prequest] = []
        actions: list[int] = []
        while self._tracker.left:
            while ready:
                action = ready.pop(0)
                step = self._steps[action]
                if isinstance(step, MPI.Prequest):
                    step.Start()
                    requests.append(step)
                    actions.append(action)
                else:
                    step()
                    ready += self._tracker.complete(action)
            for i in sorted(MPI.Request.Waitsome(requests) or [], reverse=True):
                action = actions.pop(i)
                requests.pop(i)
                if self._program.kind[action] == Action.SEND:
                    piece = self._pieces[self._program.piece[action]]
                    self.sent_bytes[self._program.peer[action]] += piece.nbytes
                ready += self._tracker.complete(action)

    def _step(self, action: int) -> MPI.Prequest | Callable[[], None]:
        program = self._program
        piece = self._pieces[program.piece[action]]
        peer, tag = int(program.peer[action]), int(program.message[action])
        if program.kind[action] == Action.SEND:
            return self._comm.Send_init(_message(piece), peer, tag)
        at = program.place[action]
        place = piece if at < 0 else self._scratch[at, : piece.size]
        if program.kind[action] == Action.RECEIVE:
            return self._comm.Recv_init(_message(place), peer, tag)
        if program.kind[action] == Action.COPY:
            return lambda: np.copyto(piece, place)
        if program.kind[action] == Action.KEEP:
            return lambda: np.copyto(place, piece)
        return lambda: combine(self._reduction, piece, place)

    def free(self) -> None:
        """Frees the requests; the collective cannot run again."""
        for step in self._steps:
            if isinstance(step, MPI.Prequest):
                step.Free()
        self._steps = []

    def __del__(self) -> None:
        if not MPI.Is_finalized():
            self.free()


_broken: list[Collective] = []
"""Failed collectives, kept alive: messages in flight may still write into their memory."""


def own_operation(schedule: Schedule, reduction: Reduction, dtype: np.dtype) -> MPI.Op | None:
    """MPI's operation if a schedule stands for MPI's all-reduce (`is_own`).

    Returns None for any other schedule, and for a type that MPI does not have.
    """
    return OPERATIONS[reduction] if is_own(schedule, "mpi") and has_type(dtype) else None


def has_type(dtype: np.dtype) -> bool:
    """Whether MPI has the type; it has no half precision."""
    try:
        MPI.Datatype.fromcode(dtype.char)
    except ValueError:
        return False
    return True


OPERATIONS = {"sum": MPI.SUM, "mean": MPI.SUM, "max": MPI.MAX, "min": MPI.MIN}
"""MPI's operation for each reduction; a mean is divided afterwards."""


def _array(buffer: Any) -> NDArray:
    """The buffer as an array that shares its memory."""
    try:
        array = buffer if isinstance(buffer, np.ndarray) else np.asarray(memoryview(buffer))
    except TypeError as error:
        raise OptionError(
            f"buffer: expected a NumPy array or another object with a buffer, got a "
            f"{type(buffer).__name__}"
        ) from error
    if not array.flags.writeable:
        raise OptionError("buffer: expected memory that can be written, got a read-only buffer")
    if array.dtype.hasobject:
        raise OptionError(f"buffer: expected numbers, got {array.dtype}")
    return array


def _message(part: NDArray) -> list[Any]:
    """The part as bytes; from 2³¹ bytes on as whole elements, so that MPI can count them."""
    if part.nbytes < 1 << 31:
        return [part.view(np.uint8), MPI.BYTE]
    element = MPI.BYTE.Create_contiguous(part.itemsize).Commit()
    return [part.view(np.uint8), part.size, element]


def duplicate(comm: MPI.Intracomm) -> MPI.Intracomm:
    """A duplicate of a communicator for only these messages, stored with the communicator."""
    cached = comm.Get_attr(_key())
    if isinstance(cached, MPI.Intracomm):
        return cached
    duplicated = comm.Dup()
    duplicated.Set_errhandler(MPI.ERRORS_RETURN)
    comm.Set_attr(_key(), duplicated)
    return duplicated


NEWS_S = 5.0
"""Timeout for finding out which process failed."""
# For several requests, MPI reports only that one of them failed.
_LOST = ("ERR_PROC_FAILED", "ERR_PROC_FAILED_PENDING", "ERR_REVOKED", "ERR_IN_STATUS")


@functools.cache
def _key() -> int:
    """The attribute key of a communicator's duplicate; created after MPI is initialised."""
    return MPI.Comm.Create_keyval(delete_fn=lambda _comm, _key, duplicated: duplicated.Free())


def _compare(
    schedule: Schedule, elements: int, dtype: np.dtype, reduction: str, comm: MPI.Intracomm
) -> None:
    """Raises the same error in every process if their arguments differ."""
    mine = signature(schedule, elements, dtype.name, reduction)
    extremes = np.concatenate([mine, ~mine])
    try:
        comm.Allreduce(MPI.IN_PLACE, extremes, MPI.MIN)
        if (extremes[: mine.size] == ~extremes[mine.size :]).all():
            return
        all_of_them = np.empty((comm.size, mine.size), np.int64)
        comm.Allgather(mine, all_of_them)
    except MPI.Exception as error:
        raise _explained(error, comm, schedule) from error
    difference = mismatch(all_of_them)
    assert difference is not None
    raise difference


def _explained(error: MPI.Exception, comm: MPI.Intracomm, schedule: Schedule) -> RunError:
    """Names the process that went away if MPI can tell (user-level failure mitigation)."""
    lost = {getattr(MPI, name, -1) for name in _LOST}
    if error.Get_error_class() not in lost:
        return RunError(f"MPI: {error.Get_error_string()}")
    comm.Revoke()  # wakes processes that wait for live ones
    until = time.monotonic() + NEWS_S
    while not (failed := comm.Get_failed()).size and time.monotonic() < until:
        MPI.COMM_SELF.Iprobe()  # MPI makes progress only in its calls
    if not failed.size:
        return RunError("MPI: the communicator was revoked by another process")
    rank = MPI.Group.Translate_ranks(failed, [0], comm.group)[0]
    return lost_server(schedule.topology, rank, "its process ended")
