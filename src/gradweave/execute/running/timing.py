"""Checks a schedule, and times it alternately with the backend's native all-reduce."""

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gradweave.common.wording import counted
from gradweave.errors import RunError
from gradweave.execute.program import is_own
from gradweave.execute.running.correct import ResultCheck, sums_are_exact
from gradweave.execute.running.trial import (
    NATIVE,
    RUNTIMES,
    CalibrationTime,
    RunReport,
    RunTimes,
    SizeTimes,
    Trial,
    itemsize,
)
from gradweave.schedules.schedule import Schedule

ORACLE_ELEMENTS = 1 << 20
"""Total elements of all servers compared with the oracle, which holds all of them in memory."""

Tell = Callable[[str], None]
"""Called with the current step, often enough to show that the run makes progress."""


class Runner(Protocol):
    """One of the processes that run a schedule; all call the same methods in the same order."""

    library: str
    """Name and version of the communication library."""
    ranks: list[int]
    """Ranks of the servers in this process."""
    has_native: bool
    """Whether the schedule is an all-reduce, and the backend has a native one for this type."""

    def use(self, schedule: Schedule) -> None:
        """Switches to another schedule of the same servers, from the next `place` on."""
        ...

    def place(self, contributions: Sequence[NDArray]) -> None:
        """Sets the contributions of this process's servers, and prepares for their length."""
        ...

    def restore(self) -> None:
        """Restores the last contributions if a run has overwritten them."""
        ...

    def run(self) -> None:
        """Runs the schedule, and returns when it is complete in this process."""
        ...

    def run_native(self) -> None:
        """Runs the backend's native all-reduce."""
        ...

    def results(self) -> Sequence[NDArray]:
        """The results of this process's servers."""
        ...

    def sent_bytes(self) -> NDArray[np.int64]:
        """[N] bytes that the servers of this process have sent so far; 0 at the others."""
        ...

    def barrier(self) -> None:
        """Returns once all processes have called it."""
        ...

    def gathered(self, numbers: NDArray) -> NDArray:
        """All-gather: [processes, …] the numbers of all processes, unrounded, in each of them."""
        ...


