"""Runs a schedule's file in the processes that a launcher started, or in new processes."""

from collections.abc import Callable, Sequence
from pathlib import Path

from gradweave.common.lazy import require
from gradweave.errors import OptionError
from gradweave.execute.program import check_among_all, check_runs
from gradweave.execute.running.joined import Say, join
from gradweave.execute.running.launch import Place, launch
from gradweave.execute.running.rank_process import WorkerTask
from gradweave.execute.running.trial import RunReport, Trial
from gradweave.processes.launchers import rank_given
from gradweave.schedules.file import load
from gradweave.schedules.schedule import Schedule
from gradweave.topology.topology import Topology

_PACKAGES = {"mpi": "mpi4py", "torch": "torch", "jax": "jax"}


def run(
    file: Path,
    trial: Trial,
    place: Place,
    progress: Callable[[str], None],
    say: Say,
    calibrating: Callable[[Topology], Sequence[Schedule]] = lambda _: (),
) -> tuple[Schedule, RunReport]:
    """Runs a trial; under the backend's launcher, all its processes call this.

    Args:
        file: the file of the schedule.
        trial: the trial to run.
        place: how to start processes, unless a launcher started this process.
        progress: called with the current step.
        say: writes a line to standard error.
        calibrating: further schedules for the network, see `timing.measure`.

    Returns:
        The schedule, and the report, which is the same in every process.

    Raises:
        MissingExtraError: the backend's package is missing.
        OptionError: the launcher of another backend started this process.
        GradweaveError: as for `join` and `launch`, or the file holds no schedule that can run.
    """
    _check_backend(trial.backend)
    schedule = load(file)
    check_among_all(schedule)
    check_runs(schedule)
    more = calibrating(schedule.topology)
    if rank_given(trial.backend) is not None:
        return schedule, join(
            schedule, WorkerTask(str(file), trial, place.timeout_s), progress, say, more
        )
    progress(f"starting {schedule.topology.num_servers} servers")
    return schedule, launch(schedule, file, trial, place, progress, more)


def _check_backend(backend: str) -> None:
    require(f"the backend {backend}", _PACKAGES[backend])
    for other in _PACKAGES:
        if other != backend and rank_given(other) is not None:
            raise OptionError(
                f"--backend {backend} does not run under the launcher of {other}; use "
                f"--backend {other}, or start gradweave without it"
            )
