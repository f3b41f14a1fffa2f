"""Plans any demand to finish early: a verified schedule and a lower bound on its time."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

from gradweave.common.stop import NOBODY, Interrupt, Stop
from gradweave.errors import OptionError
from gradweave.schedulers.repairing.earlier_plan import EarlierPlan
from gradweave.schedulers.scheduler import Strategy
from gradweave.schedulers.solving.job_goal import HOPELESS, JobGoal, solve_for_jobs
from gradweave.schedulers.solving.portfolio import portfolio
from gradweave.schedulers.solving.solution import Solution
from gradweave.schedules.demand import Demand
from gradweave.schedules.given import ScheduleLike
from gradweave.schedules.jobs import Job, demand_of
from gradweave.schedules.objective import JobObjective
from gradweave.simulator.runtime import Runtime, runtime_of
from gradweave.topology.spec import TopologyLike, as_topology


def solve_demand(
    topology: TopologyLike,
    demand: Demand | Sequence[Job] | Job,
    *,
    objective: JobObjective = "makespan",
    runtime: Runtime | str | Path = "ideal",
    strategies: Sequence[Strategy] | None = None,
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
        strategies: the strategies to try, in this order; by default those of `portfolio`.
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
    chosen = strategies or portfolio(goal.topology, demand, ordered=goal.ordered()).usual
    return solve_for_jobs(goal, (*first, *chosen), seed, stop, progress)
