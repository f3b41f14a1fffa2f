"""How a schedule's time compares with the lower bound on its network."""

import dataclasses
import math

import numpy as np

from gradweave.bounds.classes import SUMS_MEET_ANYWHERE
from gradweave.bounds.of_schedule import liberties_of
from gradweave.bounds.seconds.time_expanded import MAX_SERVERS
from gradweave.bounds.seconds_bound import SecondsBound, seconds_bound
from gradweave.schedules.ready import ReadyAt, planned_ready_times
from gradweave.schedules.schedule import Schedule
from gradweave.simulator import seconds
from gradweave.topology.topology import Topology
from gradweave.topology.units import ROUNDING

MAX_SLOTTED = 16
"""Most servers for which the bound over slots of time is sought without a time limit."""
SLOTTED_GAP = 0.05
"""Least gap for which it is sought."""
SLOTTED_S = 0.3
"""Least time for it, which exceeds a time limit by no more."""
MAX_TIMED = 512
"""Most nodes for which `solve` computes the time bound too: about a second of max-flows."""


@dataclasses.dataclass(frozen=True)
class Timing:
    """A schedule's time for a gradient size, and the lower bound."""

    gradient_bytes: float
    seconds: float
    """Without barriers, as executors run: ``simulator.seconds(…, model="events")``."""
    barrier_seconds: float
    """With a barrier after each round: ``model="rounds"``."""
    bound: SecondsBound

    @property
    def gap(self) -> float:
        """How far the time may be from the optimum: seconds over the bound, minus one."""
        least = self.bound.seconds
        return max(0.0, self.seconds / least - 1) if least > 0 else 0.0

    @property
    def optimal(self) -> bool:
        """Whether the time equals the bound, up to rounding."""
        return self.gap < ROUNDING


def timing_of(
    schedule: Schedule,
    gradient_bytes: float,
    ready_at_s: ReadyAt | None = None,
    *,
    seconds_left: float = math.inf,
) -> Timing:
    """A schedule's time, and the lower bound on its network.

    If it is far above the bound, on a network of few servers, and moves its data over trees, the
    bound is also sought over slots of time.

    Args:
        schedule: a valid schedule.
        gradient_bytes: size of the whole gradient.
        ready_at_s: [N] seconds at which each server is ready, in order of id; if not
            given, the times that the schedule was planned for.
        seconds_left: time left for the bound.
    """
    topology = schedule.topology
    ready_at_s = planned_ready_times(schedule) if ready_at_s is None else ready_at_s
    rooted = np.bincount(topology.rank[schedule.root], schedule.share, topology.num_servers)
    equal_roots = bool(np.ptp(rooted) < ROUNDING)
    liberties = liberties_of(schedule)
    bound = seconds_bound(
        topology,
        schedule.collective,
        gradient_bytes,
        equal_roots=equal_roots,
        roots=np.flatnonzero(rooted),
        trees=SUMS_MEET_ANYWHERE not in liberties,
        aggregating_switches=bool(schedule.scheduler.options.get("aggregating_switches")),
        ready_at_s=ready_at_s,
    )
    events, barriers = (
        seconds(schedule, gradient_bytes, model, ready_at_s=ready_at_s)
        for model in ("events", "rounds")
    )
    timing = Timing(gradient_bytes, events, barriers, bound)
    every_root = equal_roots or schedule.collective == "all_reduce"
    if every_root and not liberties and is_slotted(topology, timing.gap, seconds_left):
        limit = None if math.isinf(seconds_left) else max(seconds_left, SLOTTED_S)
        finer = bound.with_slots(None, upper_s=events, time_limit=limit)
        timing = dataclasses.replace(timing, bound=finer)
    return timing


def is_slotted(topology: Topology, gap: float, seconds_left: float) -> bool:
    """Whether the bound over slots of time is sought.

    Args:
        topology: the network.
        gap: how far a schedule's time is above the bound without it, relative to that.
        seconds_left: time left, infinite without a limit.
    """
    most = MAX_SLOTTED if math.isinf(seconds_left) else MAX_SERVERS
    return topology.num_servers <= most and gap >= SLOTTED_GAP
