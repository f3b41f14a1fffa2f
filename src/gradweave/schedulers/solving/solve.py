"""The front door: searches strategies for the best verified schedule and bounds it."""

import dataclasses
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, Literal, get_args, overload

from gradweave.bounds.scale import has_equal_links
from gradweave.common.stop import NOBODY, Interrupt, Stop
from gradweave.errors import OptionError
from gradweave.schedulers.repairing.kept import kept_of
from gradweave.schedulers.repairing.repair import Repair
from gradweave.schedulers.scheduler import DemandStrategy, Scheduler
from gradweave.schedulers.solving.demands import solve_demand
from gradweave.schedulers.solving.portfolio import portfolio
from gradweave.schedulers.solving.rounds import solve_for_rounds
from gradweave.schedulers.solving.seconds import solve_for_seconds
from gradweave.schedulers.solving.solution import Solution
from gradweave.schedulers.solving.strategy_search import Portfolio
from gradweave.schedulers.solving.timing import MAX_TIMED, timing_of
from gradweave.schedulers.spec import as_demand_strategies, as_schedulers, is_portfolio
from gradweave.schedules.demand import Demand
from gradweave.schedules.given import ScheduleLike, as_schedule
from gradweave.schedules.jobs import Job
from gradweave.schedules.objective import JobObjective
from gradweave.schedules.ready import ReadyAt
from gradweave.schedules.schedule import Collective, Schedule
from gradweave.simulator.runtime import IDEAL, Runtime, runtime_of
from gradweave.simulator.simulation import DEFAULT_BYTES
from gradweave.topology.spec import TopologyLike, as_topology
from gradweave.topology.topology import Topology
from gradweave.topology.units import as_size

Objective = Literal["rounds", "seconds"]
"""The quantity that `solve` minimises."""
OBJECTIVES: tuple[str, ...] = get_args(Objective)


