"""The search over strategies: a goal says what to minimise, a stop when to end."""

import abc
import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, wait
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradweave.common import clock
from gradweave.common.stop import POLL_S, Stop
from gradweave.errors import NoScheduleError
from gradweave.schedulers.scheduler import SEARCHING, Scheduler, Strategy, to_spec
from gradweave.schedulers.solving.solution import Attempt, Solution, Stopped
from gradweave.schedulers.solving.tuning import TUNING
from gradweave.schedules.schedule import Schedule


class Portfolio(NamedTuple):
    """The strategies to try for a problem, each list in its order."""

    usual: Sequence[Strategy]
    by_groups: Sequence[Strategy] = ()
    """Those tried first on a network of groups; if one ends near the bound, the only ones."""
    last_resort: Sequence[Strategy] = ()
    """Those tried while the best schedule leaves bandwidth unused."""


@dataclasses.dataclass(frozen=True, eq=False)
class Candidate:
    """A schedule, and how it was made."""

    schedule: Schedule
    scheduler: Strategy
    value: float
    """The objective's value, which is minimised."""
    base: Schedule
    """The schedule before it was cut into parts."""
    parts: int = 1
    overlapped: bool = False
    changed: bool = False
    """Whether the schedule was changed after its strategy verified it."""
    improved: bool = False
    """Whether order and pieces are no longer the strategy's (`gradweave.schedulers.improving`)."""
    job_seconds: NDArray[np.float64] = dataclasses.field(default_factory=lambda: np.empty(0))
    """[jobs] when each job ends on the runtime."""
    place: tuple[int, ...] = ()
    """[jobs] position of each in the order that links keep; empty for the strategy's order."""


class Goal(abc.ABC):
    """The quantity to minimise, and which schedules of a strategy to try for it."""

    name: str
    """The collective or jobs, and the network, for error messages."""

    @property
    @abc.abstractmethod
    def target(self) -> float:
        """The value at which the search stops: a lower bound, or slightly above it."""

    @abc.abstractmethod
    def candidates(
        self, scheduler: Strategy, seed: int, stop: Stop, best: Candidate | None
    ) -> Iterator[Candidate]:
        """A strategy's schedules and their variants, each with its value.

        Args:
            scheduler: the strategy.
            seed: the seed of every random choice.
            stop: when to stop its search.
            best: the best schedule of other strategies so far; variants that cannot come near it
                are skipped.

        Raises:
            NoScheduleError: if the strategy finds no schedule, or no more.
        """

    @abc.abstractmethod
    def attempt(self, found: Candidate, wall_s: float) -> Attempt:
        """The outcome of the strategy whose best schedule this is."""

    @abc.abstractmethod
    def so_far(self, best: Candidate) -> str:
        """The best value so far and the bound, for progress lines."""

    @abc.abstractmethod
    def solution(self, best: Candidate, seed: int) -> Solution:
        """The best schedule as it is returned, with its bounds."""

    def improvable(self, found: Candidate) -> bool:
        """Whether `improvements` applies to a schedule."""
        return False

    def improvements(
        self, start: Candidate, seed: int, stop: Stop, turns: int | None
    ) -> Iterator[Candidate]:
        """Versions of a schedule with other orders and sizes; by default none.

        Args:
            start: the schedule.
            seed: the seed of every random choice.
            stop: when to end.
            turns: most turns, as `gradweave.schedulers.improving.improve.improved` takes them.
        """
        return iter(())

    def part(self, stop: Stop, remaining: Sequence[Strategy], best: Candidate | None) -> Stop:
        """The stop for the first of the remaining strategies: by default, all the time left."""
        return dataclasses.replace(stop, dispensable=best is not None)

    def learn(self, found: Candidate) -> None:  # noqa: B027 - most learn nothing
        """Raises the target if a strategy has proved a stronger bound."""


