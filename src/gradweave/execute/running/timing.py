"""A schedule checked, and timed alternately with the backend's native all-reduce."""

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

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
from gradweave.schedule.schedule import Schedule
from gradweave.wording import counted

ORACLE_ELEMENTS = 1 << 20
"""Elements of all servers together that are compared with the oracle's, which holds them all."""

Tell = Callable[[str], None]
"""Called with the step under way, often enough to show that the run moves."""


class Runner(Protocol):
    """One process of those that run a schedule; all call the same methods in the same order."""

    library: str
    """Name and version of the communication library."""
    ranks: list[int]
    """The servers in this process."""
    has_native: bool
    """Whether the backend has a native all-reduce for this type, and the schedule is one."""

    def use(self, schedule: Schedule) -> None:
        """Runs another schedule of the same servers from now on, after the next `place`."""
        ...

    def place(self, contributions: Sequence[NDArray]) -> None:
        """Sets the contributions of this process's servers; a new length is prepared for."""
        ...

    def restore(self) -> None:
        """Sets the last contributions again, where a run has overwritten them."""
        ...

    def run(self) -> None:
        """Runs the schedule and returns when it is complete here."""
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
        """All-gather: [processes, …] the numbers of all processes, exactly, in each of them."""
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
        trial: what to run.
        tell: called with the step under way.
        calibrating: further schedules to be timed with messages of several sizes.

    Returns:
        The same in every process.

    Raises:
        RunError: a server ended with a wrong result; it is the same error in every process.
        LostServerError: a server went away.
    """
    sample = min(trial.elements, ORACLE_ELEMENTS // schedule.topology.num_servers)
    if is_own(schedule, RUNTIMES[trial.backend]):
        sample = 0  # in which order it adds is the runtime's affair
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
    """One length of a sweep, timed as the others."""
    tell(f"{counted(elements, 'element')}")
    runner.place([np.ones(elements, trial.numpy_dtype) for _ in runner.ranks])
    times, sent = _times(runner, dataclasses.replace(trial, elements=elements), tell)
    native = RunTimes(times["native"], None) if runner.has_native else None
    return SizeTimes(elements, RunTimes(times["schedule"], sent), native)


CALIBRATION_BYTES = (64, 1 << 12, 1 << 16, 1 << 20, 1 << 23)
"""Sizes of the messages by which a runtime is calibrated."""
_LARGEST_CALIBRATION = 1 << 26
"""Bytes of a gradient with which it is: eight messages of the largest size."""
_CALIBRATION_S = 1.0
"""How long one schedule at one size is timed, but at least three times."""
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
    """Runs once, and raises the same error in all processes if any of them has one."""
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
    """Seconds of each timed run, of the schedule and the native all-reduce; bytes sent by rank."""
    both = {"schedule": runner.run} | ({"native": runner.run_native} if runner.has_native else {})
    before, runs = runner.sent_bytes(), trial.warm_up + trial.repetitions
    seconds = np.empty((len(both), runs))
    for number in range(runs):
        tell(f"run {number + 1} of {runs}")
        # In turns, each first every other time: what comes first finds the processes less awake.
        for row, run in list(enumerate(both.values()))[:: -1 if number % 2 else 1]:
            seconds[row, number] = _timed(runner, run)
    sent = _per_run(runner.sent_bytes() - before, runs)
    sent_bytes = runner.gathered(sent).sum(axis=0).tolist()
    slowest = runner.gathered(seconds[:, trial.warm_up :]).max(axis=0).tolist()
    return dict(zip(both, map(tuple, slowest), strict=True)), tuple(sent_bytes)


def _timed(runner: Runner, run: Callable[[], None]) -> float:
    """Seconds that one run takes here, after a barrier."""
    runner.restore()
    runner.barrier()
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def _per_run(total: NDArray[np.int64], runs: int) -> NDArray[np.int64]:
    """Bytes of one of several equal runs."""
    if (total % runs).any():
        raise RunError(f"{runs} equal runs sent different amounts: {total.tolist()} bytes together")
    return total // runs
