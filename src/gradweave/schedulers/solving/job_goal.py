"""How plans of jobs are judged: their objective on a runtime, and the lower bound on it."""

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradweave.bounds.demands.demand_bound import DemandLengths, demand_bound
from gradweave.bounds.demands.job_objectives import Machine, ObjectiveBound, objective_bound
from gradweave.bounds.seconds_bound import SecondsBound
from gradweave.errors import NoScheduleError
from gradweave.schedulers.ordering.in_order import WAYS, InOrder, Order
from gradweave.schedulers.ordering.job_orders import job_orders, neighbours, suited_order
from gradweave.schedulers.packing.joint import Joint
from gradweave.schedulers.scheduler import NEAR_BOUND
from gradweave.schedules.demand import Demand
from gradweave.schedules.objective import objective_of
from gradweave.schedules.schedule import Schedule
from gradweave.simulator.runtime import IDEAL, Runtime
from gradweave.stop import Stop
from gradweave.topology.topology import Topology
from gradweave.verifier import verify

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


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
    """A schedule and its objective value."""

    schedule: Schedule
    job_seconds: NDArray[np.float64]
    """[jobs] when each job ends on the runtime."""
    value: float
    """Objective value."""
    place: tuple[int, ...] = ()
    """[jobs] position of each in the order that links keep; empty for the strategy's order."""


class _Tried(NamedTuple):
    """An order of a plan's jobs."""

    value: float
    """Objective value."""
    order: Order
    place: tuple[int, ...]


class JobGoal:
    """An objective of a demand's jobs on a runtime, and the bounds on it so far.

    Args:
        topology: the network as it is.
        demand: its jobs.
        name: the objective's name.
        runtime: the runtime that will run the plans.
        stop: when to stop searching for a lower bound on each job by itself.
    """

    def __init__(
        self, topology: Topology, demand: Demand, name: str, runtime: Runtime, stop: Stop
    ) -> None:
        self.runtime, self._topology, self.demand = runtime, topology, demand
        self.network = topology if runtime is IDEAL else runtime.planned(topology)
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
    def in_event_time(self) -> bool:
        """Whether values are seconds in the event model, where links are busy while bytes cross."""
        return self.objective.name == "makespan" and self.runtime is IDEAL

    def proved(self, bound: SecondsBound) -> None:
        """Takes over a bound that a strategy has proved for the network it was given."""
        found = [bound.lengths, *bound.besides]
        if self.network is not self._topology:
            lengths = bound.lengths.length.astype(np.float64)
            bound = demand_bound(self._least_network, self._least_demand, lengths=lengths)
        if bound.seconds > self.bound.seconds:
            self.bound = bound
        if self.of_objective is not None:
            for one in found:
                self._add(one)
            self._prove()

    def order(self) -> tuple[int, ...]:
        """[jobs] position of each in an order that suits the objective, independent of any plan."""
        assert self.of_objective is not None
        machines = map(Machine, self._lengths.values())
        takes = np.array([[float(one) for one in each.takes] for each in machines])
        return suited_order(self.objective, takes, self.least)

    def judged(self, schedule: Schedule) -> Plan:
        """A schedule with its objective value on the runtime.

        Args:
            schedule: a schedule on the network that strategies are given.
        """
        if self.network is not self._topology:
            schedule = schedule.replace(topology=self._topology)
        ends_s = self.runtime.job_seconds(schedule)
        return Plan(schedule, ends_s, self.objective.value(ends_s))

    def met_by(self, plan: Plan) -> bool:
        """Whether a plan is so close to the bound that further search is not worth it."""
        return plan.value <= self.least * (1 + NEAR_BOUND)

    def options(self, plan: Plan) -> dict[str, Any]:
        """The options that a plan's file records: objective, runtime and job order."""
        name, runtime = self.objective.name, self.runtime
        said: dict[str, Any] = {"objective": "seconds" if name == "makespan" else name}
        said |= {"runtime": runtime.name} if runtime is not IDEAL else {}
        return said | ({"job_order": list(plan.place)} if plan.place else {})

    def in_best_order(self, plan: Plan, stop: Stop, below: float = np.inf) -> Plan:
        """The plan with its jobs in the best order found, or unchanged if no order is better.

        Args:
            plan: the plan of a strategy.
            stop: after which no further order is tried.
            below: a value to beat; if no order of this plan's jobs can be below it, none is tried.
        """
        schedule = plan.schedule
        if self.network is not self._topology:
            schedule = schedule.replace(topology=self.network)
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
        verify(made, forwarding_servers=True).raise_if_invalid()
        found = dataclasses.replace(self.judged(made), place=best.place)
        return found if found.value < plan.value else plan

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
