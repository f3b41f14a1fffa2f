"""A run's process that somebody else has started: ``mpirun`` or ``torchrun``."""

import os
import sys
from collections.abc import Callable
from typing import NoReturn

from gradweave.errors import GradweaveError, RunError
from gradweave.execute.running.measure import Tell, measure
from gradweave.execute.running.trial import Report
from gradweave.execute.running.worker import RANK_VARIABLES, Task, open_runner
from gradweave.processes.watch import Watch
from gradweave.schedule.schedule import Schedule

_SIZE_VARIABLES = {
    "mpi": ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"),
    "torch": ("WORLD_SIZE",),
}
"""Without one of these a process was not started by the backend's launcher."""


def rank_given(backend: str) -> int | None:
    """The rank that a launcher gave this process; None where it was started by itself.

    >>> rank_given("jax") is None
    True
    """
    ranks = [os.environ[name] for name in RANK_VARIABLES.get(backend, ()) if name in os.environ]
    sized = any(name in os.environ for name in _SIZE_VARIABLES.get(backend, ()))
    return int(ranks[0]) if ranks and sized and ranks[0].isdecimal() else None


def join(schedule: Schedule, task: Task, tell: Tell, end: Callable[[str], NoReturn]) -> Report:
    """Runs a trial together with the processes that were started with this one.

    Args:
        schedule: for as many servers as there are processes.
        task: what to run.
        tell: is told what is being done.
        end: is called from another thread with the reason where nothing moves for too long; must
            end the process.

    Raises:
        ScheduleError: the schedule is for another number of servers.
        LostServerError: a server went away.
        RunError: a wrong result.
    """
    watch = Watch(task.timeout_s, end)

    def moved(doing: str) -> None:
        watch.moved()
        tell(doing)

    try:
        runner = open_runner(task, schedule)
        assert runner is not None  # only jax has processes without servers
        return measure(runner, schedule, task.trial, moved)
    except GradweaveError:
        raise
    except Exception as error:  # the others wait for this process, whatever is wrong with it
        raise RunError(f"{type(error).__name__}: {error}") from error


def abandon() -> None:
    """Ends the other processes too, where they wait for this one and MPI would not tell them.

    Under torchrun there is no need: it sees to that itself.
    """
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_initialized():
        mpi.COMM_WORLD.Abort(1)
