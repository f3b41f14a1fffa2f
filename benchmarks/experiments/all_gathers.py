"""All-gather rounds against the bound: named networks, and every torus, mesh and hypercube.

    taskset -c 0 python benchmarks/experiments/all_gathers.py

Every torus and every mesh of up to 256 servers with any number of dimensions: sizes of two or more
in ascending order, since their order does not matter; with the hypercubes some 2,500 networks. The
portfolio with seed 0, after compilation. TACOS's figures were measured with TACOS itself on another
two-core machine.
"""

import collections
import math
import time
from collections.abc import Iterator
from typing import Any

import gradweave as gw
from benchmarks.experiment import Rows, run
from benchmarks.solutions import figures, solved

SEED = 0
MAX_SERVERS = 256
NAMED = (
    "mesh:8x8", "torus:5x5", "hypercube:5", "torus:4x4x4", "mesh:3x3", "torus:3x3", "torus:4x4",
    "torus:8x8", "torus:16x16", "mesh:16x16", "mesh:32x32", "hypercube:8", "torus:2x64",
    "mesh:3x50", "mesh:2x2x64", "ring:255",
)  # fmt: skip
TACOS = {"mesh:16x16": 128, "mesh:32x32": 512, "torus:8x8": 17, "torus:16x16": 65, "torus:4x4": 5}
"""Steps of TACOS's all-gather (torus 4x4: median of seeds)."""


def shapes(limit: int) -> list[tuple[int, ...]]:
    """Ascending sizes of two or more whose product is at most a limit."""

    def from_size(product: int, smallest: int) -> Iterator[tuple[int, ...]]:
        for size in range(smallest, limit // product + 1):
            yield (size,)
            for rest in from_size(product * size, size):
                yield (size, *rest)

    return sorted(from_size(1, 2), key=lambda sizes: (math.prod(sizes), sizes))


def measure(network: str, **_: Any) -> dict[str, Any]:
    topology = gw.topology.from_spec(network)
    options = {"collective": "all_gather", "seed": SEED}
    seconds, solution = solved(topology, time.perf_counter, **options)
    found = figures(solution, "servers", "rounds", "bound", "scheduler")
    return {**found, "seconds": round(seconds, 4)}


def summary(family: str, swept: list[dict[str, Any]]) -> dict[str, Any]:
    rows = [row for row in swept if row["family"] == family]
    over = collections.Counter(row["rounds"] - row["bound"] for row in rows)
    return {
        "family": family,
        "networks": len(rows),
        "at_bound": over[0],
        "one_above": over[1],
        "more_above": len(rows) - over[0] - over[1],
        "mean_seconds": sum(row["seconds"] for row in rows) / len(rows),
        "slowest_seconds": max(row["seconds"] for row in rows),
        "slowest": max(rows, key=lambda row: row["seconds"])["network"],
    }


if __name__ == "__main__":
    specs = {
        "torus": ["torus:" + "x".join(map(str, sizes)) for sizes in shapes(MAX_SERVERS)],
        "mesh": ["mesh:" + "x".join(map(str, sizes)) for sizes in shapes(MAX_SERVERS)],
        "hypercube": [f"hypercube:{dimension}" for dimension in range(1, 9)],
    }
    sweep = [{"family": family, "network": spec} for family in specs for spec in specs[family]]
    run(
        __doc__,
        Rows(
            [{"network": spec, "tacos_rounds": TACOS.get(spec)} for spec in NAMED], measure, "named"
        ),
        Rows(sweep, measure, "sweep"),
        warm=lambda: [measure(spec) for spec in ("ring:4", "mesh:2x3x4", "mesh:3x3")],
        finish=lambda _, rows: {"sweep": [summary(family, rows) for family in specs]},
        seeds=[SEED],
        tacos="measured with TACOS itself on another two-core machine",
    )
