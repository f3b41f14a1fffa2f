"""How a schedule's time compares with the lower bound on its network."""

import dataclasses

import numpy as np

from gradweave.bounds.seconds_bound import SecondsBound, seconds_bound
from gradweave.schedules.ready import ReadyAt, planned_ready_times
from gradweave.schedules.schedule import REDUCE, Schedule
from gradweave.simulator import seconds
from gradweave.topology.units import ROUNDING

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
    schedule: Schedule, gradient_bytes: float, ready_at_s: ReadyAt | None = None
) -> Timing:
    """A schedule's time, and the lower bound on its network.

    Args:
        schedule: a valid schedule.
        gradient_bytes: size of the whole gradient.
        ready_at_s: [N] seconds at which each server is ready, in order of id; if not
            given, the times that the schedule was planned for.
    """
    topology = schedule.topology
    ready_at_s = planned_ready_times(schedule) if ready_at_s is None else ready_at_s
    rooted = np.bincount(topology.rank[schedule.root], schedule.share, topology.num_servers)
    own = schedule.source == schedule.root[schedule.piece]
    bound = seconds_bound(
        topology,
        schedule.collective,
        gradient_bytes,
        equal_roots=bool(np.ptp(rooted) < ROUNDING),
        roots=np.flatnonzero(rooted),
        trees=not (own & (schedule.op == REDUCE)).any(),
        aggregating_switches=bool(schedule.scheduler.options.get("aggregating_switches")),
        ready_at_s=ready_at_s,
    )
    events, barriers = (
        seconds(schedule, gradient_bytes, model, ready_at_s=ready_at_s)
        for model in ("events", "rounds")
    )
    return Timing(gradient_bytes, events, barriers, bound)