class Search:
    """The strategies tried so far, and the best schedule found.

    Args:
        goal: the quantity to minimise.
        seed: the only source of every random choice.
        stop: when to stop each strategy's search.
        progress: called with a line about each step before it starts.
    """

    def __init__(self, goal: Goal, seed: int, stop: Stop, progress: Callable[[str], None]) -> None:
        self.goal, self.seed, self.stop = goal, seed, stop
        self.best: Candidate | None = None
        self._candidates: list[Candidate] = []
        self.attempts: list[Attempt] = []
        self._progress, self._begun = progress, clock.now()
        self._used_up, self._cut_short = stop.part(SEARCHING), False

    def try_each(
        self,
        schedulers: Sequence[Strategy],
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
        for number, scheduler in enumerate(schedulers):
            content = (begin or self.stop).at(self.goal.target)
            if self.best is not None and (why := content.reached(self.best.value)):
                self._cut_short = why == "time"
                break
            self._say(scheduler)
            part = self.goal.part(self.stop, schedulers[number:], self.best)
            self.add(*_tried(self.goal, scheduler, self.seed, part, self.best))
            self._check_interrupted()

    def _try_side_by_side(self, schedulers: Sequence[Strategy], executor: Executor) -> None:
        """Adds results in order. No flag reaches them: after an interrupt it waits for none."""
        running = [
            executor.submit(_elsewhere, self.goal, one, self.seed, self.stop.seconds_left)
            for one in schedulers
        ]
        for scheduler, one in zip(schedulers, running, strict=True):
            if self.best is not None and self.best.value <= self.goal.target:
                break
            self._say(scheduler)
            while not (one.done() or self.stop.flag[0]):
                wait([one], POLL_S)
            if one.done():
                self.add(*one.result())
        for one in running:
            one.cancel()
        self._check_interrupted()

    def _say(self, scheduler: Strategy) -> None:
        name = to_spec(scheduler) if isinstance(scheduler, Scheduler) else scheduler.name
        so_far = "" if self.best is None else self.goal.so_far(self.best)
        self._progress(f"trying {name}{so_far}")

    def _check_interrupted(self) -> None:
        """Raises KeyboardInterrupt if the search was interrupted before any schedule."""
        if self.best is None and self.stop.flag[0]:
            raise KeyboardInterrupt

    def add(self, attempt: Attempt, found: Candidate | None) -> None:
        """Records an attempt, and keeps its schedule if it is the best."""
        self.attempts.append(attempt)
        if found is None:
            return
        self.goal.learn(found)
        self._candidates.append(found)
        if self.best is None or found.value < self.best.value:
            self.best = found

    def improve(self, stop: Stop) -> None:
        """Improves some of the best schedules a little, and the best of these until time is up.

        The search ends near the bound. Without a time limit, only the best schedule is improved,
        for as many turns.

        Args:
            stop: when to end.
        """
        if self.best is None:
            return
        self._progress(f"improving order, sizes and number of pieces{self.goal.so_far(self.best)}")
        near = stop.at(self.goal.target * (1 + TUNING.improved_near))
        # By value: of schedules that take equally long, which are mostly the same, one is enough.
        starts = {
            one.value: one
            for one in sorted(self._candidates, key=lambda one: one.value)
            if one.value <= TUNING.improvable * self.best.value
            and one.schedule.num_transfers <= TUNING.max_improved_transfers
            and self.goal.improvable(one)
        }
        limited, reached = math.isfinite(near.deadline), []
        for start in list(starts.values())[: TUNING.improved_starts if limited else 1]:
            if near.reached(self.best.value):
                return
            part = near.part(TUNING.start_share)
            reached.append(self._improved(start, part, TUNING.start_turns))
        if limited and reached and not near.reached(self.best.value):
            self._improved(min(reached, key=lambda one: one.value), near, None)

    def _improved(self, start: Candidate, stop: Stop, turns: int | None) -> Candidate:
        """The best version of a schedule, which becomes an attempt."""
        begun, best = clock.now(), start
        for found in self.goal.improvements(start, self.seed, stop, turns):
            best = min(best, found, key=lambda one: one.value)
        if best is not start:
            self.add(self.goal.attempt(best, clock.now() - begun), best)
        return best

    def solution(self) -> Solution:
        """The best schedule found, as a solution.

        Raises:
            NoScheduleError: if no strategy found a schedule, with the reason of each.
        """
        if self.best is None:
            reasons = "; ".join(f"{one.scheduler.name}: {one.reason}" for one in self.attempts)
            raise NoScheduleError(f"no schedule for {self.goal.name}: {reasons}")
        out_of_time = self._cut_short or self._used_up.reached()
        met = self.best.value <= self.goal.target
        stopped: Stopped = "bound" if met else "time" if out_of_time else "tried"
        if self.stop.flag[0] and not met:
            stopped = "interrupt"
        found = self.goal.solution(self.best, self.seed)
        wall_s, attempts = clock.now() - self._begun, tuple(self.attempts)
        return dataclasses.replace(found, attempts=attempts, wall_s=wall_s, stopped=stopped)


def _tried(
    goal: Goal, scheduler: Strategy, seed: int, stop: Stop, best: Candidate | None
) -> tuple[Attempt, Candidate | None]:
    """Tries one strategy: the attempt, and its best schedule over all variants."""
    began, found, reason = clock.now(), None, ""
    try:
        for candidate in goal.candidates(scheduler, seed, stop, best):
            if found is None or candidate.value < found.value:
                found = candidate
    except NoScheduleError as error:
        reason = str(error).removeprefix(f"{scheduler.name}: ")
    except KeyboardInterrupt:  # of a search inside the strategy; `best` is then the answer
        if best is None or not stop.flag[0]:
            raise
        reason = "interrupted"
    wall_s = clock.now() - began
    if found is None:
        return Attempt(scheduler, None, wall_s, reason), None
    return goal.attempt(found, wall_s), found


def _elsewhere(
    goal: Goal, scheduler: Strategy, seed: int, seconds: float
) -> tuple[Attempt, Candidate | None]:
    """`_tried` in another process, whose clock differs."""
    return _tried(goal, scheduler, seed, Stop.after(seconds), None)
