"""Any demand: a verified schedule for few seconds, beside the least that any takes."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gradweave import clock
from gradweave.bounds.demands import DemandBound
from gradweave.bounds.job_objectives import ObjectiveBound
from gradweave.errors import NoScheduleError, OptionError
from gradweave.schedule.compose import at_once
from gradweave.schedule.demand import Demand
from gradweave.schedule.jobs import Job, demand_of
from gradweave.schedule.objective import JobObjective, Objective, objective_of
from gradweave.schedule.schedule import Provenance, Schedule
from gradweave.schedulers.demands.disjoint_trees import DisjointTrees
from gradweave.schedulers.demands.flows import Flows
from gradweave.schedulers.demands.joint import Joint
from gradweave.schedulers.demands.postal_tree import PostalTree
from gradweave.schedulers.demands.strategy import DemandStrategy
from gradweave.schedulers.demands.textbook import TEXTBOOK, Direct
from gradweave.schedulers.scheduler import NEAR_BOUND, Scheduler, to_spec
from gradweave.schedulers.solve.earlier_plan import EarlierPlan
from gradweave.schedulers.solve.group import Group
from gradweave.schedulers.solve.job_goal import JobGoal, Plan
from gradweave.schedulers.unequal.paths import may_leave_residual
from gradweave.simulate.runtime import IDEAL, Runtime, runtime_of
from gradweave.simulate.seconds import event_seconds
from gradweave.stop import NOBODY, Interrupt, Stop
from gradweave.topology.spec import as_topology
from gradweave.topology.subnetwork import subnetwork
from gradweave.topology.topology import Topology

HOPELESS = 2.0
"""Times the bound: a plan whose bytes alone take so long is not made first."""
ORDERING = 0.2
"""Share of a strategy's time for other orders of its plan's jobs; of all that is left, for other
objectives than the makespan, where the order counts most."""


@dataclasses.dataclass(frozen=True)
class DemandAttempt:
    """The outcome of one strategy."""

    strategy: DemandStrategy
    wall_s: float
    """Seconds that it took, without the compiling of loops that a first run does."""
    seconds: float | None = None
    """Of its schedule; None where it found none."""
    reason: str = ""
    """Why it found none."""
    value: float | None = None
    """Of the objective."""


@dataclasses.dataclass(frozen=True, eq=False)
class DemandSolution:
    """A verified schedule of a demand, how good it can be at best, and how it was found."""

    schedule: Schedule
    strategy: DemandStrategy
    """That found it."""
    seconds: float
    """Of the event model, or on a runtime, until the last job has ended."""
    job_seconds: NDArray[np.float64] = dataclasses.field(repr=False)
    """[jobs] until each has ended."""
    bound: DemandBound = dataclasses.field(repr=False)
    """On `seconds`."""
    attempts: tuple[DemandAttempt, ...] = dataclasses.field(repr=False)
    wall_s: float
    judge: Objective = dataclasses.field(default_factory=lambda: objective_of("makespan", 1))
    """What was made small, by name and as numbers."""
    value: float = math.nan
    """Of the objective: seconds, but for weights that are none and ``fair``, which has no unit."""
    of_objective: ObjectiveBound | None = dataclasses.field(default=None, repr=False)
    """On `value`; None for the makespan, for which `bound` is."""

    @property
    def least(self) -> float:
        """Which no plan's value is below."""
        return self.bound.seconds if self.of_objective is None else self.of_objective.value

    @property
    def gap(self) -> float:
        """How far the schedule may be from the best possible: value over the least, less one."""
        return self.value / self.least - 1

    @property
    def optimal(self) -> bool:
        """Whether it takes so little more than the bound that no other is worth a search."""
        return self.gap <= NEAR_BOUND


