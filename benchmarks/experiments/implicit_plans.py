"""Implicit schedules of 1,024 to 1,048,576 servers: rounds, processor time, file and memory.

    python benchmarks/experiments/implicit_plans.py

Each network is measured in a new process, one at a time, for its own peak memory. Where no compiled
code is cached, the first run includes compilation: run it twice and keep the second. With
`--only torus:32x32`, only that network is measured.
"""

import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import gradweave as gw
from benchmarks.experiment import Rows, grid, run
from gradweave.schedules import load_implicit

NETWORKS = (
    *("torus:32x32", "torus:32x32x16", "torus:64x32x32", "torus:64x128x128"),
    *("bcube:n=32,k=1", "bcube:n=16,k=3", "bcube:n=30,k=3"),
    *("fat_tree:k=16", "fat_tree:k=64", "hypercube:dimension=16"),
    *(f"h100:boxes={boxes},rails=8" for boxes in (128, 8192, 32768)),
)


def measure(network: str) -> dict[str, Any]:
    """Measures one network in this process, in seconds of processor time."""
    gw.verify(gw.schedulers.implicit("torus:4x4"))  # loads the compiled loop
    spent = [time.process_time()]
    topology = gw.topology.from_spec(network)
    spent.append(time.process_time())
    plan = gw.schedulers.implicit(topology)
    spent.append(time.process_time())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "plan.json.gz")
        plan.save(path)
        size = path.stat().st_size
        spent.append(time.process_time())
        read = load_implicit(path)
    spent.append(time.process_time())
    verdict = gw.verify(read)
    spent.append(time.process_time())
    if not verdict.valid or plan.bound is None:
        raise SystemExit(f"{network}: {verdict}")
    ranks = [1, topology.num_servers // 2, topology.num_servers - 1]
    plan.of_rank(0)
    begun = time.process_time()
    for rank in ranks:
        plan.of_rank(rank)
    rank_s = (time.process_time() - begun) / len(ranks)
    names = ("network_s", "plan_s", "write_s", "read_s", "verify_s")
    return {
        "servers": topology.num_servers,
        "transfers": plan.num_transfers,
        "rounds": plan.rounds,
        "bound": plan.bound.rounds,
        **{name: spent[i + 1] - spent[i] for i, name in enumerate(names)},
        "total_s": spent[2] - spent[0],
        "rank_s": rank_s,
        "file_bytes": size,
        "peak_memory_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9,
    }


if __name__ == "__main__":
    run(__doc__, Rows(grid(network=NETWORKS), measure), alone=True, collective="all_reduce")
