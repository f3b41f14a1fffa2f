"""One search over strategies: the objective says what is to be small, a stop when to end."""

import abc
import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, wait

from gradweave import clock
from gradweave.bounds import Bound
from gradweave.errors import NoScheduleError
from gradweave.schedule.schedule import Collective, Schedule
from gradweave.schedulers.scheduler import SEARCHING, Scheduler, to_spec
from gradweave.schedulers.solve.seconds_bound import Timing
from gradweave.schedulers.solve.solution import Attempt, Solution, Stopped
from gradweave.stop import POLL_S, Stop
from gradweave.topology.topology import Topology


@dataclasses.dataclass(frozen=True, eq=False)
class Candidate:
    """One schedule, with how it came about."""

    schedule: Schedule
    scheduler: Scheduler
    value: float
    """What is to be small: its rounds or seconds."""
    base: Schedule
    """The same before it was cut into parts."""
    parts: int = 1
    overlapped: bool = False


class Objective(abc.ABC):
    """What a search makes small, and which schedules of a strategy it tries for that."""

    topology: Topology
    collective: Collective

    @property
    @abc.abstractmethod
    def target(self) -> float:
        """With which the search is content: a lower bound, or near one."""

    @abc.abstractmethod
    def schedules(
        self, scheduler: Scheduler, seed: int, stop: Stop, known: Schedule | None
    ) -> Iterator[tuple[Schedule, Scheduler]]:
        """A strategy's schedules, each with the options that made it.

        Args:
            scheduler: the strategy.
            seed: of every random choice.
            stop: of its search.
            known: the best that there is already.

        Raises:
            NoScheduleError: where the strategy finds none, or no more.
        """

    @abc.abstractmethod
    def variants(
        self, schedule: Schedule, scheduler: Scheduler, stop: Stop, best: float
    ) -> Iterator[Candidate]:
        """What may be made of a schedule, itself first, each with its value.

        Args:
            schedule: as a strategy made it.
            scheduler: the strategy.
            stop: after which no more are begun.
            best: the least value so far of other strategies, infinite if there is none: what cannot
                come near it is left out.
        """

    @abc.abstractmethod
    def attempt(self, found: Candidate, wall_s: float) -> Attempt:
        """The outcome of a strategy, of which this is the best schedule."""

    @abc.abstractmethod
    def so_far(self, best: Candidate | None) -> str:
        """The best and the least possible, for whoever waits."""

    @abc.abstractmethod
    def finished(self, best: Candidate, seed: int) -> tuple[Schedule, Bound, Timing | None]:
        """The best schedule as it is returned, beside its bounds."""

    def learn(self, found: Candidate) -> None:  # noqa: B027 — most strategies prove nothing
        """Raises the target where a strategy has proved more than was known."""


class Search:
    """What has been tried so far, and the best of it.

    Args:
        objective: what is to be small.
        seed: every random choice depends on it alone.
        stop: of each strategy's search.
        progress: told what is about to be done.
    """

    def __init__(
        self,
        objective: Objective,
        seed: int,
        stop: Stop,
        progress: Callable[[str], None],
    ) -> None:
        self.objective, self.seed, self.stop = objective, seed, stop
        self.best: Candidate | None = None
        self.attempts: list[Attempt] = []
        self._progress, self._begun = progress, clock.now()
        self._used_up, self._cut_short = stop.part(SEARCHING), False

    def try_each(
        self,
        schedulers: Sequence[Scheduler],
        begin: Stop | None = None,
        executor: Executor | None = None,
    ) -> None:
        """Tries one strategy after the other until the best is good enough or time is up.

        Args:
            schedulers: in this order; the first of equals wins.
            begin: after which none is begun, once there is a schedule; `stop` if not given.
            executor: where all of them run at once, if given; then all have begun.
        """
        if executor is not None:
            self._try_side_by_side(schedulers, executor)
            return
        content = (begin or self.stop).at(self.objective.target)
        for scheduler in schedulers:
            if self.best is not None and (why := content.reached(self.best.value)):
                self._cut_short = why == "time"
                break
            self._say(scheduler)
            self.add(*_tried(self.objective, scheduler, self.seed, self.stop, self.best))
            self._check_interrupted()

    def _try_side_by_side(self, schedulers: Sequence[Scheduler], executor: Executor) -> None:
        """Adds what comes of each in their order; no flag reaches them, so none is waited for."""
        running = [
            executor.submit(_elsewhere, self.objective, one, self.seed, self.stop.seconds_left)
            for one in schedulers
        ]
        for scheduler, one in zip(schedulers, running, strict=True):
            if self.best is not None and self.best.value <= self.objective.target:
                break
            self._say(scheduler)
            while not (one.done() or self.stop.flag[0]):
                wait([one], POLL_S)
            if one.done():
                self.add(*one.result())
        for one in running:
            one.cancel()
        self._check_interrupted()

    def _say(self, scheduler: Scheduler) -> None:
        self._progress(f"trying {to_spec(scheduler)}{self.objective.so_far(self.best)}")

    def _check_interrupted(self) -> None:
        """Raises KeyboardInterrupt where the search ends with nothing."""
        if self.best is None and self.stop.flag[0]:
            raise KeyboardInterrupt

    def add(self, attempt: Attempt, found: Candidate | None) -> None:
        """Records an attempt, and keeps its schedule where none is better."""
        self.attempts.append(attempt)
        if found is None:
            return
        self.objective.learn(found)
        if self.best is None or found.value < self.best.value:
            self.best = found

    def solution(self) -> Solution:
        """The best of all.

        Raises:
            NoScheduleError: where no strategy found a schedule, with each one's reason.
        """
        if self.best is None:
            reasons = "; ".join(f"{one.scheduler.name}: {one.reason}" for one in self.attempts)
            name = self.objective.topology.name
            raise NoScheduleError(f"no schedule for {name!r}: {reasons}")
        out_of_time = self._cut_short or self._used_up.reached()
        met = self.best.value <= self.objective.target
        stopped: Stopped = "bound" if met else "time" if out_of_time else "tried"
        if self.stop.flag[0] and not met:
            stopped = "interrupt"
        schedule, bound, timing = self.objective.finished(self.best, self.seed)
        wall_s, attempts = clock.now() - self._begun, tuple(self.attempts)
        scheduler = self.best.scheduler
        return Solution(schedule, bound, scheduler, attempts, wall_s, timing, stopped=stopped)


def _tried(
    objective: Objective, scheduler: Scheduler, seed: int, stop: Stop, best: Candidate | None
) -> tuple[Attempt, Candidate | None]:
    """One strategy: the attempt, and the best of its schedules in all variants."""
    began, found, reason = clock.now(), None, ""
    stop = dataclasses.replace(stop, dispensable=best is not None)
    content = stop.at(objective.target)
    try:
        known, least = (None, math.inf) if best is None else (best.schedule, best.value)
        for schedule, used in objective.schedules(scheduler, seed, stop, known):
            for candidate in objective.variants(schedule, used, stop, least):
                if found is None or candidate.value < found.value:
                    found = candidate
            if found is not None and content.reached(found.value):
                break
    except NoScheduleError as error:
        reason = str(error).removeprefix(f"{scheduler.name}: ")
    wall_s = clock.now() - began
    if found is None:
        return Attempt(scheduler, None, wall_s, reason), None
    return objective.attempt(found, wall_s), found


def _elsewhere(
    objective: Objective, scheduler: Scheduler, seed: int, seconds: float
) -> tuple[Attempt, Candidate | None]:
    """The same in another process, whose clock is another."""
    return _tried(objective, scheduler, seed, Stop.after(seconds), None)
