"""The best verified schedule that the strategies at hand find, beside its bound."""

import dataclasses
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, Literal, get_args, overload

from gradweave.errors import OptionError
from gradweave.schedule.demand import Demand
from gradweave.schedule.jobs import Job
from gradweave.schedule.objective import JobObjective
from gradweave.schedule.ready import ReadyAt
from gradweave.schedule.schedule import Collective, Schedule
from gradweave.schedulers.demand_spec import as_demand_strategies
from gradweave.schedulers.demands.strategy import DemandStrategy
from gradweave.schedulers.scheduler import Scheduler
from gradweave.schedulers.solve.demands import DemandSolution, solve_demand
from gradweave.schedulers.solve.kept import kept_of
from gradweave.schedulers.solve.order import DEFAULT
from gradweave.schedulers.solve.repair import Repair
from gradweave.schedulers.solve.rounds import solve_for_rounds
from gradweave.schedulers.solve.seconds import solve_for_seconds
from gradweave.schedulers.solve.seconds_bound import MAX_TIMED, has_equal_links, timing_of
from gradweave.schedulers.solve.solution import Solution
from gradweave.schedulers.spec import as_schedulers, is_portfolio
from gradweave.simulate.runtime import IDEAL, Runtime, runtime_of
from gradweave.stop import NOBODY, Interrupt, Stop
from gradweave.topology.spec import as_topology
from gradweave.topology.topology import Topology

Objective = Literal["rounds", "seconds"]
"""What `solve` makes small."""
OBJECTIVES: tuple[str, ...] = get_args(Objective)


