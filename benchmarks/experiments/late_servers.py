"""All-reduces for which a server is ready late: planned for it, beside schedules that do not know.

    taskset -c 0 python benchmarks/experiments/late_servers.py

Of eight servers one or two are late by a part of the least time that the intact all-reduce takes.
`gradweave.solve` with ``objective="seconds"`` and `ready_at_s`, all strategies; beside it the same
search without, its schedule played with the late server, and what waiting for it would take. The
bound for late servers; what the packed trees take where nothing waits says whether a gap is the
bound's or the schedule's. One core; seconds of the search are processor time, after compilation.
"""

import dataclasses
import functools
from typing import Any

import numpy as np

import gradweave as gw
from benchmarks.experiment import Case, Rows, run
from benchmarks.solutions import figures, solved
from gradweave.bounds import least_seconds
from gradweave.schedulers.packing.straggler_packing import pack_straggler_trees
from gradweave.topology import Topology

SIZE = 1e9
CASES: tuple[tuple[str, float | None, tuple[int, ...], float], ...] = (
    # network, speed of server 1, servers that are late, by which part of the intact time
    ("star:8", None, (0,), 0.5),
    ("complete:8", None, (0,), 0.5),
    ("ring:8", None, (0,), 0.5),
    ("star:8", 0.5, (0,), 0.5),
    ("star:8", 0.5, (1,), 0.5),
    ("star:8", None, (0,), 0.25),
    ("star:8", None, (0,), 1.0),
    ("star:8", None, (0, 1), 0.5),
    ("hypercube:3", None, (0,), 0.5),
    ("mesh:2x4", None, (0,), 0.5),
)


def network_of(spec: str, speed: float | None) -> Topology:
    network = gw.topology.from_spec(spec)
    if speed is None:
        return network
    bandwidth = network.bandwidth_bytes_per_s.copy()
    bandwidth[(network.source == 1) | (network.target == 1)] *= speed
    return dataclasses.replace(network, bandwidth_bytes_per_s=bandwidth)


IN_SECONDS: dict[str, Any] = {"objective": "seconds", "gradient_bytes": SIZE}


@functools.cache
def unaware_of(network: str, speed: float | None) -> Any:
    return gw.solve(network_of(network, speed), **IN_SECONDS)


def cases() -> list[Case]:
    names = ("network", "speed_of_server_1", "late", "late_by")
    return [dict(zip(names, case, strict=True)) for case in CASES]


def measure(
    network: str, speed_of_server_1: float | None, late: tuple[int, ...], late_by: float
) -> dict[str, Any]:
    unaware = unaware_of(network, speed_of_server_1)
    topology = network_of(network, speed_of_server_1)
    intact = least_seconds(topology, SIZE).seconds
    ready = np.zeros(topology.num_servers)
    ready[list(late)] = late_by * intact
    search_s, planned = solved(topology, ready_at_s=ready, **IN_SECONDS)
    assert planned.timing is not None
    bound = planned.timing.bound.seconds
    trees_s = pack_straggler_trees(topology, SIZE, ready, spread=False).seconds_per_byte * SIZE
    rooted = np.bincount(
        topology.rank[planned.schedule.root], planned.schedule.share, topology.num_servers
    )
    waiting_s = float(ready.max()) + unaware.timing.seconds
    return {
        "late_ms": 1e3 * float(ready.max()),
        "intact_bound_ms": 1e3 * intact,
        "bound_ms": 1e3 * bound,
        "why": str(planned.timing.bound),
        "packed_trees_over_bound": trees_s / bound - 1,
        **figures(planned, "ms", "gap", "pieces"),
        "winner": planned.scheduler.name,
        "late_servers_root": float(rooted[list(late)].sum()),
        "unaware_ms": 1e3
        * gw.simulator.seconds(unaware.schedule, SIZE, "events", ready_at_s=ready),
        "waiting_ms": 1e3 * waiting_s,
        "search_s": search_s,
    }


if __name__ == "__main__":
    run(
        __doc__,
        Rows(cases, measure),
        warm=lambda: solved("ring:3", ready_at_s=[0.01, 0.0, 0.0], **IN_SECONDS),
        seeds=[0],
        gradient_bytes=SIZE,
    )
