"""All-reduces with shares of the gradient on unequal links: time with and without `packed`.

    taskset -c 0 python benchmarks/experiments/unequal_shares.py

`gradweave.solve` with ``objective="seconds"``: stars with slow servers, meshes and a fat-tree whose
links all differ, boxes of GPUs. With its defaults, and with all of them but `packed`, whose pieces
are of one size with as many for each server. Beside the least time that trees for parts of any size
can take. One core; seconds of the search are processor time, after compilation.
"""

import dataclasses
import statistics
from typing import Any

import numpy as np

import gradweave as gw
from benchmarks.experiment import Case, Rows, grid, run
from benchmarks.solutions import figures, solved
from gradweave.schedulers.solving.portfolio import FOR_SECONDS
from gradweave.topology import Topology

SEED = 0
SIZES = (256e6, 4e9)


def slowed(servers: int, slow: dict[int, float]) -> Topology:
    """A star with some servers at a part of their speed."""
    star = gw.topology.star(servers)
    bandwidth = star.bandwidth_bytes_per_s.copy()
    for server, factor in slow.items():
        bandwidth[(star.source == server) | (star.target == server)] *= factor
    words = ", ".join(f"server {server} at {factor:g}" for server, factor in slow.items())
    return dataclasses.replace(star, bandwidth_bytes_per_s=bandwidth, name=f"star:16, {words}")


def uneven(spec: str, decades: float, seed: int) -> Topology:
    """A network with bandwidths drawn over decades, up to 100 Gbit/s, alike both ways."""
    topology = gw.topology.from_spec(spec)
    drawn = 12.5e9 * 10 ** -(decades * np.random.default_rng(seed).random(len(topology.source)))
    return dataclasses.replace(
        topology,
        bandwidth_bytes_per_s=np.minimum(drawn, drawn[topology.opposite]),
        name=f"{spec}, links over {decades:g} decades",
    )


def cases() -> list[Case]:
    slow = [slowed(16, one) for one in ({0: 7 / 8}, {0: 0.5}, {0: 0.25}, {0: 0.5, 1: 0.5})]
    spread = (("mesh:4x4", 1), ("torus:4x4", 2), ("mesh:6x6", 2), ("fat_tree:4", 1))
    differ = [uneven(spec, decades, SEED) for spec, decades in spread]
    boxes = gw.topology.from_spec("a100:boxes=2")
    return [
        *grid(kind=["slow servers"], network=slow, gradient_bytes=[1e9]),
        *grid(kind=["links that differ"], network=differ, gradient_bytes=SIZES),
        *grid(kind=["boxes"], network=[boxes], gradient_bytes=SIZES),
    ]


def found(network: Topology, size: float, **options: Any) -> dict[str, Any]:
    seconds, solution = solved(
        network, objective="seconds", gradient_bytes=size, seed=SEED, **options
    )
    winner = {"winner": solution.scheduler.name, "seconds": seconds}
    return figures(solution, "ms", "pieces") | winner


def measure(network: Topology, gradient_bytes: float, **_: Any) -> dict[str, Any]:
    size = gradient_bytes
    least = gw.bounds.least_seconds(network, size)
    alike = [one for one in FOR_SECONDS if not one.traits.own_pieces]
    best, before = found(network, size), found(network, size, schedulers=alike)
    return {
        "least_ms": 1e3 * least.seconds,
        "kind_of_bound": least.kind,
        "gap": best["ms"] / (1e3 * least.seconds) - 1,
        "gap_before": before["ms"] / (1e3 * least.seconds) - 1,
        "best": best,
        "before": before,
    }


if __name__ == "__main__":
    run(
        __doc__,
        Rows(cases, measure),
        warm=lambda: found(slowed(4, {0: 0.5}), 1e6),
        finish=lambda rows: {
            "mean_gap": statistics.mean(row["gap"] for row in rows),
            "mean_gap_before": statistics.mean(row["gap_before"] for row in rows),
        },
        seeds=[SEED],
    )
