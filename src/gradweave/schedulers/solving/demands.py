"""Plans any demand to finish early: a verified schedule and a lower bound on its time."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gradweave.errors import OptionError
from gradweave.schedulers.flows.flows import Flows
from gradweave.schedulers.packing.joint import Joint
from gradweave.schedulers.packing.paths import may_leave_residual
from gradweave.schedulers.repairing.earlier_plan import EarlierPlan
from gradweave.schedulers.scheduler import DemandStrategy, Scheduler, to_spec
from gradweave.schedulers.solving.group import Group
from gradweave.schedulers.solving.job_goal import HOPELESS, JobGoal
from gradweave.schedulers.solving.solution import Solution
from gradweave.schedulers.solving.strategy_search import Search
from gradweave.schedulers.textbook.postal_tree import PostalTree
from gradweave.schedulers.textbook.runtimes import TEXTBOOK, Direct
from gradweave.schedulers.trees.disjoint_trees import DisjointTrees
from gradweave.schedules.compose import at_once
from gradweave.schedules.demand import Demand
from gradweave.schedules.given import ScheduleLike
from gradweave.schedules.jobs import Job, demand_of
from gradweave.schedules.objective import JobObjective
from gradweave.schedules.schedule import Schedule
from gradweave.simulator.runtime import IDEAL, Runtime, runtime_of
from gradweave.simulator.seconds import event_seconds
from gradweave.stop import NOBODY, Interrupt, Stop
from gradweave.topology.spec import as_topology
from gradweave.topology.subnetwork import subnetwork
from gradweave.topology.topology import Topology


def solve_demand(
    topology: Topology | str,
    demand: Demand | Sequence[Job] | Job,
    *,
    objective: JobObjective = "makespan",
    runtime: Runtime | str | Path = "ideal",
    strategies: Sequence[DemandStrategy] | None = None,
    start_from: ScheduleLike | None = None,
    seed: int = 0,
    time_limit: float | None = None,
    interrupt: Interrupt | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Solution:
    """Plans any demand to finish early: one collective of a group, or several jobs at once.

    One plan divides the links among all jobs. Strategies are tried in turn, simple ones first,
    until one meets the bound. A plan of several jobs is also tried with its jobs in other orders.

    Args:
        topology: the network, or its specification or file.
        demand: the blocks to sum and move, or jobs.
        objective: ``makespan``, the time until the last job ends; ``sum``, the sum of the jobs' end
            times; ``weighted``, the same sum with each time multiplied by the job's weight;
            ``fair``, the largest ratio of a job's duration, counted from its release time, to its
            own lower bound.
        runtime: the runtime that will run the plan (profile, name or file); see `gradweave.solve`.
        strategies: the strategies to try, in this order; by default `strategies_for` chooses them.
        start_from: an earlier plan of the same jobs, whose sizes may have changed, on this
            network or on it before it lost links: a schedule, its file, or a solution. Whatever
            part of it still works is tried first, so that the answer is never worse; see
            `EarlierPlan`.
        seed: the only source of every random choice.
        time_limit: seconds after which no further strategy is started and searches return the
            best they have. The first strategy always finishes.
        interrupt: lets another thread or a signal handler end the search.
        progress: called with a line about each step before it starts.

    Raises:
        NoScheduleError: if no strategy found a schedule, with the reason of each.
        OptionError: if the network cannot satisfy the demand, or `start_from` is a plan of
            other jobs.

    >>> import gradweave as gw
    >>> boxes = gw.topology.from_spec("a100:boxes=2")
    >>> does = {"tp": ("all_reduce", 10**9), "dp": ("all_reduce", 10**8)}
    >>> jobs = gw.schedules.mesh_jobs(boxes, {"dp": 2, "tp": 8}, does)
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
    hopeless = math.inf if strategies else HOPELESS
    goal = JobGoal(network, demand, objective, runtime_of(runtime), stop, hopeless)
    first = () if start_from is None else (EarlierPlan.of(start_from),)
    return _solved(goal, strategies, seed, stop, progress, first)


def _solved(
    goal: JobGoal,
    strategies: Sequence[DemandStrategy] | None,
    seed: int,
    stop: Stop,
    progress: Callable[[str], None] = lambda _: None,
    first: Sequence[DemandStrategy] = (),
) -> Solution:
    search = Search(goal, seed, stop, progress)
    search.try_each((*first, *(_strategies(goal) if strategies is None else strategies)))
    return search.solution()


def _strategies(goal: JobGoal) -> list[DemandStrategy]:
    """The strategies for a goal; except for the makespan, those that order jobs come first."""
    usual = strategies_for(goal.topology, goal.demand)
    if goal.objective.name == "makespan" or len(goal.demand.jobs) == 1:
        return usual
    residual = max(one.residual for one in usual if isinstance(one, Joint))
    weight = 1 / goal.objective.scale_s if goal.objective.name == "fair" else goal.objective.weight
    in_order = Joint(residual, goal.order(), tuple(weight.tolist()))
    apart, others = ([one for one in usual if isinstance(one, Apart) == is_it] for is_it in (1, 0))
    return [*apart, in_order, *others]


def strategies_for(topology: Topology, demand: Demand) -> list[DemandStrategy]:
    """The strategies that may suit a demand, in the order to try them.

    Args:
        topology: the network.
        demand: the blocks to sum and move.
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
    """Plans each job as if it had the network to itself, then runs all plans at once.

    Each link carries transfers in the order in which the separate plans start them. If jobs share
    no links, the result is as good as any joint plan. If they do, it is the time of jobs that are
    planned without taking each other into account.
    """

    name: ClassVar[str] = "apart"
    forwards: ClassVar[bool] = True
    time_share: ClassVar[float] = 2.0

    scheduler: Scheduler | None = None
    """The scheduler for each group's all-reduce, all-gather or reduce-scatter; messages then take
    direct routes. If not given, `solve_demand` chooses for each job."""

    def options(self) -> dict[str, Any]:
        """The scheduler's specification, as written to schedule files."""
        return {"scheduler": self.scheduler and to_spec(self.scheduler)}

    def make(self, topology: Topology, demand: Demand, seed: int, stop: Stop) -> Schedule:
        """Makes the schedule; `schedule` verifies it."""
        jobs = len(demand.jobs)
        if (jobs == 1 and not self.scheduler) or (np.diff(demand.job) < 0).any():
            raise self.refused("needs several jobs, with each job's blocks in one contiguous range")
        if self.scheduler and demand.unicast:
            raise self.refused(f"{self.scheduler.name} does not plan point-to-point messages")
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
            hopeless = HOPELESS if self.scheduler is None else math.inf
            goal = JobGoal(topology, alone[job], "makespan", IDEAL, part, hopeless)
            found.append(_solved(goal, self._strategies(alone[job]), seed, part).schedule)
        return at_once(found, [event_seconds(one)[0] for one in found])

    def _strategies(self, alone: Demand) -> list[DemandStrategy] | None:
        """The strategies for one job."""
        if self.scheduler is None:
            return None
        return [Direct() if alone.unicast else Group(self.scheduler)]


def _among(topology: Topology, alone: Demand) -> tuple[bytes, NDArray[np.int32]]:
    """A key that is equal for jobs that differ only in their nodes, and the job's nodes."""
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
    """A job's schedule moved to the nodes of an equal job, or None if it passes others.

    Args:
        schedule: the first job's schedule.
        nodes: the first job's nodes.
        others: the second job's nodes, in the same order.
        demand: the second job.
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
