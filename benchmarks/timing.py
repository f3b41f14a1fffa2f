"""Seconds of a piece of work."""

import statistics
import time
from collections.abc import Callable
from typing import Any


def timed(
    work: Callable[[], Any], clock: Callable[[], float] = time.perf_counter
) -> tuple[float, Any]:
    """Seconds that work takes by a clock, and its result."""
    begin = clock()
    result = work()
    return clock() - begin, result


def median_time(work: Callable[[], Any], runs: int = 5, budget_s: float = 2.0) -> tuple[float, Any]:
    """Median seconds of as many runs as fit the budget, at least one, and the last result."""
    times: list[float] = []
    result = None
    while len(times) < runs and (not times or sum(times) < budget_s):
        seconds, result = timed(work)
        times.append(seconds)
    return statistics.median(times), result
