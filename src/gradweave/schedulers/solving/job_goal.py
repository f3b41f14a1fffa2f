"""How plans of jobs are judged: their objective on a runtime, and the lower bound on it."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradweave.bounds.demands.demand_bound import demand_bound
from gradweave.bounds.demands.demand_lengths import DemandLengths
from gradweave.bounds.demands.job_objectives import Machine, ObjectiveBound, objective_bound
from gradweave.bounds.seconds_bound import SecondsBound
from gradweave.common.stop import Stop
from gradweave.errors import NoScheduleError
from gradweave.schedulers.improving.improve import improved, sums_at_roots
from gradweave.schedulers.ordering.in_order import WAYS, InOrder, Order
from gradweave.schedulers.ordering.job_orders import job_orders, neighbours, suited_order
from gradweave.schedulers.packing.joint import Joint
from gradweave.schedulers.scheduler import NEAR_BOUND, Strategy
from gradweave.schedulers.solving.solution import Attempt, Solution
from gradweave.schedulers.solving.strategy_search import Candidate, Goal, Search
from gradweave.schedulers.solving.tuning import TUNING
from gradweave.schedules.demand import Demand
from gradweave.schedules.objective import objective_of
from gradweave.schedules.schedule import Provenance, Schedule
from gradweave.simulator.runtime import IDEAL, Runtime
from gradweave.topology.topology import Topology
from gradweave.verifier import verify

HOPELESS = 2.0
"""Multiple of the lower bound: a first plan whose bytes alone would take longer is not built."""
ORDERING = 0.2
"""Share of a strategy's time for trying other orders of its plan's jobs. For objectives other than
the makespan, where the order matters most, it is a share of all the time left."""
SETS = 8
"""Most sets of jobs whose bounds provide link lengths: the k jobs shortest for their weight."""
ALONE = 0.2
"""Share of the time spent on lower bounds for each job by itself."""
MAX_ORDERS = 100
"""Most job orders tried for one plan."""
MAX_PLAYED = 400_000
"""Most transfers simulated for them; five orders are tried in any case."""
ROUNDING = 1e-9
"""Relative improvement below which an order does not count as better."""


class _Tried(NamedTuple):
    """An order of a plan's jobs."""

    value: float
    """Objective value."""
    order: Order
    place: tuple[int, ...]


