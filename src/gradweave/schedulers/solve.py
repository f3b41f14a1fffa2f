"""The best verified schedule that the strategies at hand find, beside its bound."""

import dataclasses
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Literal, get_args

from gradweave import clock
from gradweave.bounds import Bound, Distance, Exhausted, free_trees
from gradweave.errors import NoScheduleError, OptionError
from gradweave.schedule.schedule import Collective, Schedule, StatedBound
from gradweave.schedulers.exact import Exact
from gradweave.schedulers.grown import Grown
from gradweave.schedulers.learned import Learned
from gradweave.schedulers.merged import Merged
from gradweave.schedulers.repair import Repair
from gradweave.schedulers.ring import Ring
from gradweave.schedulers.scheduler import Scheduler, may_forward
from gradweave.schedulers.seconds_bound import MOST_TIMED, Timing, has_equal_links, timing_of
from gradweave.schedulers.spec import as_schedulers, to_spec
from gradweave.schedulers.symmetric import Symmetric
from gradweave.topology.routes import hop_distances
from gradweave.topology.spec import as_topology
from gradweave.topology.topology import Topology

Objective = Literal["rounds", "seconds"]
"""What `solve` makes small."""
OBJECTIVES: tuple[str, ...] = get_args(Objective)

DEFAULT: tuple[Scheduler, ...] = (
    Symmetric(),
    Ring(forwarding=False),
    Learned(),
    Grown(),
    Merged(),
    Exact(effort=3.0),
)
"""What `solve` tries where nothing else is asked for, in this order."""


@dataclasses.dataclass(frozen=True)
class Attempt:
    """What one strategy came to."""

    scheduler: Scheduler
    rounds: int | None
    """Rounds of its schedule; None where it found none."""
    wall_s: float
    """Seconds that it took, without the compiling of loops that a first run does."""
    reason: str = ""
    """Why it found none."""
    seconds: float | None = None
    """For the objective seconds: time of its best variant, without barriers."""
    barrier_seconds: float | None = None
    """The same with a barrier after each round."""
    pieces: int | None = None
    """Pieces of that variant."""
    overlapped: bool = False
    """Whether that variant's stages were made to overlap."""


@dataclasses.dataclass(frozen=True)
class Solution:
    """A verified schedule, how good it can be at best, and how it was found."""

    schedule: Schedule
    bound: Bound
    scheduler: Scheduler
    """The strategy that found it."""
    attempts: tuple[Attempt, ...]
    wall_s: float
    """Seconds that all took, without the compiling of loops that a first run does."""
    timing: Timing | None = None
    """The schedule's time beside the least possible: for the objective seconds, and wherever
    bandwidths differ, the gradient's size is known and the network is not too large."""

    @property
    def rounds(self) -> int:
        """Rounds of the schedule."""
        return self.schedule.rounds

    @property
    def gap(self) -> float:
        """How far the schedule may be from the best possible: rounds over the bound, less one."""
        return self.rounds / self.bound.rounds - 1

    @property
    def optimal(self) -> bool:
        """Whether the schedule meets its bound, which proves that none has fewer rounds.

        Of its time that says nothing, above all where links have different bandwidths.
        """
        return self.rounds == self.bound.rounds

    @property
    def optimal_in(self) -> tuple[str, ...]:
        """What is proved to be the least possible: ``rounds``, ``seconds``, both or neither."""
        timed = self.timing is not None and self.timing.optimal
        return ("rounds",) * self.optimal + ("seconds",) * timed


