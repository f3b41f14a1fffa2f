"""1,024 and 4,096 servers: rounds against the bound, seconds by part, and peak memory.

    taskset -c 0 python benchmarks/experiments/large_networks.py

Each network has a fresh process, one at a time, so that the peak is its own. Compiled code is
compiled anew where there is no cache of it, so run it twice and keep the second. The 4,096 servers
want 20 GB of free memory; with arguments (``torus:32x32``), only those networks are measured.
"""

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from record import record

import gradweave as gw
from gradweave.schedulers import scheduler as scheduler_module
from gradweave.schedulers import solve as solve_function
from gradweave.schedulers.trees import symmetric as symmetric_module

NETWORKS = ("bcube:n=32,k=1", "torus:32x32", "bcube:n=64,k=1", "torus:64x64")
SEED = 0


class Clock:
    """Adds up the seconds that wrapped functions take."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def wrap(self, work: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **options: Any) -> Any:
            begin = time.perf_counter()
            try:
                return work(*arguments, **options)
            finally:
                self.seconds += time.perf_counter() - begin

        return timed


def peak_gb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def measure(spec: str) -> dict[str, Any]:
    """What one network takes, in this process."""
    began = time.perf_counter()
    network = gw.topology.from_spec(spec)
    verifying, bounding = Clock(), Clock()
    scheduler_module.verify = verifying.wrap(scheduler_module.verify)
    for module in (symmetric_module, sys.modules[solve_function.__module__]):
        module.free_trees = bounding.wrap(module.free_trees)
    topology_s = time.perf_counter() - began
    started = time.perf_counter()
    solution = gw.solve(network, seed=SEED)
    total_s = time.perf_counter() - started
    return {
        "network": network.name,
        "servers": network.num_servers,
        "transfers": solution.schedule.num_transfers,
        "rounds": solution.rounds,
        "bound": solution.bound.rounds,
        "gap": solution.gap,
        "optimal": solution.optimal,
        "scheduler": gw.schedulers.to_spec(solution.scheduler),
        "schedule_s": total_s - verifying.seconds - bounding.seconds,
        "verify_s": verifying.seconds,
        "bound_s": bounding.seconds,
        "topology_s": topology_s,
        "total_s": total_s,
        "peak_memory_gb": peak_gb(),
    }


def main() -> None:
    if sys.argv[1:2] == ["--measure"]:
        print(json.dumps(measure(sys.argv[2])))
        return
    rows = []
    for spec in sys.argv[1:] or NETWORKS:
        command = [sys.executable, __file__, "--measure", spec]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{spec}: {done.stderr.strip().splitlines()[-1:] or done.returncode}")
        rows.append(json.loads(done.stdout))
        shown = {k: round(v, 3) if isinstance(v, float) else v for k, v in rows[-1].items()}
        print(shown, flush=True)
    if sys.argv[1:]:
        return
    record(
        "large_networks",
        "taskset -c 0 python benchmarks/experiments/large_networks.py",
        seeds=[SEED],
        collective="all_reduce",
        rows=rows,
    )


if __name__ == "__main__":
    main()