def measure(
    runner: Runner,
    schedule: Schedule,
    trial: Trial,
    tell: Tell,
    calibrating: Sequence[Schedule] = (),
) -> RunReport:
    """Checks a schedule's result and times it, alternately with the backend's native all-reduce.

    Args:
        runner: this process.
        schedule: the schedule.
        trial: the trial to run.
        tell: called with the current step.
        calibrating: further schedules to time with messages of several sizes.

    Returns:
        The report, which is the same in every process.

    Raises:
        RunError: a server ended with a wrong result; the error is the same in every process.
        LostServerError: a server went away.
    """
    sample = min(trial.elements, ORACLE_ELEMENTS // schedule.topology.num_servers)
    if is_own(schedule, RUNTIMES[trial.backend]):
        sample = 0  # the runtime chooses the order of its additions
    else:
        _check(runner, ResultCheck(schedule, trial, sample, "oracle"), tell)
    check = ResultCheck(schedule, trial, trial.elements, "pattern")
    exact = sums_are_exact(schedule, trial)
    if exact:
        _check(runner, check, tell)
    else:
        runner.place([check.contribution(rank) for rank in runner.ranks])
    times, sent_bytes = _times(runner, trial, tell)
    sweep = tuple(_of_size(runner, trial, elements, tell) for elements in trial.sweep)
    return RunReport(
        library=runner.library,
        processes=len(runner.gathered(np.zeros(1))),
        oracle_elements=sample,
        pattern_elements=trial.elements if exact else 0,
        schedule=RunTimes(times["schedule"], sent_bytes),
        native=RunTimes(times["native"], None) if runner.has_native else None,
        sweep=sweep,
        calibration=tuple(_calibration(runner, trial, calibrating, tell)) if calibrating else (),
    )


def _of_size(runner: Runner, trial: Trial, elements: int, tell: Tell) -> SizeTimes:
    """Times one length of a sweep."""
    tell(f"{counted(elements, 'element')}")
    runner.place([np.ones(elements, trial.numpy_dtype) for _ in runner.ranks])
    times, sent = _times(runner, dataclasses.replace(trial, elements=elements), tell)
    native = RunTimes(times["native"], None) if runner.has_native else None
    return SizeTimes(elements, RunTimes(times["schedule"], sent), native)


CALIBRATION_BYTES = (64, 1 << 12, 1 << 16, 1 << 20, 1 << 23)
"""Sizes of the messages used to calibrate a runtime."""
_LARGEST_CALIBRATION = 1 << 26
"""Maximum bytes of a gradient in the calibration: eight messages of the largest size."""
_CALIBRATION_S = 1.0
"""Total time for one schedule at one size; it is run at least three times."""
_CALIBRATION_RUNS = (3, 15)


def _calibration(
    runner: Runner, trial: Trial, schedules: Sequence[Schedule], tell: Tell
) -> Iterator[CalibrationTime]:
    """Median times of some schedules and, alternately, of the native all-reduce."""
    size = itemsize(trial.dtype)
    for number, schedule in enumerate(schedules):
        runner.use(schedule)
        for message_bytes in CALIBRATION_BYTES:
            elements = schedule.pieces * max(message_bytes // size, 1)
            if elements * size > _LARGEST_CALIBRATION:
                break
            tell(f"calibrating with messages of {counted(message_bytes, 'byte')}")
            runner.place([np.ones(elements, trial.numpy_dtype) for _ in runner.ranks])
            first, _ = _times(
                runner, Trial(trial.backend, elements, trial.dtype, "sum", 1, 1), tell
            )
            longest = sum(seconds for (seconds,) in first.values())
            least, most = _CALIBRATION_RUNS
            runs = min(max(least, int(_CALIBRATION_S / max(longest, 1e-6))), most)
            often = Trial(trial.backend, elements, trial.dtype, "sum", runs, 0)
            for name, seconds in _times(runner, often, tell)[0].items():
                which = number if name == "schedule" else NATIVE
                yield CalibrationTime(which, elements * size, float(np.median(seconds)))


def _check(runner: Runner, check: ResultCheck, tell: Tell) -> None:
    """Checks one run, and raises the same error in all processes if any of them has an error."""
    tell(f"checking {counted(check.elements, 'element')}")
    runner.place([check.contribution(rank) for rank in runner.ranks])
    tell(f"checking {counted(check.elements, 'element')}")
    runner.run()
    tell(f"checking {counted(check.elements, 'element')}")
    results = dict(zip(runner.ranks, runner.results(), strict=True))
    for error in runner.gathered(check.first_error(results)):
        if error[0] >= 0:
            raise check.explained(error)


def _times(
    runner: Runner, trial: Trial, tell: Tell
) -> tuple[dict[str, tuple[float, ...]], tuple[int, ...]]:
    """Seconds of each timed run, for the schedule and the native all-reduce; bytes sent by rank."""
    both = {"schedule": runner.run} | ({"native": runner.run_native} if runner.has_native else {})
    before, runs = runner.sent_bytes(), trial.warm_up + trial.repetitions
    seconds = np.empty((len(both), runs))
    for number in range(runs):
        tell(f"run {number + 1} of {runs}")
        # Alternately, with each of them first in every other run: the first finds processes less
        # awake.
        for row, run in list(enumerate(both.values()))[:: -1 if number % 2 else 1]:
            seconds[row, number] = _timed(runner, run)
    sent = _per_run(runner.sent_bytes() - before, runs)
    sent_bytes = runner.gathered(sent).sum(axis=0).tolist()
    slowest = runner.gathered(seconds[:, trial.warm_up :]).max(axis=0).tolist()
    return dict(zip(both, map(tuple, slowest), strict=True)), tuple(sent_bytes)


def _timed(runner: Runner, run: Callable[[], None]) -> float:
    """Seconds of one run in this process, after a barrier."""
    runner.restore()
    runner.barrier()
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def _per_run(total: NDArray[np.int64], runs: int) -> NDArray[np.int64]:
    """Bytes per run, for several equal runs."""
    if (total % runs).any():
        raise RunError(f"{runs} equal runs sent different amounts: {total.tolist()} bytes together")
    return total // runs
