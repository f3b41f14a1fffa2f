"""The schedule of the fewest rounds that the strategies at hand find."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor

from gradweave.bounds import Bound, Exhausted
from gradweave.errors import OptionError
from gradweave.schedule.schedule import Collective, Schedule, StatedBound
from gradweave.schedulers.scheduler import Scheduler
from gradweave.schedulers.solve.order import in_order
from gradweave.schedulers.solve.solution import Attempt, Solution, bound_for, kept_certificates
from gradweave.schedulers.solve.strategy_search import Candidate, Objective, Search
from gradweave.schedulers.solve.tuning import TUNING
from gradweave.stop import Stop
from gradweave.topology.topology import Topology
from gradweave.wording import counted


def solve_for_rounds(
    topology: Topology,
    *,
    collective: Collective,
    schedulers: Sequence[Scheduler],
    seed: int,
    stop: Stop,
    progress: Callable[[str], None],
    executor: Executor | None = None,
) -> Solution:
    """Does what `gradweave.solve` says for ``objective="rounds"``.

    Raises:
        OptionError: for strategies whose pieces differ in size.
        NoScheduleError: where no strategy found a schedule.
    """
    if len({_pieces_in_all(scheduler, topology) for scheduler in schedulers}) > 1:
        raise OptionError(
            "solve: the strategies cut the gradient into different numbers of pieces, so that "
            "their rounds do not compare; use objective=seconds"
        )
    begin = stop.sooner(min(TUNING.start_s, stop.seconds_left / 2))
    objective = Rounds(topology, collective, schedulers)
    search = Search(objective, seed, stop, progress)
    progress("finding the lower bound")
    objective.find_bound()
    ordered = in_order(schedulers, topology, collective, objective.bound)
    search.try_each(ordered, begin, executor)
    return search.solution()


class Rounds(Objective):
    """Few rounds: a strategy's one schedule as it is, up to the bound of all that are tried.

    Args:
        topology: the network.
        collective: a stage, or both.
        schedulers: all that are tried.
    """

    bound: Bound

    def __init__(
        self, topology: Topology, collective: Collective, schedulers: Sequence[Scheduler]
    ) -> None:
        self.topology, self.collective, self._schedulers = topology, collective, schedulers

    def find_bound(self) -> None:
        """Finds the bound that holds for all of the strategies."""
        self.bound = bound_for(self.topology, self.collective, self._schedulers)

    @property
    def target(self) -> float:
        """The bound's rounds."""
        return self.bound.rounds

    def schedules(
        self, scheduler: Scheduler, seed: int, stop: Stop, known: Schedule | None
    ) -> Iterator[tuple[Schedule, Scheduler]]:
        """The strategy's one."""
        made = scheduler.schedule_until(
            self.topology, stop, self.collective, seed=seed, known=known
        )
        yield made, scheduler

    def variants(
        self, schedule: Schedule, scheduler: Scheduler, stop: Stop, best: float
    ) -> Iterator[Candidate]:
        """The schedule alone."""
        yield Candidate(schedule, scheduler, schedule.rounds, schedule)

    def attempt(self, found: Candidate, wall_s: float) -> Attempt:
        """The outcome of a strategy, of which this is the schedule."""
        return Attempt(found.scheduler, found.schedule.rounds, wall_s)

    def so_far(self, best: Candidate | None) -> str:
        """The best and the bound, for whoever waits."""
        if best is None:
            return ""
        return f"; {counted(best.schedule.rounds, 'round')} so far, bound {self.bound.rounds}"

    def learn(self, found: Candidate) -> None:
        """Takes the bound of an exhaustive search, where all strategies are bound by it."""
        proved = found.schedule.bound
        if proved is None or proved.kind != "exact" or proved.rounds <= self.bound.rounds:
            return
        if not any(one.traits.freer_than_exact for one in self._schedulers):
            certificate = Exhausted("CP-SAT", self.collective, proved.rounds)
            self.bound = Bound(proved.rounds, "exact", (certificate,))

    def finished(self, best: Candidate, seed: int) -> tuple[Schedule, Bound, None]:
        """The best schedule, which states the bound where its rounds compare with it."""
        compare = best.scheduler.traits.rounds_compare
        stated = StatedBound(self.bound.rounds, self.bound.kind, True) if compare else None
        pieces = min(one.traits.pieces_per_server for one in self._schedulers)
        kept = kept_certificates(self.bound, best.schedule, pieces) if compare else ()
        return best.schedule.replace(bound=stated, certificates=kept), self.bound, None


def _pieces_in_all(scheduler: Scheduler, topology: Topology) -> int:
    traits = scheduler.traits
    if traits.own_pieces:
        return 0
    return 1 if traits.one_root else traits.pieces_per_server * topology.num_servers
