"""Searches over strategies: an objective says what to minimise, a stop when to end."""

import abc
import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, wait

from gradweave import clock
from gradweave.bounds import Bound
from gradweave.errors import NoScheduleError
from gradweave.schedulers.scheduler import SEARCHING, Scheduler, to_spec
from gradweave.schedulers.solving.solution import Attempt, Solution, Stopped
from gradweave.schedulers.solving.timing import Timing
from gradweave.schedules.schedule import Collective, Schedule
from gradweave.stop import POLL_S, Stop
from gradweave.topology.topology import Topology


@dataclasses.dataclass(frozen=True, eq=False)
class Candidate:
    """A schedule, and how it was made."""

    schedule: Schedule
    scheduler: Scheduler
    value: float
    """The value to minimise: rounds or seconds."""
    base: Schedule
    """The schedule before it was cut into parts."""
    parts: int = 1
    overlapped: bool = False


class Objective(abc.ABC):
    """The quantity to minimise, and which schedules of a strategy to try for it."""

    topology: Topology
    collective: Collective

    @property
    @abc.abstractmethod
    def target(self) -> float:
        """The value at which the search stops: a lower bound, or slightly above it."""

    @abc.abstractmethod
    def schedules(
        self, scheduler: Scheduler, seed: int, stop: Stop, known: Schedule | None
    ) -> Iterator[tuple[Schedule, Scheduler]]:
        """A strategy's schedules, each with the options that made it.

        Args:
            scheduler: the strategy.
            seed: the seed of every random choice.
            stop: when to stop its search.
            known: the best schedule so far.

        Raises:
            NoScheduleError: if the strategy finds no schedule, or no more.
        """

    @abc.abstractmethod
    def variants(
        self, schedule: Schedule, scheduler: Scheduler, stop: Stop, best: float
    ) -> Iterator[Candidate]:
        """The variants of a schedule, beginning with itself, each with its value.

        Args:
            schedule: as a strategy made it.
            scheduler: the strategy.
            stop: after which no more variants are started.
            best: the smallest value of other strategies so far, infinite if there is none; variants
                that cannot come near it are skipped.
        """

    @abc.abstractmethod
    def attempt(self, found: Candidate, wall_s: float) -> Attempt:
        """The outcome of the strategy whose best schedule this is."""

    @abc.abstractmethod
    def so_far(self, best: Candidate | None) -> str:
        """The best value so far and the bound, for progress lines."""

    @abc.abstractmethod
    def finished(self, best: Candidate, seed: int) -> tuple[Schedule, Bound, Timing | None]:
        """The best schedule as it is returned, with its bounds."""

    def learn(self, found: Candidate) -> None:  # noqa: B027 — most strategies prove nothing
        """Raises the target if a strategy has proved a stronger bound."""


class Search:
    """The strategies tried so far, and the best schedule found.

    Args:
        objective: the quantity to minimise.
        seed: the only source of every random choice.
        stop: when to stop each strategy's search.
        progress: called with a line about each step before it starts.
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
            schedulers: the strategies, in this order; the first of equals wins.
            begin: after which no strategy is started if there is a schedule; `stop` if not given.
            executor: if given, runs all strategies in parallel; `begin` is then ignored.
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
        """Adds results in order. No flag reaches them: after an interrupt it waits for none."""
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
        """Raises KeyboardInterrupt if the search was interrupted before any schedule."""
        if self.best is None and self.stop.flag[0]:
            raise KeyboardInterrupt

    def add(self, attempt: Attempt, found: Candidate | None) -> None:
        """Records an attempt, and keeps its schedule if it is the best."""
        self.attempts.append(attempt)
        if found is None:
            return
        self.objective.learn(found)
        if self.best is None or found.value < self.best.value:
            self.best = found

    def solution(self) -> Solution:
        """The best schedule found, as a solution.

        Raises:
            NoScheduleError: if no strategy found a schedule, with the reason of each.
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
        return Solution(
            schedule,
            bound,
            scheduler,
            attempts,
            wall_s,
            timing,
            stopped=stopped,
            objective="rounds" if timing is None else "seconds",
        )


def _tried(
    objective: Objective, scheduler: Scheduler, seed: int, stop: Stop, best: Candidate | None
) -> tuple[Attempt, Candidate | None]:
    """Tries one strategy: the attempt, and its best schedule over all variants."""
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
    """`_tried` in another process, whose clock differs."""
    return _tried(objective, scheduler, seed, Stop.after(seconds), None)
