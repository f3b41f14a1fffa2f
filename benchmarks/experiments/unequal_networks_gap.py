"""60 networks whose links differ, 256 MB and 4 GB: time beside the least possible, and why.

    taskset -c 0 python benchmarks/experiments/unequal_networks_gap.py

Networks of benchmarks/unequal_networks.py: racks with thin trunks, slowed links, random graphs,
wide areas, boxes with network cards, two halves. `gradweave.solve` with ``objective="seconds"`` and
its defaults; beside its time the best of those strategies in the same search whose pieces are of
one size, with as many for each server. Each network in a process of its own, one core; seconds of
the search are processor time, after compilation.
"""

import statistics
from typing import Any

import gradweave as gw
from benchmarks.experiment import Rows, grid, run
from benchmarks.experiments.anytime import warm
from benchmarks.solutions import figures, solved, spread
from benchmarks.unequal_networks import COUNT, by_kind, unequal_network

SEED = 0
SIZES = (256e6, 4e9)
LIMIT_S = 120.0
"""Of one search."""


def measure(topology: gw.Topology, size: float) -> dict[str, Any]:
    seconds, solution = solved(
        topology, objective="seconds", gradient_bytes=size, seed=SEED, time_limit=LIMIT_S
    )
    timing = solution.timing
    assert timing is not None
    least = timing.bound
    equal_s = min(
        one.seconds
        for one in solution.attempts
        if one.seconds is not None and not one.scheduler.traits.own_pieces
    )
    return {
        **figures(solution, "network", "servers", "links", "ms", "least_ms", "gap", "winner"),
        **figures(solution, "pieces", "transfers"),
        "gradient_bytes": size,
        "latency_ms": 1e3 * least.latency_s,
        "bandwidth_ms": 1e3 * least.bandwidth_s,
        "latency_share": least.latency_s / least.seconds,
        "seconds": seconds,
        "limited": solution.wall_s >= LIMIT_S,
        "equal_gap": equal_s / least.seconds - 1,
    }


def measure_both(seed: int) -> list[dict[str, Any]]:
    """One network, both sizes."""
    kind, topology = unequal_network(seed)
    return [{"kind": kind} | measure(topology, size) for size in SIZES]


def summary(name: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    equal = [row["equal_gap"] for row in rows]
    return {
        "rows": name,
        "count": len(rows),
        "over_3_percent": sum(row["gap"] > 0.03 for row in rows),
        "over_10_percent": sum(row["gap"] > 0.1 for row in rows),
        "mean_equal_gap": statistics.mean(equal),
        "worst_equal_gap": max(equal),
        **spread(rows),
    }


if __name__ == "__main__":
    run(
        __doc__,
        Rows(grid(seed=range(COUNT)), measure_both),
        warm=warm,
        alone=True,
        finish=lambda rows: {"summaries": [summary(name, group) for name, group in by_kind(rows)]},
        seeds=[SEED],
        limit_s=LIMIT_S,
    )
