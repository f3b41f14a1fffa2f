"""128, 256 and 512 servers whose links differ: gap, processor time and peak memory.

    python benchmarks/experiments/unequal_scale.py

`gradweave.solve` with ``objective="seconds"``, its defaults and a time limit of 120 s, 256 MB, on
racks with thin trunks that differ, a fat tree with slowed links, and boxes of eight GPUs joined by
a wide area; beside the ring of all servers in order of id and `hierarchical` in one chunk and one
order. The limit is of processor time, compilation left out; each network has a process of its own,
for its own peak memory. ``gap`` is over the certified bound. Each row is kept as soon as it is
measured.
"""

import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import networkx as nx
import numpy as np

import gradweave as gw
from benchmarks.experiment import Rows, grid, run
from benchmarks.solutions import figures, solved
from benchmarks.unequal_networks import GBIT, network
from gradweave.common import clock
from gradweave.errors import GradweaveError
from gradweave.schedulers import Hierarchical, Ring
from gradweave.simulator import seconds
from gradweave.topology import Topology
from gradweave.topology.faults import slowed

SIZES = (128, 256, 512)
GRADIENT_BYTES = 256e6
TIME_LIMIT_S = 120.0
SEED = 0
NEAR_MS = 0.002
"""Latency of a link inside a data centre."""


def racks(servers: int, rng: np.random.Generator) -> Topology:
    """Racks of 16 on a switch each, one core; trunks of a half to a sixth of the rack's speed."""
    each, rate = 16, 100 * GBIT
    count = servers // each
    links = [(s, servers + s // each, NEAR_MS, rate) for s in range(servers)]
    excess = rng.choice([2.0, 3.0, 4.0, 6.0], count)
    links += [
        (servers + r, servers + count, NEAR_MS, rate * each / float(excess[r]))
        for r in range(count)
    ]
    return network(f"{count} racks of {each}, trunks 2:1 to 6:1", servers, count + 1, links)


def fat_tree(servers: int, rng: np.random.Generator) -> Topology:
    """A fat tree of 16-port switches with as many pods of 64 as are needed, links slowed.

    One in sixteen links between switches is at a quarter, a half or three quarters of its speed.
    """
    half, rate = 8, 100 * GBIT
    pods = servers // half**2
    edge, aggregation, core = servers, servers + pods * half, servers + 2 * pods * half
    links = [(s, edge + s // half, NEAR_MS, rate) for s in range(servers)]
    up = []
    for pod in range(pods):
        for a in range(half):
            above = aggregation + pod * half + a
            up += [(edge + pod * half + b, above) for b in range(half)]
            up += [(above, core + a * half + b) for b in range(half)]
    links += [(low, high, NEAR_MS, rate) for low, high in up]
    made = network(f"fat tree of {pods} pods", servers, 2 * pods * half + half**2, links)
    chosen = rng.permutation(len(up))[: len(up) // 16].tolist()
    return slowed(made, {up[i]: float(rng.choice([0.25, 0.5, 0.75])) for i in chosen}).topology


def wide_area(servers: int, rng: np.random.Generator) -> Topology:
    """Boxes of eight on a switch, each at a site joined to its nearest two or three.

    Links between sites have 10 to 100 Gbit/s and 1 ms for each tenth of the map's width.
    """
    count = servers // 8
    at = rng.random((count, 2))
    graph = nx.Graph()
    for site in range(count):
        near = np.argsort(np.hypot(*(at - at[site]).T), kind="stable")
        graph.add_edges_from((site, int(o)) for o in near[1 : 1 + int(rng.integers(2, 4))])
    while not nx.is_connected(graph):
        first, second = [sorted(part) for part in nx.connected_components(graph)][:2]
        graph.add_edge(first[0], second[0])
    links = [(s, servers + s // 8, NEAR_MS, 2400 * GBIT) for s in range(servers)]
    links += [
        (servers + a, servers + b, 10 * float(np.hypot(*(at[a] - at[b]))), rate * GBIT)
        for a, b in sorted(map(sorted, graph.edges))
        for rate in [float(10 * 10 ** rng.random())]
    ]
    return network(f"{count} boxes of 8, a wide area", servers, count, links)


KINDS: dict[str, Callable[[int, np.random.Generator], Topology]] = {
    "racks": racks,
    "fat tree": fat_tree,
    "wide area": wide_area,
}


def warm() -> None:
    small = racks(32, np.random.default_rng(0))
    gw.solve(small, objective="seconds", gradient_bytes=1e6, time_limit=10)


def measure(kind: str, servers: int) -> dict[str, Any]:
    topology = KINDS[kind](servers, np.random.default_rng([33, servers]))
    used_s, solution = solved(
        topology,
        clock.now,
        objective="seconds",
        gradient_bytes=GRADIENT_BYTES,
        seed=SEED,
        time_limit=TIME_LIMIT_S,
        progress=lambda said: print(f"{time.process_time():7.1f} s: {said}", file=sys.stderr),
    )
    names = ("network", "servers", "switches", "links", "transfers", "ms", "least_ms", "gap")
    peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    return {
        **figures(solution, *names, "winner"),
        "seconds": used_s,
        "limit_s": TIME_LIMIT_S,
        "stopped": solution.stopped,
        "peak_memory_gb": peak_gb,
        **simple(topology),
        "attempts": [
            [gw.schedulers.to_spec(one.scheduler), one.seconds, one.wall_s, one.reason]
            for one in solution.attempts
        ],
    }


def simple(topology: Topology) -> dict[str, float | None]:
    """Milliseconds of the simplest things; None where there are no equal groups."""
    ring = Ring().schedule(topology, seed=SEED)
    one_chunk = Hierarchical(gradient_bytes=GRADIENT_BYTES, chunks=1, orders=1)
    try:
        one_ms = 1e3 * seconds(one_chunk.schedule(topology, seed=SEED), GRADIENT_BYTES, "events")
    except GradweaveError:
        one_ms = None
    return {"ring_ms": 1e3 * seconds(ring, GRADIENT_BYTES, "events"), "one_chunk_ms": one_ms}


if __name__ == "__main__":
    run(
        __doc__,
        Rows(grid(kind=KINDS, servers=SIZES), measure),
        warm=warm,
        alone=True,
        processor_time=True,
        seeds=[SEED],
        gradient_bytes=GRADIENT_BYTES,
    )
