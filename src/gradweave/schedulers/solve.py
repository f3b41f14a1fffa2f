"""The best verified schedule that the strategies at hand find, beside its bound."""

import dataclasses
import time
from collections.abc import Callable, Sequence

from gradweave.bounds import Bound, free_trees
from gradweave.errors import NoScheduleError, OptionError
from gradweave.schedule.schedule import Collective, Schedule, StatedBound
from gradweave.schedulers.grown import Grown
from gradweave.schedulers.merged import Merged
from gradweave.schedulers.scheduler import Scheduler
from gradweave.schedulers.spec import to_spec
from gradweave.schedulers.symmetric import Symmetric
from gradweave.topology.topology import Topology

DEFAULT: tuple[Scheduler, ...] = (Symmetric(), Grown(), Merged())
"""What `solve` tries where nothing else is asked for, in this order."""


@dataclasses.dataclass(frozen=True)
class Attempt:
    """What one strategy came to."""

    scheduler: Scheduler
    rounds: int | None
    """Rounds of its schedule; None where it found none."""
    wall_s: float
    reason: str = ""
    """Why it found none."""


@dataclasses.dataclass(frozen=True)
class Solution:
    """A verified schedule, how good it can be at best, and how it was found."""

    schedule: Schedule
    bound: Bound
    scheduler: Scheduler
    """The strategy that found it."""
    attempts: tuple[Attempt, ...]
    wall_s: float

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
        """Whether the schedule meets its bound, which proves that none is shorter."""
        return self.rounds == self.bound.rounds


def solve(
    topology: Topology,
    *,
    collective: Collective = "all_reduce",
    schedulers: Sequence[Scheduler] = DEFAULT,
    seed: int = 0,
    time_limit: float | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Solution:
    """Finds a schedule with few rounds and proves how far from the best possible it is.

    Tries each strategy in turn, keeps the schedule with the fewest rounds, and stops at the bound.

    Args:
        topology: the network.
        collective: a stage, or both with a barrier between them.
        schedulers: strategies to try, in this order.
        seed: every random choice depends on it alone.
        time_limit: seconds after which no further strategy is begun, and searches return what they
            have.
        progress: told what is about to be done.

    Returns:
        The solution; its schedule is verified and states its bound.

    Raises:
        NoScheduleError: where no strategy found a schedule.

    >>> import gradweave as gw
    >>> solution = gw.solve(
    ...     gw.topology.ring(8), collective="all_gather", schedulers=[gw.schedulers.Merged()]
    ... )
    >>> solution.rounds, solution.bound.rounds, solution.optimal
    (4, 4, True)
    """
    if not schedulers:
        raise OptionError("solve: expected at least one scheduler, got none")
    if time_limit is not None and not time_limit > 0:
        raise OptionError(f"solve: time_limit: expected more than 0 seconds, got {time_limit:g}")
    started = time.monotonic()
    progress("finding the lower bound")
    bound = bound_for(topology, collective, schedulers)
    best: Schedule | None = None
    winner = schedulers[0]
    attempts: list[Attempt] = []
    for scheduler in schedulers:
        left = None if time_limit is None else max(0.0, time_limit - (time.monotonic() - started))
        if left == 0.0 and best is not None:
            break
        progress(f"trying {to_spec(scheduler)}")
        attempt, schedule = _attempt(scheduler, topology, collective, seed, left)
        attempts.append(attempt)
        if schedule is not None and (best is None or schedule.rounds < best.rounds):
            best, winner = schedule, scheduler
            if best.rounds <= bound.rounds:
                break
    if best is None:
        reasons = "; ".join(f"{attempt.scheduler.name}: {attempt.reason}" for attempt in attempts)
        raise NoScheduleError(f"no schedule for {topology.name!r}: {reasons}")
    stated = best.replace(bound=StatedBound(bound.rounds, bound.kind))
    return Solution(stated, bound, winner, tuple(attempts), time.monotonic() - started)


def bound_for(topology: Topology, collective: Collective, schedulers: Sequence[Scheduler]) -> Bound:
    """The bound that holds for all of some strategies, with the freedoms that their options give.

    Args:
        topology: the network.
        collective: a stage, or both.
        schedulers: the strategies.
    """
    overlap, aggregating_switches = (
        any(getattr(scheduler, option, False) for scheduler in schedulers)
        for option in ("overlap", "aggregating_switches")
    )
    return free_trees(
        topology,
        collective,
        overlap=overlap,
        aggregating_switches=aggregating_switches,
        forwarding_servers=any(scheduler.forwards_through_servers for scheduler in schedulers),
    )


def _attempt(
    scheduler: Scheduler,
    topology: Topology,
    collective: Collective,
    seed: int,
    time_limit: float | None,
) -> tuple[Attempt, Schedule | None]:
    started = time.monotonic()
    try:
        schedule = scheduler.schedule(
            topology, collective=collective, seed=seed, time_limit=time_limit
        )
    except NoScheduleError as error:
        return Attempt(scheduler, None, time.monotonic() - started, str(error)), None
    return Attempt(scheduler, schedule.rounds, time.monotonic() - started), schedule
