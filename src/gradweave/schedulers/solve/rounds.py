"""The schedule of the fewest rounds that the strategies at hand find."""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any

from gradweave import clock
from gradweave.bounds import Bound, Exhausted
from gradweave.errors import NoScheduleError, OptionError
from gradweave.schedule.schedule import Collective, Schedule, StatedBound
from gradweave.schedulers.exact.exact import Exact
from gradweave.schedulers.scheduler import Scheduler, may_forward, to_spec
from gradweave.schedulers.solve.order import in_order
from gradweave.schedulers.solve.solution import (
    Attempt,
    Solution,
    bound_for,
    in_one_piece,
    rounds_compare,
)
from gradweave.stop import Stop
from gradweave.topology.topology import Topology

A_START_S = 0.3
"""What a strategy may take before it looks at the clock, on networks of some dozens of servers: its
hops, and one schedule whatever the time. None is begun later, once there is a schedule."""


def solve_for_rounds(
    topology: Topology,
    collective: Collective,
    schedulers: Sequence[Scheduler],
    seed: int,
    stop: Stop,
    progress: Callable[[str], None] = lambda _: None,
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
    started = clock.now()
    begin = stop.sooner(min(A_START_S, stop.seconds_left / 2))
    progress("finding the lower bound")
    bound = bound_for(topology, collective, schedulers)
    schedulers = in_order(schedulers, topology, collective, bound)
    best: Schedule | None = None
    winner = schedulers[0]
    attempts: list[Attempt] = []
    given = (topology, collective, seed)
    running = (
        [executor.submit(_elsewhere, one, *given, stop.seconds_left) for one in schedulers]
        if executor
        else []
    )
    for place, scheduler in enumerate(schedulers):
        if best is not None and not executor and begin.reached():
            break
        so_far = f"; {best.rounds} rounds so far, bound {bound.rounds}" if best else ""
        progress(f"trying {to_spec(scheduler)}{so_far}")
        attempt, schedule, below = (
            running[place].result() if executor else _attempt(scheduler, *given, stop, best)
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
    stated = StatedBound(bound.rounds, bound.kind, True) if rounds_compare(winner) else None
    best = best.replace(bound=stated)
    return Solution(best, bound, winner, tuple(attempts), clock.now() - started)


def _pieces_in_all(scheduler: Scheduler, topology: Topology) -> int:
    each = getattr(scheduler, "pieces_per_server", 1)
    if scheduler.own_pieces:
        return 0
    return 1 if in_one_piece(scheduler) else each * topology.num_servers


def _freer_than_exact(schedulers: Sequence[Scheduler]) -> bool:
    """Whether some strategy may do what the exact model leaves out."""
    options = ("overlap", "aggregating_switches")
    freer = any(getattr(one, option, False) for one in schedulers for option in options)
    return freer or any(may_forward(one) for one in schedulers)


def _elsewhere(*given: Any) -> tuple[Attempt, Schedule | None, int]:
    """As `_attempt`, in another process, whose clock is another: after the seconds given last."""
    return _attempt(*given[:-1], Stop.after(given[-1]))


def _attempt(
    scheduler: Scheduler,
    topology: Topology,
    collective: Collective,
    seed: int,
    stop: Stop,
    best_so_far: Schedule | None = None,
) -> tuple[Attempt, Schedule | None, int]:
    """One strategy: the attempt, its schedule, and rounds below which it proved there is none."""
    started = clock.now()
    below = 0
    try:
        if isinstance(scheduler, Exact):
            start = () if best_so_far is None else (best_so_far,)
            proof = scheduler.prove_until(topology, stop, collective, start_from=start, seed=seed)
            schedule = proof.schedule
            below = proof.impossible_below if scheduler.trees == "free" else 0
            if schedule is None:
                raise NoScheduleError(str(proof))
        else:
            schedule = scheduler.schedule_until(topology, stop, collective, seed=seed)
    except NoScheduleError as error:
        reason = str(error).removeprefix(f"{scheduler.name}: ")
        return Attempt(scheduler, None, clock.now() - started, reason), None, below
    return Attempt(scheduler, schedule.rounds, clock.now() - started), schedule, below
