"""Searches the given strategies for the schedule with the fewest rounds."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor

from gradweave.bounds import Bound, Exhausted
from gradweave.common.stop import Stop
from gradweave.common.wording import counted
from gradweave.errors import OptionError
from gradweave.schedulers.scheduler import Strategy
from gradweave.schedulers.solving.portfolio import in_order
from gradweave.schedulers.solving.solution import Attempt, Solution, bound_for, kept_certificates
from gradweave.schedulers.solving.strategy_search import Candidate, Goal, Search
from gradweave.schedulers.solving.tuning import TUNING
from gradweave.schedules.schedule import Collective, StatedBound
from gradweave.topology.topology import Topology


def solve_for_rounds(
    topology: Topology,
    *,
    collective: Collective,
    schedulers: Sequence[Strategy],
    seed: int,
    stop: Stop,
    progress: Callable[[str], None],
    executor: Executor | None = None,
) -> Solution:
    """Implements `gradweave.solve` for ``objective="rounds"``.

    Raises:
        OptionError: if the strategies' pieces differ in size.
        NoScheduleError: if no strategy found a schedule.
    """
    if len({_pieces_in_all(scheduler, topology) for scheduler in schedulers}) > 1:
        raise OptionError(
            "solve: the strategies cut the gradient into different numbers of pieces, so that "
            "their rounds do not compare; use objective=seconds"
        )
    begin = stop.sooner(min(TUNING.start_s, stop.seconds_left / 2))
    goal = Rounds(topology, collective, schedulers)
    search = Search(goal, seed, stop, progress)
    progress("finding the lower bound")
    goal.find_bound()
    ordered = in_order(schedulers, topology, collective, goal.bound)
    search.try_each(ordered, begin, executor)
    return search.solution()


class Rounds(Goal):
    """Minimises rounds: each strategy gives one schedule; the bound holds for all strategies.

    Args:
        topology: the network.
        collective: a stage, or both.
        schedulers: all strategies that will be tried.
    """

    collective: Collective
    bound: Bound

    def __init__(
        self, topology: Topology, collective: Collective, schedulers: Sequence[Strategy]
    ) -> None:
        self.topology, self.collective, self._schedulers = topology, collective, schedulers
        self.name = repr(topology.name)

    def find_bound(self) -> None:
        """Computes the bound that holds for all of the strategies."""
        self.bound = bound_for(self.topology, self.collective, self._schedulers)

    @property
    def target(self) -> float:
        """The bound's rounds."""
        return self.bound.rounds

    def candidates(
        self, scheduler: Strategy, seed: int, stop: Stop, best: Candidate | None
    ) -> Iterator[Candidate]:
        """The strategy's single schedule."""
        known = None if best is None else best.schedule
        made = scheduler.schedule_until(
            self.topology, self.collective, stop, seed=seed, known=known
        )
        yield Candidate(made, scheduler, made.rounds, made)

    def attempt(self, found: Candidate, wall_s: float) -> Attempt:
        """The outcome of the strategy that found this schedule."""
        return Attempt(found.scheduler, found.schedule.rounds, wall_s, value=found.value)

    def so_far(self, best: Candidate) -> str:
        """The best rounds so far and the bound, for progress lines."""
        return f"; {counted(best.schedule.rounds, 'round')} so far, bound {self.bound.rounds}"

    def learn(self, found: Candidate) -> None:
        """Takes over the bound of an exhaustive search if it holds for all strategies."""
        proved = found.schedule.bound
        if proved is None or proved.kind != "exact" or proved.rounds <= self.bound.rounds:
            return
        if not any(one.traits.freer_than_exact for one in self._schedulers):
            certificate = Exhausted("CP-SAT", self.collective, proved.rounds)
            pieces = self.bound.pieces_per_server
            exact = Bound(proved.rounds, "exact", (certificate,))
            self.bound = exact.on(self.topology, pieces)

    def solution(self, best: Candidate, seed: int) -> Solution:
        """The best schedule, which states the bound if its rounds are comparable with it."""
        compare = best.scheduler.traits.rounds_compare
        bound = self.bound
        stated = StatedBound(bound.rounds, bound.kind, True, bound.holds_for) if compare else None
        pieces = min(one.traits.pieces_per_server for one in self._schedulers)
        kept = kept_certificates(self.bound, best.schedule, pieces) if compare else ()
        schedule = best.schedule.replace(bound=stated, certificates=kept)
        return Solution(schedule, best.scheduler, "rounds", rounds_bound=self.bound)


def _pieces_in_all(scheduler: Strategy, topology: Topology) -> int:
    traits = scheduler.traits
    if traits.own_pieces:
        return 0
    return 1 if traits.one_root else traits.pieces_per_server * topology.num_servers