@overload
def solve(
    topology: Topology | str,
    *,
    jobs: Sequence[Job] | Job | Demand,
    schedulers: Sequence[DemandStrategy | Scheduler | str] | str | None = None,
    objective: JobObjective = "makespan",
    runtime: Runtime | str | Path = "ideal",
    start_from: Schedule | DemandSolution | str | Path | None = None,
    seed: int = 0,
    time_limit: float | None = None,
    interrupt: Interrupt | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> DemandSolution: ...


@overload
def solve(
    topology: Topology | str,
    *,
    collective: Collective = "all_reduce",
    schedulers: Sequence[Scheduler | str] | str | None = None,
    objective: Objective = "rounds",
    gradient_bytes: float | None = None,
    ready_at_s: ReadyAt | None = None,
    runtime: Runtime | str | Path = "ideal",
    start_from: Schedule | None = None,
    executor: Executor | None = None,
    seed: int = 0,
    time_limit: float | None = None,
    interrupt: Interrupt | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Solution: ...


def solve(
    topology: Topology | str,
    *,
    jobs: Sequence[Job] | Job | Demand | None = None,
    collective: Collective = "all_reduce",
    schedulers: Sequence[Any] | str | None = None,
    objective: Objective | JobObjective | None = None,
    gradient_bytes: float | None = None,
    ready_at_s: ReadyAt | None = None,
    runtime: Runtime | str | Path = "ideal",
    start_from: Schedule | DemandSolution | str | Path | None = None,
    executor: Executor | None = None,
    seed: int = 0,
    time_limit: float | None = None,
    interrupt: Interrupt | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Solution | DemandSolution:
    """Finds a schedule with few rounds or seconds and proves how far from the best it can be.

    Tries each strategy in turn and keeps the best schedule. For rounds it stops at the bound; for
    seconds it also tries finer pieces and overlapping stages, and has `Solution.timing`.

    Args:
        topology: the network, or its specification or file as on the command line.
        jobs: any collectives of any servers, planned together in place of one among all: see
            `solve_demand`. Of the other options only schedulers, objective, runtime, start_from,
            seed, time limit, interrupt and progress are for them.
        collective: a stage, or both, for the objective rounds with a barrier between them.
        schedulers: strategies to try, or their specifications such as ``merged:tries=4``, in this
            order, but rings first where one can meet the bound; if not given, `DEFAULT`, for
            seconds `gradweave.schedulers.solve.seconds.FOR_SECONDS`. For jobs, see
            `gradweave.schedulers.demand_strategy`.
        objective: ``rounds``; or ``seconds`` in the event model for a gradient's size, which
            counts latencies and bandwidths. Of jobs ``makespan``, ``sum``, ``weighted`` or
            ``fair``; if not given, rounds, or the makespan of jobs.
        gradient_bytes: size of the whole gradient: needed for the objective seconds; for rounds,
            on links of different bandwidths, adds `Solution.timing`.
        ready_at_s: [N] seconds at which each server's own gradient is ready, in order of id, for
            the objective seconds; 0 if not given. A server that is late contributes last.
        runtime: on which the schedule is to run, for the objective seconds: a profile, its name or
            a TOML file (`gradweave.simulate.runtime`). Its own all-reduce is the answer where no
            plan is faster; see `Solution.runtime`. ``ideal``: messages cost what links say.
        start_from: a schedule of this network before a fault, or of one like it: what still works
            of it is tried first and mostly kept; see `gradweave.schedulers.Repair`. For seconds, a
            plan that keeps more is the answer where it takes at most 5 % longer than the fastest
            found; see `Solution.repair`. Of jobs, see `solve_demand`.
        executor: where to run all strategies side by side, such as `spread.local_processes(4)` or
            `spread.ray_cluster()`; if not given, one after the other in this process. The result is
            the same, unless time runs out.
        seed: every random choice depends on it alone.
        time_limit: seconds after which no further strategy is begun, and searches return what they
            have; kept within a tenth or 0.3 s. The bound and one schedule are always found: where
            time is too short even for them, the first run is finished in its quickest form. A first
            run on a machine compiles loops; that does not count.
        interrupt: `gradweave.stop.Interrupt`, by which another thread or a signal's handler ends
            the search, with the best that there is by then.
        progress: told what is about to be done.

    Returns:
        The solution; its schedule is verified and states its bound. For jobs, a `DemandSolution`.

    Raises:
        KeyboardInterrupt: where `interrupt` ended it before there was a schedule.
        NoScheduleError: where no strategy found a schedule.
        OptionError: for an unknown option, or for strategies whose pieces differ in size, of which
            rounds do not compare.
        SpecError: for a specification that is not understood.

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
    objective = "rounds" if objective is None else objective
    if objective not in OBJECTIVES:
        raise OptionError(
            f"solve: objective: expected one of {', '.join(OBJECTIVES)}, got {objective!r}"
        )
    strategies = None if named is None else as_schedulers(named)
    if strategies is not None and not strategies:
        raise OptionError("solve: expected at least one scheduler, got none")
    if time_limit is not None and not time_limit > 0:
        raise OptionError(f"solve: time_limit: expected more than 0 seconds, got {time_limit:g}")
    profile = runtime_of(runtime)
    if profile is not IDEAL and objective != "seconds":
        raise OptionError("solve: runtime: only objective=seconds knows what messages cost")
    stop = Stop.after(time_limit, NOBODY if interrupt is None else interrupt.flag)
    if not isinstance(start_from, Schedule | None):
        raise OptionError("solve: start_from: expected a schedule")
    first = () if start_from is None else (Repair(start_from),)
    if objective == "seconds":
        if gradient_bytes is None:
            raise OptionError("solve: objective=seconds needs gradient_bytes, the gradient's size")
        solution = solve_for_seconds(
            topology,
            gradient_bytes,
            collective=collective,
            schedulers=strategies,
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
        raise OptionError("solve: ready_at_s: only objective=seconds knows when servers are ready")
    solution = solve_for_rounds(
        topology,
        collective=collective,
        schedulers=(*first, *(DEFAULT if strategies is None else strategies)),
        seed=seed,
        stop=stop,
        progress=progress,
        executor=executor,
    )
    rounds_tell = has_equal_links(topology) and solution.scheduler.traits.rounds_compare
    if gradient_bytes is None or rounds_tell or topology.num_nodes > MAX_TIMED:
        return _with_kept(solution, start_from)
    progress("finding the least time possible")
    timed = dataclasses.replace(solution, timing=timing_of(solution.schedule, gradient_bytes))
    return _with_kept(timed, start_from)


def _refuse_for_jobs(**given: object) -> None:
    """Refuses options that are for one collective among all servers."""
    for name, value in given.items():
        if value is not None:
            raise OptionError(f"solve: {name}: not for jobs, which say themselves what they move")


def _with_kept(solution: Solution, start_from: Schedule | None) -> Solution:
    """The solution that also says how much of the schedule that it started from it has kept."""
    if start_from is None:
        return solution
    return dataclasses.replace(solution, kept=kept_of(start_from, solution.schedule))
