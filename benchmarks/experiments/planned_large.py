"""128 servers whose links differ: how near `planned` comes to the bound in a second.

    taskset -c 0 python benchmarks/experiments/planned_large.py

Racks, fat trees and wide areas of unequal_scale.py, tori with sixteen slowed links and random
graphs, two of each from the seed below, 256 MB, with an effort of 1 s and with the default one of
50 ms; beside them the even plan in 1 s and the ring of all servers in order of id. Gaps are to the
certified bound, seconds are of processor time, after compilation.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import networkx as nx
import numpy as np

import gradweave as gw
from benchmarks.experiment import Rows, grid, run
from benchmarks.experiments.unequal_scale import KINDS, NEAR_MS
from benchmarks.timing import timed
from benchmarks.unequal_networks import GBIT, network
from gradweave.bounds import least_seconds
from gradweave.schedulers import Planned, Ring
from gradweave.schedulers.greedy.decoding import EFFORT_S
from gradweave.simulator import seconds
from gradweave.topology import Topology
from gradweave.topology.faults import slowed

SEED, EACH, SERVERS, SIZE, EFFORT = 2045, 2, 128, 256e6, 1.0
SLOWED = 16


def torus(servers: int, rng: np.random.Generator) -> Topology:
    """A torus with a few links at a quarter, a half or three quarters of their speed."""
    made = gw.topology.from_spec(f"torus:8x{servers // 8}")
    ends = zip(made.source.tolist(), made.target.tolist(), strict=True)
    links = [pair for pair in ends if pair[0] < pair[1]]
    chosen = rng.permutation(len(links))[:SLOWED].tolist()
    return slowed(made, {links[i]: float(rng.choice([0.25, 0.5, 0.75])) for i in chosen}).topology


def random_graph(servers: int, rng: np.random.Generator) -> Topology:
    """A connected graph of degree 3; bandwidths of 1 to 100 Gbit/s."""
    order = rng.permutation(servers).tolist()
    graph = nx.Graph((order[i], order[int(rng.integers(i))]) for i in range(1, servers))
    while graph.number_of_edges() < 1.5 * servers:
        graph.add_edge(*rng.choice(servers, 2, replace=False).tolist())
    links = [
        (a, b, NEAR_MS, float(100 ** rng.random()) * GBIT)
        for a, b in sorted(map(sorted, graph.edges))
    ]
    return network(f"random graph of {servers}, {len(links)} links", servers, 0, links)


MADE: dict[str, Callable[[int, np.random.Generator], Topology]] = {
    **KINDS,
    "torus": torus,
    "random graph": random_graph,
}
PLANS = {
    "planned": Planned(gradient_bytes=SIZE, effort=EFFORT),
    "default": Planned(gradient_bytes=SIZE),
    "even": Planned(gradient_bytes=SIZE, effort=EFFORT, plan="even"),
}


def measure(number: int, kind: str) -> dict[str, Any]:
    return gaps(MADE[kind](SERVERS, np.random.default_rng([SEED, number])))


def gaps(topology: Topology) -> dict[str, Any]:
    """Gaps and seconds of one network."""
    least = least_seconds(topology, SIZE)
    row: dict[str, Any] = {
        "network": topology.name,
        "latency_share": least.latency_s / least.seconds,
    }
    for name, plan in PLANS.items():
        row[f"{name}_s"], found = timed(lambda plan=plan: plan.decode(topology), time.process_time)
        row[name] = found.seconds / least.seconds - 1
        row[f"{name}_trees"] = len(found.grove.root)
    row["ring"] = seconds(Ring().schedule(topology), SIZE, "events") / least.seconds - 1
    return row


if __name__ == "__main__":
    run(
        __doc__,
        Rows(grid(number=range(EACH), kind=MADE), measure),
        warm=lambda: [gaps(gw.topology.from_spec(spec)) for spec in ("star:5", "ring:5")],
        finish=lambda rows: {
            "means": {
                name: statistics.mean(row[name] for row in rows)
                for name in (*PLANS, "ring", *(f"{name}_s" for name in PLANS))
            }
        },
        seeds=[SEED],
        efforts_s=[EFFORT, EFFORT_S],
    )