def solve(
    topology: Topology | str,
    *,
    collective: Collective = "all_reduce",
    schedulers: Sequence[Scheduler | str] | str | None = None,
    objective: Objective = "rounds",
    gradient_bytes: float | None = None,
    start_from: Schedule | None = None,
    executor: Executor | None = None,
    seed: int = 0,
    time_limit: float | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Solution:
    """Finds a schedule with few rounds or seconds and proves how far from the best it can be.

    Tries each strategy in turn and keeps the best schedule. For rounds it stops at the bound; for
    seconds it also tries finer pieces and overlapping stages, and has `Solution.timing`.

    Args:
        topology: the network, or its specification or file as on the command line.
        collective: a stage, or both, for the objective rounds with a barrier between them.
        schedulers: strategies to try, or their specifications such as ``merged:tries=4``, in this
            order, but rings first where one can meet the bound; if not given, `DEFAULT`, for
            seconds `gradweave.schedulers.objective.FOR_SECONDS`.
        objective: ``rounds``; or ``seconds`` in the event model for a gradient's size, which
            counts latencies and bandwidths.
        gradient_bytes: size of the whole gradient: needed for the objective seconds; for rounds,
            on links of different bandwidths, adds `Solution.timing`.
        start_from: a schedule of this network before a fault, or of one like it: what still works
            of it is tried first and mostly kept; see `gradweave.schedulers.Repair`.
        executor: where to run all strategies side by side, such as `spread.local_processes(4)` or
            `spread.ray_cluster()`; if not given, one after the other in this process. The result is
            the same, unless time runs out. The objective seconds does not use it.
        seed: every random choice depends on it alone.
        time_limit: seconds after which no further strategy is begun, and searches return what they
            have. A first run on a machine compiles loops; that does not count.
        progress: told what is about to be done.

    Returns:
        The solution; its schedule is verified and states its bound.

    Raises:
        NoScheduleError: where no strategy found a schedule.
        OptionError: for an option that is none, or strategies whose pieces differ in size, of which
            rounds do not compare.
        SpecError: for a specification that is not understood.

    >>> import gradweave as gw
    >>> solution = gw.solve("ring:8", collective="all_gather", schedulers=["merged"])
    >>> solution.rounds, solution.bound.rounds, solution.optimal
    (4, 4, True)
    """
    if objective not in OBJECTIVES:
        raise OptionError(
            f"solve: objective: expected one of {', '.join(OBJECTIVES)}, got {objective!r}"
        )
    topology = as_topology(topology)
    strategies = None if schedulers is None else as_schedulers(schedulers)
    if strategies is not None and not strategies:
        raise OptionError("solve: expected at least one scheduler, got none")
    if time_limit is not None and not time_limit > 0:
        raise OptionError(f"solve: time_limit: expected more than 0 seconds, got {time_limit:g}")
    first = () if start_from is None else (Repair(start_from),)
    if objective == "seconds":
        if executor is not None:
            raise OptionError("solve: executor: only objective=rounds runs strategies side by side")
        from gradweave.schedulers.objective import solve_for_seconds

        if gradient_bytes is None:
            raise OptionError("solve: objective=seconds needs gradient_bytes, the gradient's size")
        return solve_for_seconds(
            topology,
            gradient_bytes,
            collective=collective,
            schedulers=strategies,
            first=first,
            seed=seed,
            time_limit=time_limit,
            progress=progress,
        )
    found = _solve_for_rounds(
        topology,
        collective,
        (*first, *(DEFAULT if strategies is None else strategies)),
        seed,
        time_limit,
        progress,
        executor,
    )
    if gradient_bytes is None or has_equal_links(topology) or topology.num_nodes > MOST_TIMED:
        return found
    progress("finding the least time possible")
    return dataclasses.replace(found, timing=timing_of(found.schedule, gradient_bytes))


def _solve_for_rounds(
    topology: Topology,
    collective: Collective,
    schedulers: Sequence[Scheduler],
    seed: int,
    time_limit: float | None,
    progress: Callable[[str], None],
    executor: Executor | None,
) -> Solution:
    if len({_pieces_in_all(scheduler, topology) for scheduler in schedulers}) > 1:
        raise OptionError(
            "solve: the strategies cut the gradient into different numbers of pieces, so that "
            "their rounds do not compare; use objective=seconds"
        )
    started = clock.now()
    progress("finding the lower bound")
    bound = bound_for(topology, collective, schedulers)
    schedulers = _rings_first(schedulers, topology, collective, bound)
    best: Schedule | None = None
    winner = schedulers[0]
    attempts: list[Attempt] = []
    given = (topology, collective, seed)
    running = (
        [executor.submit(_attempt, one, *given, time_limit) for one in schedulers]
        if executor
        else []
    )
    for place, scheduler in enumerate(schedulers):
        left = None if time_limit is None else max(0.0, time_limit - (clock.now() - started))
        if left == 0.0 and best is not None and not executor:
            break
        progress(f"trying {to_spec(scheduler)}")
        attempt, schedule, below = (
            running[place].result() if executor else _attempt(scheduler, *given, left, best)
        )
        attempts.append(attempt)
        if below > bound.rounds and not _freer_than_exact(schedulers):
            bound = Bound(below, "exact", (Exhausted("CP-SAT", collective, below),))
        if schedule is not None and (best is None or schedule.rounds < best.rounds):
            best, winner = schedule, scheduler
            if best.rounds <= bound.rounds:
                break
    for attempt_running in running:
        attempt_running.cancel()
    if best is None:
        reasons = "; ".join(f"{attempt.scheduler.name}: {attempt.reason}" for attempt in attempts)
        raise NoScheduleError(f"no schedule for {topology.name!r}: {reasons}")
    stated = best.replace(bound=StatedBound(bound.rounds, bound.kind))
    return Solution(stated, bound, winner, tuple(attempts), clock.now() - started)


def _rings_first(
    schedulers: Sequence[Scheduler], topology: Topology, collective: Collective, bound: Bound
) -> Sequence[Scheduler]:
    """The strategies with rings first, after any repair, where a ring can meet the bound.

    A ring never hands a link from one pair of servers to another. So of schedules with equally few
    rounds it is the one whose time real networks hold best: docs/design/execution.md.
    """
    stages = 2 if collective == "all_reduce" else 1
    if bound.rounds < stages * (topology.num_servers - 1):
        return schedulers
    return sorted(
        schedulers, key=lambda one: 0 if isinstance(one, Repair) else 2 - isinstance(one, Ring)
    )


def in_one_piece(scheduler: Scheduler) -> bool:
    """Whether a strategy moves the gradient in one piece, with one root."""
    return getattr(scheduler, "one_piece", False)


def _pieces_in_all(scheduler: Scheduler, topology: Topology) -> int:
    each = getattr(scheduler, "pieces_per_server", 1)
    return 1 if in_one_piece(scheduler) else each * topology.num_servers


def bound_for(
    topology: Topology,
    collective: Collective,
    schedulers: Sequence[Scheduler],
    *,
    parts: int = 1,
    overlap: bool = False,
) -> Bound:
    """The bound that holds for all of some strategies, with the freedoms that their options give.

    Args:
        topology: the network.
        collective: a stage, or both.
        schedulers: the strategies. Of one piece with one root, only the distance that it must go
            bounds the rounds.
        parts: how many each piece is cut into afterwards.
        overlap: whether the stages are made to overlap afterwards.
    """
    forwarding = any(may_forward(scheduler) for scheduler in schedulers)
    if any(in_one_piece(scheduler) for scheduler in schedulers):
        return _distance(topology, forwarding)
    overlaps, aggregating_switches = (
        any(getattr(scheduler, option, False) for scheduler in schedulers)
        for option in ("overlap", "aggregating_switches")
    )
    return free_trees(
        topology,
        collective,
        overlap=overlap or overlaps,
        aggregating_switches=aggregating_switches,
        forwarding_servers=forwarding,
        pieces_per_server=parts * min(getattr(one, "pieces_per_server", 1) for one in schedulers),
    )


def _distance(topology: Topology, forwarding_servers: bool) -> Bound:
    """The most transfers that a contribution needs to reach a server, one a round."""
    hops = hop_distances(topology)
    source, target = divmod(int(hops.argmax()), len(hops))
    transfers = 1 if forwarding_servers else int(hops[source, target])
    ends = int(topology.servers[source]), int(topology.servers[target])
    return Bound(transfers, "depth", (Distance(*ends, transfers),))


def _freer_than_exact(schedulers: Sequence[Scheduler]) -> bool:
    """Whether some strategy may do what the exact model leaves out."""
    options = ("overlap", "aggregating_switches")
    freer = any(getattr(one, option, False) for one in schedulers for option in options)
    return freer or any(may_forward(one) for one in schedulers)


def _attempt(
    scheduler: Scheduler,
    topology: Topology,
    collective: Collective,
    seed: int,
    time_limit: float | None,
    known: Schedule | None = None,
) -> tuple[Attempt, Schedule | None, int]:
    """What a strategy came to, its schedule, and rounds below which it proved there is none."""
    started = clock.now()
    below = 0
    try:
        if isinstance(scheduler, Exact):
            start = () if known is None else (known,)
            proof = scheduler.prove(
                topology, collective, start_from=start, seed=seed, time_limit=time_limit
            )
            schedule = proof.schedule
            below = proof.impossible_below if scheduler.trees == "free" else 0
            if schedule is None:
                raise NoScheduleError(str(proof))
        else:
            schedule = scheduler.schedule(
                topology, collective=collective, seed=seed, time_limit=time_limit
            )
    except NoScheduleError as error:
        reason = str(error).removeprefix(f"{scheduler.name}: ")
        return Attempt(scheduler, None, clock.now() - started, reason), None, below
    return Attempt(scheduler, schedule.rounds, clock.now() - started), schedule, below
