"""The run that a schedule was planned for, as its file states it."""

import math
from typing import NamedTuple

from gradweave.schedules.schedule import Schedule


class PlannedFor(NamedTuple):
    """The request that a search was given; a value is None if it is missing or invalid."""

    objective: str | None
    gradient_bytes: float | None
    runtime: str | None


def planned_for(schedule: Schedule) -> PlannedFor:
    """Reads the request from the scheduler's options, where `gradweave.solve` stores it.

    Args:
        schedule: a schedule from a search or a file, which may contain anything.
    """
    options = schedule.scheduler.options
    objective, runtime = options.get("objective"), options.get("runtime")
    size = options.get("gradient_bytes")
    if not isinstance(size, int | float) or isinstance(size, bool) or not 0 < size < math.inf:
        size = None
    return PlannedFor(
        objective if isinstance(objective, str) else None,
        size,
        runtime if isinstance(runtime, str) else None,
    )


def stated_bytes(schedule: Schedule) -> float | None:
    """The bytes of a schedule's demand, or of the gradient that the schedule was planned for."""
    if schedule.demand is not None:
        return float(schedule.demand.total_bytes)
    return planned_for(schedule).gradient_bytes
