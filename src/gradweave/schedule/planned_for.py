"""What a schedule was planned for, as its file states it."""

import math
from typing import NamedTuple

from gradweave.schedule.schedule import Schedule


class PlannedFor(NamedTuple):
    """What a search was asked for; None for what is not stated, or is nothing that makes sense."""

    objective: str | None
    gradient_bytes: float | None
    runtime: str | None


def planned_for(schedule: Schedule) -> PlannedFor:
    """Reads it off the options of the scheduler, as `gradweave.solve` states them.

    Args:
        schedule: from a search or a file, which may state anything.
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
