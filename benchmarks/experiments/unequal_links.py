"""All-gathers on links of unequal bandwidth and latency: time beside the least possible.

    taskset -c 0 python benchmarks/experiments/unequal_links.py

`gradweave.solve` with ``objective="seconds"`` and its defaults: two meshes whose dimensions differ
in bandwidth, twenty whose links all do (over a decade, latencies of 1 to 50 µs, 1 GiB), and
machines with fast links inside and slow ones between, at 100 MB and 1 GB. One core, after
compilation. Seconds of the search are processor time.
"""

import statistics
from typing import Any

import numpy as np

import gradweave as gw
from benchmarks.experiment import Case, Row, Rows, grid, run
from benchmarks.solutions import figures, solved
from gradweave.topology import Link, Topology

GIB = 2.0**30
RANDOM = 20
SEED = 0
MACHINES = ("a100", "a100:boxes=2", "a100:boxes=4", "a100:boxes=8", "mi250", "torus:4x2x3")
GREEDY_MS = {"mesh 7x10, 16 and 73 GiB/s": 44.6, "mesh 8x5, 80 and 35 GiB/s": 8.60}
"""What a public greedy synthesizer takes, where it was run."""


def mesh_links(rows: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Links along rows, and those along columns."""
    node = np.arange(rows * columns).reshape(rows, columns)
    across = np.stack([node[:, :-1].ravel(), node[:, 1:].ravel()], axis=1)
    return across, np.stack([node[:-1].ravel(), node[1:].ravel()], axis=1)


def two_speed_mesh(rows: int, columns: int, across: int, down: int) -> Topology:
    links = mesh_links(rows, columns)
    pairs = np.concatenate(links)
    return Topology.from_links(
        f"mesh {rows}x{columns}, {across} and {down} GiB/s",
        servers=rows * columns,
        switches=0,
        links=pairs,
        bandwidth_bytes_per_s=np.repeat([across * GIB, down * GIB], [len(one) for one in links]),
        link=Link(latency_s=1e-6),
        capacity=[1] * len(pairs),
    )


def random_mesh(seed: int) -> Topology:
    rng = np.random.default_rng([2029, seed])
    rows, columns = (int(rng.integers(3, 9)) for _ in range(2))
    pairs = np.concatenate(mesh_links(rows, columns))
    bandwidth, latency = 10e9 * 10 ** rng.random(len(pairs)), rng.uniform(1e-6, 50e-6, len(pairs))
    return Topology(
        name=f"mesh {rows}x{columns}, links at random ({seed})",
        is_server=np.ones(rows * columns, bool),
        source=np.concatenate([pairs[:, 0], pairs[:, 1]]),
        target=np.concatenate([pairs[:, 1], pairs[:, 0]]),
        bandwidth_bytes_per_s=np.tile(bandwidth, 2),
        latency_s=np.tile(latency, 2),
        capacity=np.ones(2 * len(pairs), np.int64),
    )


def cases() -> list[Case]:
    machines = map(gw.topology.from_spec, MACHINES)
    slow, fast = two_speed_mesh(7, 10, 16, 73), two_speed_mesh(8, 5, 80, 35)
    return [
        {"kind": "two speeds", "network": slow, "gradient_bytes": 4 * GIB},
        {"kind": "two speeds", "network": fast, "gradient_bytes": GIB},
        *grid(kind=["random"], network=map(random_mesh, range(RANDOM)), gradient_bytes=[GIB]),
        *grid(kind=["machines"], network=machines, gradient_bytes=(1e8, 1e9)),
    ]


def measure(network: Topology, gradient_bytes: float, **_: Any) -> dict[str, Any]:
    seconds, solution = solved(
        network,
        collective="all_gather",
        objective="seconds",
        gradient_bytes=gradient_bytes,
        seed=SEED,
    )
    return {
        **figures(solution, "servers", "ms", "least_ms", "gap", "winner"),
        "greedy_ms": GREEDY_MS.get(network.name),
        "seconds": seconds,
        "pieces_per_server": solution.schedule.pieces // network.num_servers,
        "ms_by_strategy": {
            one.scheduler.name: one.seconds and 1e3 * one.seconds for one in solution.attempts
        },
    }


def finish(rows: list[Row]) -> Row:
    gaps = {
        kind: [row["gap"] for row in rows if row["kind"] == kind]
        for kind in ("two speeds", "random", "machines")
    }
    return {
        "mean_gap": {kind: statistics.mean(of_kind) for kind, of_kind in gaps.items()},
        "worst_gap": {kind: max(of_kind) for kind, of_kind in gaps.items()},
    }


if __name__ == "__main__":
    run(
        __doc__,
        Rows(cases, measure),
        warm=lambda: measure(random_mesh(0), 1e6),
        finish=finish,
        seeds=[SEED],
    )