@overload
def solve(
    topology: TopologyLike,
    *,
    jobs: Sequence[Job] | Job | Demand,
    schedulers: Sequence[DemandStrategy | Scheduler | str] | str | None = None,
    objective: JobObjective = "makespan",
    runtime: Runtime | str | Path = "ideal",
    start_from: ScheduleLike | None = None,
    seed: int = 0,
    time_limit: float | None = None,
    interrupt: Interrupt | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Solution: ...


@overload
def solve(
    topology: TopologyLike,
    *,
    collective: Collective = "all_reduce",
    schedulers: Sequence[Scheduler | str] | str | None = None,
    objective: Objective | None = None,
    gradient_bytes: float | str | None = None,
    ready_at_s: ReadyAt | None = None,
    runtime: Runtime | str | Path = "ideal",
    start_from: ScheduleLike | None = None,
    executor: Executor | None = None,
    seed: int = 0,
    time_limit: float | None = None,
    interrupt: Interrupt | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Solution: ...


def solve(
    topology: TopologyLike,
    *,
    jobs: Sequence[Job] | Job | Demand | None = None,
    collective: Collective = "all_reduce",
    schedulers: Sequence[Any] | str | None = None,
    objective: Objective | JobObjective | None = None,
    gradient_bytes: float | str | None = None,
    ready_at_s: ReadyAt | None = None,
    runtime: Runtime | str | Path = "ideal",
    start_from: ScheduleLike | None = None,
    executor: Executor | None = None,
    seed: int = 0,
    time_limit: float | None = None,
    interrupt: Interrupt | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Solution:
    """Finds a schedule with few rounds or seconds, and proves how far from the optimum it can be.

    It tries each strategy in turn and keeps the best schedule. For rounds it stops at the lower
    bound. For seconds it also tries finer pieces and overlapping stages, and sets
    `Solution.timing`. If no objective is given, `default_objective` chooses it, as on the command
    line.

    Args:
        topology: the network, or its specification or file as on the command line.
        jobs: any collectives of any servers, planned together, instead of one collective among all
            servers: see `solve_demand`. Jobs accept only these options: schedulers, objective,
            runtime, start_from, seed, time_limit, interrupt and progress.
        collective: a stage, or both, for the objective rounds with a barrier between them.
        schedulers: strategies to try, or their specifications such as ``merged:tries=4``, in this
            order, except that rings which can meet the bound come first; by default those of
            `gradweave.schedulers.solving.portfolio.portfolio`. For jobs, see
            `gradweave.schedulers.demand_strategy`.
        objective: ``rounds``; or ``seconds`` in the event model, which accounts for the gradient's
            size, latencies and bandwidths. For jobs ``makespan``, ``sum``, ``weighted`` or
            ``fair``. By default see `default_objective`; for jobs, the makespan.
        gradient_bytes: size of the whole gradient, such as ``"100MB"``, for the objective seconds;
            `DEFAULT_BYTES` if not given. For rounds, on links of different bandwidths, it adds
            `Solution.timing`.
        ready_at_s: [N] seconds at which each server's gradient is ready, in order of id, for
            the objective seconds; 0 if not given. A server that is late contributes last.
        runtime: the runtime that will run the schedule, for the objective seconds: a profile, its
            name or a TOML file (`gradweave.simulator.runtime`). If no plan is faster than the
            runtime's all-reduce, that is the answer; see `Solution.runtime`. ``ideal``: messages
            cost what the links state.
        start_from: a schedule, a solution or a file of this network, or of one like it, from before
            a fault. Whatever still works of it is tried first and largely kept; see
            `gradweave.schedulers.Repair`.
            For seconds, a plan that keeps more is the answer if it takes at most 5 % longer than
            the fastest found; see `Solution.repair`. For jobs, see `solve_demand`.
        executor: runs all strategies in parallel, such as `spread.local_processes(4)` or
            `spread.ray_cluster()`; if not given, they run in turn in this process. The result is
            the same, unless time runs out.
        seed: the only source of every random choice.
        time_limit: seconds after which no further strategy is started and searches return the best
            they have; kept to within a tenth or 0.3 s. The bound and one schedule are always found:
            if time is too short even for them, the first run finishes in its quickest form.
            Compiling loops in the first run on a machine does not count.
        interrupt: a `gradweave.schedulers.Interrupt`, with which another thread or a signal handler
            ends the search; the result is the best schedule found by then.
        progress: called with a line about each step before it starts.

    Returns:
        The solution; its schedule is verified and states its bound.

    Raises:
        KeyboardInterrupt: if `interrupt` ended the search before there was a schedule.
        NoScheduleError: if no strategy found a schedule.
        OptionError: for an unknown option, or for strategies whose pieces differ in size, so that
            their rounds are not comparable.
        SpecError: for a specification that cannot be parsed.

    >>> import gradweave as gw
    >>> solution = gw.solve("ring:8", collective="all_gather", schedulers=["merged"])
    >>> solution.rounds, solution.bound.rounds, solution.optimal
    (4, 4, True)
    """
    topology = as_topology(topology)
    named = None if is_portfolio(schedulers) else schedulers
    if jobs is not None:
        _refuse_for_jobs(
            collective=None if collective == "all_reduce" else collective,
            gradient_bytes=gradient_bytes,
            ready_at_s=ready_at_s,
            executor=executor,
        )
        return solve_demand(
            topology,
            jobs,
            objective="makespan" if objective is None else objective,  # pyright: ignore[reportArgumentType]
            runtime=runtime,
            strategies=None if named is None else as_demand_strategies(named),
            start_from=start_from,
            seed=seed,
            time_limit=time_limit,
            interrupt=interrupt,
            progress=progress,
        )
    profile = runtime_of(runtime)
    if objective is None:
        objective = default_objective(topology, profile, collective)
    if objective not in OBJECTIVES:
        raise OptionError(
            f"solve: objective: expected one of {', '.join(OBJECTIVES)}, got {objective!r}"
        )
    if named is None:
        strategies = portfolio(topology, collective, objective, ready_at_s=ready_at_s)
    else:
        strategies = Portfolio(as_schedulers(named))
    if not strategies.usual:
        raise OptionError("solve: expected at least one scheduler, got none")
    if time_limit is not None and not time_limit > 0:
        raise OptionError(f"solve: time_limit: expected more than 0 seconds, got {time_limit:g}")
    if profile is not IDEAL and objective != "seconds":
        raise OptionError("solve: runtime: a runtime needs objective=seconds")
    stop = Stop.after(time_limit, NOBODY if interrupt is None else interrupt.flag)
    start_from = None if start_from is None else as_schedule(start_from)
    gradient_bytes = None if gradient_bytes is None else as_size(gradient_bytes)
    first = () if start_from is None else (Repair(start_from),)
    if objective == "seconds":
        solution = solve_for_seconds(
            topology,
            DEFAULT_BYTES if gradient_bytes is None else gradient_bytes,
            collective=collective,
            strategies=strategies,
            first=first,
            start_from=start_from,
            seed=seed,
            stop=stop,
            progress=progress,
            ready_at_s=ready_at_s,
            runtime=profile,
            executor=executor,
        )
        return _with_kept(solution, start_from)
    if ready_at_s is not None:
        raise OptionError("solve: ready_at_s: ready times need objective=seconds")
    solution = solve_for_rounds(
        topology,
        collective=collective,
        schedulers=(*first, *strategies.usual),
        seed=seed,
        stop=stop,
        progress=progress,
        executor=executor,
    )
    rounds_tell = has_equal_links(topology) and solution.scheduler.traits.rounds_compare
    if gradient_bytes is None or rounds_tell or topology.num_nodes > MAX_TIMED:
        return _with_kept(solution, start_from)
    progress("finding the lower bound on time")
    timed = dataclasses.replace(solution, timing=timing_of(solution.schedule, gradient_bytes))
    return _with_kept(timed, start_from)


def default_objective(
    topology: Topology, runtime: Runtime | str | Path, collective: Collective = "all_reduce"
) -> Objective:
    """The objective of `solve` and the command line if none is given.

    Args:
        topology: the network.
        runtime: the runtime that will run the schedule.
        collective: a stage, or both.

    Returns:
        Seconds, if a runtime is given or links have different bandwidths, so that rounds do not
        determine the time of an all-reduce; otherwise rounds.
    """
    tells = has_equal_links(topology) or collective != "all_reduce"
    return "rounds" if tells and runtime_of(runtime) is IDEAL else "seconds"


def _refuse_for_jobs(**given: object) -> None:
    """Refuses options that apply only to one collective among all servers."""
    for name, value in given.items():
        if value is not None:
            raise OptionError(f"solve: {name}: not an option for jobs, which state it themselves")


def _with_kept(solution: Solution, start_from: Schedule | None) -> Solution:
    """The solution with `kept`: how much of the schedule it started from is left."""
    if start_from is None:
        return solution
    return dataclasses.replace(solution, kept=kept_of(start_from, solution.schedule))