class JobGoal(Goal):
    """An objective of a demand's jobs on a runtime, and the bounds on it so far.

    Args:
        topology: the network as it is.
        demand: its jobs.
        name: the objective's name.
        runtime: the runtime that will run the plans. Strategies are given the network as the
            runtime presents it; plans are timed, and returned, on the network itself.
        stop: when to stop the whole search.
        hopeless: multiple of the lower bound that limits the first plan.
    """

    def __init__(
        self,
        topology: Topology,
        demand: Demand,
        name: str,
        runtime: Runtime,
        stop: Stop,
        hopeless: float = HOPELESS,
    ) -> None:
        self.runtime, self.network, self.demand = runtime, topology, demand
        self.topology = topology if runtime is IDEAL else runtime.planned(topology)
        self.name = f"{demand.name} on {topology.name!r}"
        self._stop, self._hopeless = stop, hopeless
        self._least_network, start_s = runtime.least(topology)
        self._least_demand = dataclasses.replace(demand, ready_at_s=demand.ready_at_s + start_s)
        self.bound = demand_bound(self._least_network, self._least_demand)
        self.objective = objective_of(name, demand)
        self.of_objective: ObjectiveBound | None = None
        if name != "makespan":
            self._alone = self._jobs_alone(stop.part(ALONE))
            alone_s = np.array([one.seconds for one in self._alone], np.float64)
            alone_s = alone_s - np.asarray(demand.ready_at_s, np.float64)
            self.objective = objective_of(name, demand, alone_s=alone_s)
            self._lengths: dict[bytes, DemandLengths] = {}
            for one in (self.bound, *self._alone, *self._of_sets(alone_s)):
                self._add(one.lengths)
            self._prove()

    @property
    def least(self) -> float:
        """The strongest proved lower bound on the objective."""
        return self.bound.seconds if self.of_objective is None else self.of_objective.value

    @property
    def target(self) -> float:
        """Slightly above the lower bound."""
        return self.least * (1 + NEAR_BOUND)

    def so_far(self, best: Candidate) -> str:
        """The distance of the best plan from the bound, for progress lines."""
        return f"; {best.value / self.least - 1:.1%} above the bound"

    def part(self, stop: Stop, remaining: Sequence[Strategy], best: Candidate | None) -> Stop:
        """The first strategy's share of the time, and the seconds that it must beat.

        For the makespan, strategies share by `time_share`. For other objectives the first takes
        half, since they are then sorted by how well they suit the objective.
        """
        if self.objective.name == "makespan":
            share = remaining[0].time_share / sum(one.time_share for one in remaining)
        else:
            share = 0.5 if len(remaining) > 1 else 1.0
        part = stop.part(share)
        if self.objective.name != "makespan" or self.runtime is not IDEAL:
            return part  # values are no seconds in the event model, of which strategies know
        below = self._hopeless * self.least if best is None else best.value
        return dataclasses.replace(part, below=below)

    def candidates(
        self, scheduler: Strategy, seed: int, stop: Stop, best: Candidate | None
    ) -> Iterator[Candidate]:
        """The strategy's plan, with its jobs in the best order found."""
        several, makespan = len(self.demand.jobs) > 1, self.objective.name == "makespan"
        making = stop.part(1 - ORDERING) if several and makespan else stop
        schedule, proved = scheduler.bounded(self.topology, self.demand, making, seed=seed)
        if proved is not None:
            self.proved(proved)
        plan = self.judged(schedule, scheduler)
        if several and plan.value > self.target:
            until = stop if makespan else self._stop.part(ORDERING)
            plan = self.in_best_order(plan, until, math.inf if best is None else best.value)
        yield plan

    def improvable(self, found: Candidate) -> bool:
        """Whether the plan's end is what counts, which is all that `improved` shortens."""
        return self.objective.name == "makespan" and sums_at_roots(found.schedule)

    def improvements(
        self, start: Candidate, seed: int, stop: Stop, turns: int | None
    ) -> Iterator[Candidate]:
        """The same transfers in other orders and sizes, verified."""
        schedule = start.schedule
        if self.runtime is not IDEAL:
            schedule = schedule.replace(topology=self.topology)
        for made in improved(schedule, None, seed=seed, stop=stop, turns=turns):
            if verify(made, forwarding_servers=True).valid:
                yield dataclasses.replace(self.judged(made, start.scheduler), improved=True)

    def attempt(self, found: Candidate, wall_s: float) -> Attempt:
        """The outcome of the strategy that found this plan."""
        return Attempt(
            found.scheduler,
            found.schedule.rounds,
            wall_s,
            value=found.value,
            seconds=float(found.job_seconds.max()),
            improved=found.improved,
        )

    def solution(self, best: Candidate, seed: int) -> Solution:
        """The best plan, with its bounds."""
        name, runtime = self.objective.name, self.runtime
        options = best.scheduler.options()
        options |= {"objective": "seconds" if name == "makespan" else name}
        options |= {"runtime": runtime.name} if runtime is not IDEAL else {}
        options |= {"job_order": list(best.place)} if best.place else {}
        options |= {"improved": True} if best.improved else {}
        by = Provenance(best.scheduler.name, options, seed)
        return Solution(
            best.schedule.replace(scheduler=by),
            best.scheduler,
            name,
            judge=self.objective,
            job_seconds=best.job_seconds,
            makespan_bound=self.bound,
            of_objective=self.of_objective,
        )

    def proved(self, bound: SecondsBound) -> None:
        """Takes over a bound that a strategy has proved for the network it was given."""
        found = [bound.lengths, *bound.besides]
        if self.runtime is not IDEAL:
            lengths = bound.lengths.length.astype(np.float64)
            bound = demand_bound(self._least_network, self._least_demand, lengths=lengths)
        if bound.seconds > self.bound.seconds:
            self.bound = bound
        if self.of_objective is not None:
            for one in found:
                self._add(one)
            self._prove()

    def ordered(self) -> Joint | None:
        """A program whose order of jobs suits the objective; None for the makespan or one job."""
        if self.of_objective is None or len(self.demand.jobs) == 1:
            return None
        machines = map(Machine, self._lengths.values())
        takes = np.array([[float(one) for one in each.takes] for each in machines])
        order = suited_order(self.objective, takes, self.least)
        fair = self.objective.name == "fair"
        weight = 1 / self.objective.scale_s if fair else self.objective.weight
        return Joint(order=order, weight=tuple(weight.tolist()))

    def judged(self, schedule: Schedule, scheduler: Strategy) -> Candidate:
        """A schedule with its objective value on the runtime.

        Args:
            schedule: a schedule on the network that strategies are given.
            scheduler: the strategy that made it.
        """
        if self.runtime is not IDEAL:
            schedule = schedule.replace(topology=self.network)
        ends_s = self.runtime.job_seconds(schedule)
        value = self.objective.value(ends_s)
        return Candidate(schedule, scheduler, value, schedule, job_seconds=ends_s)

    def in_best_order(self, plan: Candidate, stop: Stop, below: float = np.inf) -> Candidate:
        """The plan with its jobs in the best order found, or unchanged if no order is better.

        Args:
            plan: the plan of a strategy.
            stop: after which no further order is tried.
            below: a value to beat; if no order of this plan's jobs can be below it, none is tried.
        """
        schedule = plan.schedule
        if self.runtime is not IDEAL:
            schedule = schedule.replace(topology=self.topology)
        load_s = self._loads(schedule)
        if self._least_in_any_order(load_s) >= min(below, plan.value):
            return plan
        try:
            transfers = InOrder(schedule)
        except NoScheduleError:
            return plan
        ready_s = np.asarray(self.demand.ready_at_s, np.float64)
        orders = job_orders(self.objective, load_s, transfers.alone_s, ready_s, self.least)
        best = self._best_order(transfers, orders, stop)
        made = transfers.made(best.order)
        found = dataclasses.replace(self.judged(made, plan.scheduler), place=best.place)
        if found.value >= plan.value:
            return plan
        verify(made, forwarding_servers=True).raise_if_invalid()
        return found

    def _best_order(
        self, transfers: InOrder, orders: Iterator[tuple[int, ...]], until: Stop
    ) -> _Tried:
        """The best of some orders and, from there, of their neighbours, by local search.

        Args:
            transfers: the transfers of a plan.
            orders: the orders to start with, at least one.
            until: when to stop.
        """
        known: set[tuple[int, ...]] = set()
        most = min(MAX_ORDERS, max(5, MAX_PLAYED // max(transfers.schedule.num_transfers, 1)))
        best: _Tried | None = None
        while True:
            before = best
            for place in orders:
                if best is not None and (until.reached() or len(known) >= most):
                    return best
                if place not in known:
                    known.add(place)
                    tried = self._tried(transfers, place)
                    if best is None or tried.value < best.value * (1 - ROUNDING):
                        best = tried
            assert best is not None
            if best is before:
                return best
            orders = neighbours(best.place)

    def _tried(self, transfers: InOrder, place: tuple[int, ...]) -> _Tried:
        """An order, kept by links in the best of the known ways."""
        ways = WAYS if len(set(place)) > 1 else WAYS[:1]
        found = [transfers.order(np.array(place), way) for way in ways]
        values = [self.objective.value(one.job_seconds) for one in found]
        best = int(np.argmin(values))
        return _Tried(values[best], found[best], place)

    def _least_in_any_order(self, load_s: NDArray[np.float64]) -> float:
        """A lower bound over all orders of jobs with these link loads."""
        least = self.objective.value(self.demand.ready_at_s + load_s.max(axis=0))
        together = float(load_s.sum(axis=1).max())
        return max(least, together) if self.objective.name == "makespan" else least

    def _loads(self, schedule: Schedule) -> NDArray[np.float64]:
        """[L, jobs] seconds for which each link direction carries each job."""
        block, bandwidth = schedule.block, schedule.topology.bandwidth_bytes_per_s
        assert block is not None
        links, transfer = schedule.route_links
        job = self.demand.job[block[schedule.piece]][transfer]
        size = (schedule.share * self.demand.total_bytes)[schedule.piece][transfer]
        jobs = len(self.demand.jobs)
        cells = links.astype(np.int64) * jobs + job
        load = np.bincount(cells, size, len(bandwidth) * jobs).reshape(len(bandwidth), jobs)
        return load / bandwidth[:, None]

    def _jobs_alone(self, stop: Stop) -> list[SecondsBound]:
        """[jobs] a lower bound for each by itself."""
        found: list[SecondsBound] = []
        jobs = len(self.demand.jobs)
        for job in range(jobs):
            alone, part = self._least_demand.of_job(job), stop.part(1 / (jobs - job))
            try:
                found.append(Joint().plan(self._least_network, alone, part).bound)
            except NoScheduleError:
                found.append(demand_bound(self._least_network, alone))
        return found

    def _of_sets(self, alone_s: NDArray[np.float64]) -> Iterator[SecondsBound]:
        """Bounds for growing sets of jobs, the shortest for their weight first."""
        order = np.argsort(alone_s / self.objective.weight, kind="stable")
        counts = np.unique(np.linspace(2, len(order), SETS).astype(np.int64))
        for count in counts[counts < len(order)].tolist():
            some = np.sort(order[:count]).tolist()
            yield demand_bound(self._least_network, self._least_demand.of_jobs(some))

    def _add(self, lengths: DemandLengths) -> None:
        length = lengths.length
        if length.tobytes() not in self._lengths:
            made = DemandLengths(self._least_network, self._least_demand, length)
            self._lengths[length.tobytes()] = made

    def _prove(self) -> None:
        found = objective_bound(self.objective, self._alone, list(self._lengths.values()))
        if self.of_objective is None or found.exact > self.of_objective.exact:
            self.of_objective = found


def solve_for_jobs(
    goal: JobGoal,
    strategies: Sequence[Strategy],
    seed: int,
    stop: Stop,
    progress: Callable[[str], None] = lambda _: None,
) -> Solution:
    """Searches the given strategies for the best plan of jobs.

    Raises:
        NoScheduleError: if no strategy found a schedule.
    """
    improves = goal.objective.name == "makespan"
    search = Search(goal, seed, stop.part(1 - TUNING.improving) if improves else stop, progress)
    search.try_each(strategies)
    search.improve(stop)
    return search.solution()
