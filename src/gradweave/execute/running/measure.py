"""A schedule and the backend's own all-reduce, checked and timed side by side."""

import time
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gradweave.errors import RunError
from gradweave.execute.running.correct import Question, exact
from gradweave.execute.running.trial import Report, Timing, Trial
from gradweave.schedule.schedule import Schedule

ORACLE_ELEMENTS = 1 << 20
"""Elements of all servers together that are compared with the oracle's, which holds them all."""

Tell = Callable[[str], None]
"""Is told what is being done; called often enough to see from it that something is."""


class Runner(Protocol):
    """One process of those that run a schedule; all call the same methods in the same order."""

    library: str
    """Name and version of what carries the messages."""
    ranks: list[int]
    """The servers that live in this process."""
    has_own: bool
    """Whether the backend has an all-reduce of its own for this type and collective."""

    def place(self, contributions: Sequence[NDArray]) -> None:
        """Sets what the servers of this process bring; a new length prepares everything anew."""
        ...

    def restore(self) -> None:
        """Puts back what was placed last, where a run has written over it."""
        ...

    def run(self) -> None:
        """Runs the schedule and returns when it is complete here."""
        ...

    def run_own(self) -> None:
        """Runs the backend's own all-reduce."""
        ...

    def results(self) -> Sequence[NDArray]:
        """What the servers of this process ended with."""
        ...

    def sent_bytes(self) -> NDArray[np.int64]:
        """[N] bytes that the servers of this process have sent so far; 0 at the others."""
        ...

    def barrier(self) -> None:
        """Returns once all processes have called it."""
        ...

    def gathered(self, numbers: NDArray) -> NDArray:
        """[processes, …] what the processes bring, exactly; in each of them."""
        ...


def measure(runner: Runner, schedule: Schedule, trial: Trial, tell: Tell) -> Report:
    """Checks a schedule's result and times it, with the backend's own all-reduce in turns.

    Args:
        runner: this process.
        schedule: the schedule.
        trial: what to run.
        tell: is told what is being done.

    Returns:
        The same in every process.

    Raises:
        RunError: a server ended with a wrong result; it is the same error in every process.
        LostServerError: a server went away.
    """
    sample = min(trial.elements, ORACLE_ELEMENTS // schedule.topology.num_servers)
    _check(runner, Question(schedule, trial, sample, "oracle"), tell)
    question = Question(schedule, trial, trial.elements, "pattern")
    in_full = exact(schedule, trial)
    if in_full:
        _check(runner, question, tell)
    else:
        runner.place([question.contribution(rank) for rank in runner.ranks])
    both = {"schedule": runner.run} | ({"own": runner.run_own} if runner.has_own else {})
    before, runs = runner.sent_bytes(), trial.warm_up + trial.repetitions
    seconds = np.empty((len(both), runs))
    for number in range(runs):
        tell(f"run {number + 1} of {runs}")
        for row, run in enumerate(both.values()):
            seconds[row, number] = _timed(runner, run)
    seconds = seconds[:, trial.warm_up :]
    sent = _each(runner.sent_bytes() - before, runs)
    sent_bytes = runner.gathered(sent).sum(axis=0).tolist()
    slowest = dict(zip(both, runner.gathered(seconds).max(axis=0).tolist(), strict=True))
    return Report(
        library=runner.library,
        processes=len(runner.gathered(np.zeros(1))),
        oracle_elements=sample,
        pattern_elements=trial.elements if in_full else 0,
        schedule=Timing(tuple(slowest["schedule"]), tuple(sent_bytes)),
        own=Timing(tuple(slowest["own"]), None) if "own" in slowest else None,
    )


def _check(runner: Runner, question: Question, tell: Tell) -> None:
    """Runs once, and raises the same error in all processes if any of them finds one."""
    tell(f"checking {question.elements:,} elements")
    runner.place([question.contribution(rank) for rank in runner.ranks])
    tell(f"checking {question.elements:,} elements")
    runner.run()
    tell(f"checking {question.elements:,} elements")
    results = dict(zip(runner.ranks, runner.results(), strict=True))
    for wrong in runner.gathered(question.wrong(results)):
        if wrong[0] >= 0:
            raise question.complaint(wrong)


def _timed(runner: Runner, run: Callable[[], None]) -> float:
    """Seconds that one run takes here, all processes having started together."""
    runner.restore()
    runner.barrier()
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def _each(total: NDArray[np.int64], runs: int) -> NDArray[np.int64]:
    """What one of several equal runs sent."""
    if (total % runs).any():
        raise RunError(f"{runs} equal runs sent different amounts: {total.tolist()} bytes together")
    return total // runs
