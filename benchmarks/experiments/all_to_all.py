"""All-to-all: how near plans come to the certified bound.

taskset -c 1 python benchmarks/experiments/all_to_all.py

Three parts, one after the other. *Plans*: 1 GB a server on networks of up to 64 servers, in rounds,
messages in four parts each, and in seconds, in as many parts as take least. *Large*: the same in
seconds on networks of about 512 servers, verified, and the exact bound of their flows' lengths.
*Skewed*: sizes by Zipf's law with some servers preferred, planned first, and again after all sizes
have changed by 30% or so, five times, from the first plan: the median of the times of those, and
the largest gap. Times are of the processor, on one core, after a first run of everything, since
compiling does not count; of plans, they are without the exact bound.
"""

import resource
import time
from typing import Any

import networkx as nx
import numpy as np
from numpy.typing import NDArray

import gradweave as gw
from benchmarks.experiment import Rows, grid, run
from gradweave.bounds.prices import Unit
from gradweave.schedulers import plan_unicast
from gradweave.schedules import collective

GB = 10**9
PLANS = (
    "ring:16",
    "torus:4x4",
    "torus:8x8",
    "torus:4x4x4",
    "mesh:4x4",
    "mesh:8x8",
    "mesh:4x4x4",
    "hypercube:dimension=4",
    "hypercube:dimension=6",
    "bcube:n=4,k=1",
    "bcube:n=8,k=1",
    "bcube:n=4,k=2",
    "dcell:n=4,k=1",
    "dcell:n=6,k=1",
    "fat_tree:k=4",
    "fat_tree:k=6",
    "dragonfly:groups=5,routers_per_group=4,servers_per_router=2,global_links=1",
    "dragonfly:groups=9,routers_per_group=4,servers_per_router=1,global_links=2",
)
LARGE = (
    "torus:8x8x8",
    "mesh:8x8x8",
    "hypercube:dimension=9",
    "bcube:n=8,k=2",
    "dcell:n=22,k=1",
    "fat_tree:k=12",
    "dragonfly:groups=9,routers_per_group=8,servers_per_router=7,global_links=1",
    "random regular",
    "random regular, links 1 to 10",
)
SKEWED = ("torus:8x8", "mesh:8x8", "hypercube:dimension=6", "star:64")
PARTS = 4
UNITS: tuple[Unit, ...] = ("rounds", "seconds")
AGAIN = 5
SEED = 0


def regular(unequal: bool, servers: int = 512, degree: int = 6) -> gw.topology.Topology:
    """A random regular graph, links of 1 GB/s or evenly drawn from 1 to 10 GB/s."""
    graph = nx.random_regular_graph(degree, servers, seed=SEED + 1)
    links = np.array(graph.edges)
    drawn = np.random.default_rng(SEED + 2).uniform(1, 10, len(links))
    return gw.topology.Topology.from_links(
        "random regular, links 1 to 10" if unequal else "random regular",
        servers=servers,
        switches=0,
        links=links,
        bandwidth_bytes_per_s=(drawn if unequal else np.ones(len(links))) * 1e9,
    )


def network_of(name: str) -> gw.topology.Topology:
    """The network of that name here."""
    if name.startswith("random regular"):
        return regular(name.endswith("10"))
    return gw.topology.from_spec(name)


def plan_of(network: str, unit: Unit) -> tuple[gw.topology.Topology, Any, float]:
    """The network, its plan (in rounds messages have `PARTS` parts), and when planning began."""
    topology = network_of(network)
    demand = collective("all_to_all", topology.servers, GB)
    began = time.process_time()
    pieces = PARTS if unit == "rounds" else None
    return topology, plan_unicast(topology, demand, unit, pieces=pieces, seed=SEED), began


def about(topology: gw.topology.Topology, plan: Any) -> dict[str, Any]:
    return {
        "servers": topology.num_servers,
        "time": plan.time,
        "bound": plan.least,
        "gap": plan.gap,
        "transfers": plan.schedule.num_transfers,
    }


def planned(network: str, unit: Unit) -> dict[str, Any]:
    """A schedule for a network of up to 64 servers."""
    topology, plan, began = plan_of(network, unit)
    return about(topology, plan) | {"processor_s": time.process_time() - began}


def large(network: str) -> dict[str, Any]:
    """A schedule for a network of about 512 servers, and its certificate."""
    topology, plan, began = plan_of(network, "seconds")
    ended = time.process_time()
    row = about(topology, plan) | {"flow_gap": max(plan.flow.gap, 0.0)}
    return row | {
        "processor_s": ended - began,
        "certificate_s": time.process_time() - ended,
        "memory_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
    }


def zipf(servers: int) -> NDArray[np.int64]:
    """[N, N] bytes: by Zipf's law in an order of each sender's own, and in one that all share."""
    rng = np.random.default_rng(SEED)
    law = 1 / np.arange(1, servers + 1)
    share = 0.3 * np.array([rng.permutation(law) for _ in range(servers)]) + 0.7 * rng.permutation(
        law
    )
    np.fill_diagonal(share, 0)
    sizes = np.maximum(share / share.sum(axis=1, keepdims=True) * GB, 1).astype(np.int64)
    np.fill_diagonal(sizes, 0)
    return sizes


def skewed(network: str) -> dict[str, Any]:
    """A plan of skewed sizes, and plans from this one for sizes that have changed."""
    topology = network_of(network)
    sizes = zipf(topology.num_servers)
    began = time.process_time()
    plan = plan_unicast(topology, collective("all_to_all", topology.servers, sizes), seed=SEED)
    first_s = time.process_time() - began
    again_s, gaps = [], []
    for number in range(AGAIN):
        rng = np.random.default_rng(SEED + 1 + number)
        changed = np.maximum(sizes * rng.lognormal(0, 0.3, sizes.shape), 1).astype(np.int64)
        np.fill_diagonal(changed, 0)
        after = collective("all_to_all", topology.servers, changed)
        began = time.process_time()
        again = plan_unicast(topology, after, known=plan, seed=SEED)
        again_s.append(time.process_time() - began)
        gaps.append(again.gap)
    return {
        "servers": topology.num_servers,
        "gap": plan.gap,
        "transfers": plan.schedule.num_transfers,
        "first_s": first_s,
        "again_gap": max(gaps),
        "again_s": float(np.median(again_s)),
        "again_most_s": max(again_s),
    }


def warm() -> None:
    for unit in UNITS:
        plan_unicast("torus:3x3", collective("all_to_all", range(9), GB), unit)
    plan_unicast(
        "leaf_spine:leaves=3,spines=2,servers_per_leaf=3", collective("all_to_all", range(9), GB)
    )
    for name in ("torus:3x3", "star:9"):
        plan = plan_unicast(name, collective("all_to_all", range(9), zipf(9)))
        sizes = collective("all_to_all", range(9), zipf(9))
        plan_unicast(plan.schedule.topology, sizes, known=plan)


def summary(unit: str, plans: list[dict[str, Any]]) -> dict[str, Any]:
    gaps = [row["gap"] for row in plans if row["unit"] == unit]
    return {"unit": unit, "mean_gap": float(np.mean(gaps)), "worst_gap": float(np.max(gaps))}


if __name__ == "__main__":
    run(
        __doc__,
        Rows(grid(network=SKEWED), skewed, "skewed"),
        Rows(grid(network=PLANS, unit=UNITS), planned, "plans"),
        Rows(grid(network=LARGE), large, "large"),
        warm=warm,
        finish=lambda _, plans, __: {"summaries": [summary(unit, plans) for unit in UNITS]},
        seeds=[SEED],
    )
