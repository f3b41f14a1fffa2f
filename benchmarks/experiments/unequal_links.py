"""All-gathers on links of unequal bandwidth and latency: time beside the least possible.

    taskset -c 0 python benchmarks/experiments/unequal_links.py

`gradweave.solve` with ``objective="seconds"`` and its defaults: two meshes whose dimensions differ
in bandwidth, twenty whose links all do (over a decade, latencies of 1 to 50 µs, 1 GiB), and
machines with fast links inside and slow ones between, at 100 MB and 1 GB. One core, after
compilation. Seconds of the search are processor time.
"""

import statistics
from collections.abc import Iterator
from typing import Any

import numpy as np

import gradweave as gw
from benchmarks.command_line import parser_of
from benchmarks.record import printed, record
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


def cases() -> Iterator[tuple[str, Topology, float]]:
    yield "two speeds", two_speed_mesh(7, 10, 16, 73), 4 * GIB
    yield "two speeds", two_speed_mesh(8, 5, 80, 35), GIB
    for seed in range(RANDOM):
        yield "random", random_mesh(seed), GIB
    for spec in MACHINES:
        for gradient_bytes in (1e8, 1e9):
            yield "machines", gw.topology.from_spec(spec), gradient_bytes


def measure(network: Topology, gradient_bytes: float) -> dict[str, Any]:
    seconds, solution = solved(
        network,
        collective="all_gather",
        objective="seconds",
        gradient_bytes=gradient_bytes,
        seed=SEED,
    )
    return {
        **figures(solution, "network", "servers", "ms", "least_ms", "gap", "winner"),
        "gradient_bytes": gradient_bytes,
        "greedy_ms": GREEDY_MS.get(network.name),
        "seconds": seconds,
        "pieces_per_server": solution.schedule.pieces // network.num_servers,
        "ms_by_strategy": {
            one.scheduler.name: one.seconds and 1e3 * one.seconds for one in solution.attempts
        },
    }


def main() -> None:
    parser_of(__doc__).parse_args()
    measure(random_mesh(0), 1e6)  # compiles
    rows = printed(
        {"kind": kind} | measure(network, gradient_bytes)
        for kind, network, gradient_bytes in cases()
    )
    gaps = {
        kind: [row["gap"] for row in rows if row["kind"] == kind]
        for kind in ("two speeds", "random", "machines")
    }
    record(
        "unequal_links",
        seeds=[SEED],
        mean_gap={kind: statistics.mean(of_kind) for kind, of_kind in gaps.items()},
        worst_gap={kind: max(of_kind) for kind, of_kind in gaps.items()},
        rows=rows,
    )


if __name__ == "__main__":
    main()
