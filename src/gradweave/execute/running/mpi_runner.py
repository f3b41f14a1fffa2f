"""Runs a trial in one process under MPI."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import mpi4py
import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from gradweave.errors import LostServerError, RunError
from gradweave.execute import mpi
from gradweave.execute.lost import lost_server
from gradweave.execute.program import check_servers
from gradweave.execute.running.trial import Trial
from gradweave.schedules.schedule import Schedule

NEWS_S = 5.0
"""Timeout for finding out which process failed."""
_POLL_S = 0.01
"""Time between two checks of which process failed; only after a failure, so not in timed runs."""


class MpiRunner:
    """`gradweave.mpi.Collective` next to ``MPI_Allreduce``; see `timing.Runner`.

    Args:
        schedule: the schedule, for as many servers as there are processes.
        trial: the trial to run.
    """

    def __init__(self, schedule: Schedule, trial: Trial) -> None:
        self._schedule, self._trial = schedule, trial
        check_servers(schedule, MPI.COMM_WORLD.size, what="MPI processes")
        first = MPI.Get_library_version().strip("\0").splitlines()[0].split(",")[0]
        self.library = f"{first}, mpi4py {mpi4py.__version__}"
        self.ranks = [MPI.COMM_WORLD.rank]
        # Both all-reduces use this communicator, so revoking it wakes every process waiting in
        # either.
        self._comm = mpi.duplicate(MPI.COMM_WORLD)
        self._operation = mpi.OPERATIONS[trial.reduction]
        self.has_native = schedule.collective == "all_reduce" and mpi.has_type(trial.numpy_dtype)
        self._placed = self._buffer = np.empty(0, trial.numpy_dtype)
        self._collective: mpi.Collective | None = None
        self._sent = np.zeros(self._comm.size, np.int64)

    def use(self, schedule: Schedule) -> None:
        """Makes the next plan use another schedule."""
        self._schedule = schedule

    def place(self, contributions: Sequence[NDArray]) -> None:
        """Prepares a plan for the buffer."""
        self._count()
        (self._placed,) = contributions
        self._buffer = self._placed.copy()
        with self._named():
            self._collective = mpi.Collective(
                self._schedule, self._buffer, MPI.COMM_WORLD, reduction=self._trial.reduction
            )

    def restore(self) -> None:
        """Copies the contribution into the buffer."""
        self._buffer[:] = self._placed

    def run(self) -> None:
        """Runs the plan."""
        assert self._collective is not None
        with self._named():
            self._collective.run()

    def run_native(self) -> None:
        """Runs ``MPI_Allreduce``."""
        with self._named():
            self._comm.Allreduce(MPI.IN_PLACE, self._buffer, self._operation)
        if self._trial.reduction == "mean":
            self._buffer /= self._buffer.dtype.type(self._comm.size)

    def results(self) -> Sequence[NDArray]:
        """The content of the buffer."""
        return [self._buffer]

    def sent_bytes(self) -> NDArray[np.int64]:
        """Bytes counted by the plans."""
        self._count()
        return self._sent.copy()

    def barrier(self) -> None:
        """The barrier of the communicator."""
        with self._named():
            self._comm.Barrier()

    def gathered(self, numbers: NDArray) -> NDArray:
        """The allgather of the communicator."""
        every = np.empty((self._comm.size, *numbers.shape), numbers.dtype)
        with self._named():
            self._comm.Allgather(np.ascontiguousarray(numbers), every)
        return every

    def _count(self) -> None:
        """Adds the bytes that the current collective has sent."""
        if self._collective is not None:
            self._sent[self._comm.rank] += self._collective.sent_bytes.sum()
            self._collective.sent_bytes[:] = 0

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Names the lost server if MPI fails; all remaining processes do so together."""
        try:
            yield
        except (MPI.Exception, RunError) as error:
            if lost := self._lost():
                raise lost from error
            raise error if isinstance(error, RunError) else RunError(f"MPI: {error}") from error

    def _lost(self) -> LostServerError | None:
        """The lost server, or None if no process failed or MPI cannot tell.

        This uses user-level failure mitigation: revoking the communicator wakes the processes that
        wait for live ones, and all of them then learn from MPI's runtime which process failed.
        """
        _tried(self._comm.Revoke)
        until = time.monotonic() + NEWS_S
        while time.monotonic() < until:
            MPI.COMM_SELF.Iprobe()  # MPI makes progress only in its calls
            failed = _tried(self._comm.Get_failed)
            if not isinstance(failed, MPI.Group):
                return None
            if failed.size:
                rank = int(MPI.Group.Translate_ranks(failed, [0], self._comm.group)[0])
                return lost_server(self._schedule.topology, rank, "its process ended")
            time.sleep(_POLL_S)
        return None


def _tried(step: Callable[[], object]) -> object:
    """The result of a call, or None if it fails or this MPI does not support it."""
    try:
        return step()
    except (MPI.Exception, NotImplementedError):
        return None