def solve_demand(
    topology: Topology | str,
    demand: Demand | Sequence[Job] | Job,
    *,
    objective: JobObjective = "makespan",
    runtime: Runtime | str | Path = "ideal",
    strategies: Sequence[DemandStrategy] | None = None,
    start_from: "Schedule | DemandSolution | str | Path | None" = None,
    seed: int = 0,
    time_limit: float | None = None,
    interrupt: Interrupt | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> DemandSolution:
    """Plans any demand for few seconds: one collective of a group, or several jobs at once.

    Links are divided by one plan for all jobs. Strategies are tried in turn, the simple ones first,
    until one is at the bound; of each one's plan of several jobs other orders are tried, too.

    Args:
        topology: the network, or its specification or file.
        demand: what is to be summed and moved, or jobs.
        objective: ``makespan``, the time until the last job ends; ``sum``, the sum of the times
            until each ends, or ``weighted``, each times the job's weight; ``fair``, the largest of
            the times from when a job is ready until it ends over its own lower bound.
        runtime: on which it is to run, a profile by name or file; see `gradweave.solve`.
        strategies: to try, in this order; what may suit the demand if not given.
        start_from: an earlier plan of the same jobs, whose sizes may have changed, on this network
            or on it before it lost links: a schedule, its file, or a solution. What still works of
            it is tried first, so that no worse plan is the answer; see `EarlierPlan`.
        seed: every random choice depends on it alone.
        time_limit: seconds after which no further strategy is begun, and searches return what they
            have. The first is finished in any case.
        interrupt: by which another thread or a signal's handler ends the search.
        progress: told what is about to be done.

    Raises:
        NoScheduleError: where no strategy found a schedule, with each one's reason.
        OptionError: a demand that the network cannot have, or a plan of others to start from.

    >>> import gradweave as gw
    >>> boxes = gw.topology.from_spec("a100:boxes=2")
    >>> does = {"tp": ("all_reduce", 10**9), "dp": ("all_reduce", 10**8)}
    >>> jobs = gw.schedule.mesh_jobs(boxes, {"dp": 2, "tp": 8}, does)
    >>> solution = solve_demand(boxes, jobs, time_limit=2)
    >>> len(solution.job_seconds), solution.seconds >= solution.bound.seconds
    (10, True)
    """
    network = as_topology(topology)
    if not isinstance(demand, Demand):
        jobs = [demand] if isinstance(demand, Job) else list(demand)
        demand = demand_of(network, jobs)
    demand.check_servers(network)
    if time_limit is not None and not time_limit > 0:
        raise OptionError(f"solve: time_limit: expected more than 0 seconds, got {time_limit:g}")
    if strategies is not None and not strategies:
        raise OptionError("solve: expected at least one strategy, got none")
    stop = Stop.after(time_limit, NOBODY if interrupt is None else interrupt.flag)
    goal = JobGoal(network, demand, objective, runtime_of(runtime), stop)
    first = () if start_from is None else (EarlierPlan.of(start_from),)
    return _solved(goal, strategies, seed, stop, progress, first)


def _solved(
    goal: JobGoal,
    strategies: Sequence[DemandStrategy] | None,
    seed: int,
    stop: Stop,
    progress: Callable[[str], None] = lambda _: None,
    first: Sequence[DemandStrategy] = (),
) -> DemandSolution:
    begun = clock.now()
    topology, demand = goal.network, goal.demand
    tried = [*first, *(_strategies(goal) if strategies is None else strategies)]
    best: tuple[Plan, DemandStrategy] | None = None
    attempts: list[DemandAttempt] = []
    several, fairly = len(demand.jobs) > 1, goal.objective.name == "makespan"
    for number, strategy in enumerate(tried):
        if best is not None and (stop.reached() or goal.met_by(best[0])):
            break
        so_far = "" if best is None else f"; {best[0].value / goal.least - 1:.1%} above the least"
        progress(f"trying {strategy.name}{so_far}")
        since = clock.now()
        part = stop.part(_share(tried[number:], fairly=fairly))
        if goal.in_event_time:
            hopeless = math.inf if strategies else HOPELESS * goal.least
            part = dataclasses.replace(part, below=best[0].value if best else hopeless)
        try:
            making = part.part(1 - ORDERING) if several and fairly else part
            schedule, proved = strategy.bounded(topology, demand, making, seed=seed)
        except NoScheduleError as error:
            reason = str(error).removeprefix(f"{strategy.name}: ")
            attempts.append(DemandAttempt(strategy, clock.now() - since, reason=reason))
            continue
        if proved is not None:
            goal.proved(proved)
        found = goal.judged(schedule)
        if several and not goal.met_by(found):
            until = part if fairly else stop.part(ORDERING)
            found = goal.in_best_order(found, until, math.inf if best is None else best[0].value)
        took, seconds = clock.now() - since, float(found.job_seconds.max())
        attempts.append(DemandAttempt(strategy, took, seconds, value=found.value))
        if best is None or found.value < best[0].value:
            best = found, strategy
    if best is None:
        reasons = "; ".join(f"{one.strategy.name}: {one.reason}" for one in attempts)
        raise NoScheduleError(f"no schedule for {demand.name} on {topology.name!r}: {reasons}")
    plan, strategy = best
    return DemandSolution(
        plan.schedule.replace(
            scheduler=Provenance(strategy.name, {**strategy.options(), **goal.options(plan)}, seed)
        ),
        strategy,
        float(plan.job_seconds.max()),
        plan.job_seconds,
        goal.bound,
        tuple(attempts),
        clock.now() - begun,
        goal.objective,
        plan.value,
        goal.of_objective,
    )


def _share(tried: Sequence[DemandStrategy], *, fairly: bool) -> float:
    """Of the time that is left, for the first of some strategies.

    Args:
        tried: this one, and those after it.
        fairly: as each needs; if not, half of it, since the first suit the objective best.
    """
    if fairly:
        return tried[0].time_share / sum(one.time_share for one in tried)
    return 0.5 if len(tried) > 1 else 1.0


def _strategies(goal: JobGoal) -> list[DemandStrategy]:
    """What suits a goal: for other objectives than the makespan, jobs in an order before others."""
    usual = strategies_for(goal.network, goal.demand)
    if goal.objective.name == "makespan" or len(goal.demand.jobs) == 1:
        return usual
    residual = max(one.residual for one in usual if isinstance(one, Joint))
    weight = 1 / goal.objective.scale_s if goal.objective.name == "fair" else goal.objective.weight
    in_order = Joint(residual, goal.order(), tuple(weight.tolist()))
    apart, others = ([one for one in usual if isinstance(one, Apart) == is_it] for is_it in (1, 0))
    return [*apart, in_order, *others]


def strategies_for(topology: Topology, demand: Demand) -> list[DemandStrategy]:
    """What may suit a demand, in the order to try it.

    Args:
        topology: the network.
        demand: what is to be summed and moved.
    """
    residual = [Joint(1.0)] if may_leave_residual(topology) else []
    joint = [*residual, Joint()]
    several = len(demand.jobs) > 1
    if demand.unicast:
        apart = [Apart()] if several else []
        return [Flows(), *apart, *joint, *(one for one in TEXTBOOK if one.unicast)]
    direct, *trees = TEXTBOOK
    if len(demand) == 1 and 1 in (*demand.contributors.sizes, *demand.destinations.sizes):
        return [PostalTree(), *residual, DisjointTrees(), Joint(), direct, *trees]
    if several:
        return [direct, Joint(), *trees, Apart(), *residual]
    chain, *trees = trees
    return [chain, Group(), *joint, direct, *trees]


@dataclasses.dataclass(frozen=True)
class Apart(DemandStrategy):
    """Each job planned as if it had the network alone, then all at once.

    Links carry first what its own plan starts first. As good as any where jobs share no links, and
    what jobs that do not know of each other come to where they do.
    """

    name: ClassVar[str] = "apart"
    forwards: ClassVar[bool] = True
    time_share: ClassVar[float] = 2.0

    scheduler: Scheduler | None = None
    """Which alone plans each group's all-reduce, all-gather or reduce-scatter; messages go straight
    then. What `solve_demand` finds for each job, if not given."""

    def options(self) -> dict[str, Any]:
        """The scheduler's specification, as it is written to a schedule's file."""
        return {"scheduler": self.scheduler and to_spec(self.scheduler)}

    def make(self, topology: Topology, demand: Demand, seed: int, stop: Stop) -> Schedule:
        """Makes the schedule; `schedule` verifies it."""
        jobs = len(demand.jobs)
        if (jobs == 1 and not self.scheduler) or (np.diff(demand.job) < 0).any():
            raise self.refused("is for several jobs, whose blocks follow each other")
        if self.scheduler and demand.unicast:
            raise self.refused(f"{self.scheduler.name} is not for messages from server to server")
        alone = [demand.of_job(job) for job in range(jobs)]
        among = [_among(topology, one) for one in alone]
        left = len({key for key, _ in among})
        first: dict[bytes, int] = {}
        found: list[Schedule] = []
        for job, (key, nodes) in enumerate(among):
            if key in first:
                again = _moved(found[first[key]], among[first[key]][1], nodes, alone[job])
                if again is not None:
                    found.append(again)
                    continue
            part = stop.part(1 / max(left, 1))
            left -= key not in first
            first.setdefault(key, job)
            goal = JobGoal(topology, alone[job], "makespan", IDEAL, part)
            found.append(_solved(goal, self._strategies(alone[job]), seed, part).schedule)
        return at_once(found, [event_seconds(one)[0] for one in found])

    def _strategies(self, alone: Demand) -> list[DemandStrategy] | None:
        """What plans one job."""
        if self.scheduler is None:
            return None
        return [Direct() if alone.unicast else Group(self.scheduler)]


def _among(topology: Topology, alone: Demand) -> tuple[bytes, NDArray[np.int32]]:
    """The same bytes for jobs of which one is the other on other nodes, and a job's nodes."""
    net, nodes = subnetwork(topology, alone.servers)
    place = np.full(topology.num_nodes, -1)
    place[nodes] = np.arange(len(nodes))
    links = (net.is_server, net.source, net.target, net.bandwidth_bytes_per_s, net.capacity)
    sets = (alone.contributors, alone.destinations)
    asked = [part for one in sets for part in (place[one.servers], one.offsets)]
    columns = (*links, net.latency_s, net.overhead_s, alone.bytes, *asked, alone.relays)
    return repr([(one.shape, one.tobytes()) for one in columns]).encode(), nodes


def _moved(
    schedule: Schedule, nodes: NDArray[np.int32], others: NDArray[np.int32], demand: Demand
) -> Schedule | None:
    """A job's schedule on the nodes of another that is alike; None where it passes other nodes.

    Args:
        schedule: of the one.
        nodes: of the one.
        others: of the other, in the same order.
        demand: of the other.
    """
    to = np.full(schedule.topology.num_nodes, -1)
    to[nodes] = others
    if (to[schedule.route_nodes] < 0).any():
        return None
    return schedule.replace(
        root=to[schedule.root],
        source=to[schedule.source],
        target=to[schedule.target],
        route_nodes=to[schedule.route_nodes],
        demand=demand,
    )
