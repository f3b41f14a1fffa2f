"""Runs a trial in a process that a launcher has started: ``mpirun`` or ``torchrun``."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn

from gradweave.errors import GradweaveError, LostServerError, Negative, RunError, exit_status
from gradweave.execute.running.hosts import placed_by_hosts
from gradweave.execute.running.rank_process import WorkerTask, agree_s, open_runner
from gradweave.execute.running.timing import Tell, measure
from gradweave.execute.running.trial import RunReport
from gradweave.processes.ending import end_at_once
from gradweave.processes.launchers import rank_of_any
from gradweave.processes.mpirun import abort_job
from gradweave.processes.watch import Watch
from gradweave.schedules.schedule import Schedule

_LINGER_S = 2.0
"""A launcher ends all processes as soon as one fails; in this time, the others can say why."""
Say = Callable[[str], None]
"""Writes a line to standard error."""


def join(
    schedule: Schedule,
    task: WorkerTask,
    tell: Tell,
    say: Say,
    calibrating: Sequence[Schedule] = (),
) -> RunReport:
    """Runs a trial together with the processes that were started with this one.

    If nothing moves for too long, this process ends.

    Args:
        schedule: the schedule, for as many servers as there are processes.
        task: the task to run.
        tell: called with the current step.
        say: writes a line to standard error.
        calibrating: see `timing.measure`.

    Raises:
        ScheduleError: the schedule is for another number of servers.
        LostServerError: a server went away.
        RunError: a result was wrong.
    """
    watch = Watch(
        task.timeout_s,
        lambda reason: _leave(RunError(reason), rank_of_any() or 0, say),
        after_s=agree_s(task.trial.backend),
    )

    def moved(doing: str) -> None:
        watch.moved()
        tell(doing)

    try:
        runner = open_runner(task, schedule)
        assert runner is not None  # only the jax backend has processes without servers
        placed = placed_by_hosts(runner, schedule)
        if placed is not schedule:
            runner.use(placed)
        return measure(runner, placed, task.trial, moved, calibrating)
    except GradweaveError:
        raise
    except Exception as error:  # of any kind: the other processes wait for this one
        raise RunError(f"{type(error).__name__}: {error}") from error


@contextlib.contextmanager
def ended_at_once(say: Say) -> Iterator[None]:
    """Ends this process if the block raises an error and a launcher started the process.

    An ordinary exit would hang: MPI waits for all other processes then, including the lost one.
    """
    try:
        yield
    except GradweaveError as error:
        rank = rank_of_any()
        if rank is None:
            raise
        _leave(error, rank, say)


def _leave(error: GradweaveError, rank: int, say: Say) -> NoReturn:
    """Ends this process; only rank 0 reports bad input, which is the same at all ranks."""
    negative = isinstance(error, Negative)

    def last_word() -> None:
        if rank == 0 or negative:
            say(f"rank {rank}: {error}" if negative else str(error))
        sys.stdout.flush()
        sys.stderr.flush()
        time.sleep(_LINGER_S)
        if negative and not isinstance(error, LostServerError):
            abort_job()  # MPI would not tell the other ranks; torchrun does

    end_at_once(exit_status(error), last_word)
