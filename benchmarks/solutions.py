"""What experiments record of a solution, and how long it took to find."""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import gradweave as gw
from benchmarks.timing import timed
from gradweave.schedulers import to_spec


def _timing(solution: gw.Solution) -> Any:
    assert solution.timing is not None, "only where the objective is seconds"
    return solution.timing


FIGURES: dict[str, Callable[[gw.Solution], Any]] = {
    "network": lambda one: one.schedule.topology.name,
    "servers": lambda one: one.schedule.topology.num_servers,
    "switches": lambda one: len(one.schedule.topology.switches),
    "links": lambda one: one.schedule.topology.num_links,
    "transfers": lambda one: one.schedule.num_transfers,
    "pieces": lambda one: one.schedule.pieces,
    "rounds": lambda one: one.rounds,
    "bound": lambda one: one.rounds_bound.rounds,
    "bound_kind": lambda one: one.rounds_bound.kind,
    "optimal": lambda one: one.optimal,
    "ms": lambda one: 1e3 * _timing(one).seconds,
    "least_ms": lambda one: 1e3 * _timing(one).bound.seconds,
    "gap": lambda one: (one.timing or one).gap,
    "scheduler": lambda one: to_spec(one.scheduler),
    "winner": lambda one: to_spec(one.scheduler),
}
"""By the name that a row has: of the objective, where it is seconds, `gap` is of those."""


def figures(solution: gw.Solution, *names: str) -> dict[str, Any]:
    """Some of `FIGURES`, as a row has them."""
    return {name: FIGURES[name](solution) for name in names}


def solved(
    network: gw.Topology | str, clock: Callable[[], float] = time.process_time, **options: Any
) -> tuple[float, gw.Solution]:
    """Seconds that `gradweave.solve` takes by a clock, and what it finds."""
    return timed(lambda: gw.solve(network, **options), clock)


def spread(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The mean and the worst of gaps, and of the seconds that searches took."""
    gaps, seconds = ([row[key] for row in rows] for key in ("gap", "seconds"))
    return {
        "mean_gap": statistics.mean(gaps),
        "worst_gap": max(gaps),
        "mean_seconds": statistics.mean(seconds),
        "slowest_seconds": max(seconds),
    }
