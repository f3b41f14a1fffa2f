"""1,024 to 16,384 servers: rounds against the bound, seconds by part, and peak memory.

    python benchmarks/experiments/large_networks.py

Each network is measured in a new process, one at a time, for its own peak memory. Where no compiled
code is cached, the first run includes compilation: run it twice and keep the second. 16,384 servers
need 12 GB of free memory; with `--only torus:32x32`, only those networks are measured.
"""

import resource
import time
from collections.abc import Callable
from typing import Any

import gradweave as gw
from benchmarks.experiment import Rows, grid, run
from benchmarks.solutions import figures, solved
from gradweave.schedulers import scheduler as scheduler_module
from gradweave.schedulers.solving import solution as solution_module
from gradweave.schedulers.trees import symmetric

NETWORKS = (
    *("bcube:n=32,k=1", "torus:32x32"),
    *("bcube:n=64,k=1", "torus:64x64"),
    *("bcube:n=128,k=1", "torus:128x128"),
)
SEED = 0


class Clock:
    """Total seconds of wrapped functions."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def wrap(self, work: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **options: Any) -> Any:
            begin = time.perf_counter()
            try:
                return work(*arguments, **options)
            finally:
                self.seconds += time.perf_counter() - begin

        return wrapped


def peak_gb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def measure(network: str) -> dict[str, Any]:
    """Measures one network in this process."""
    topology = gw.topology.from_spec(network)
    verifying, bounding = Clock(), Clock()
    scheduler_module.verify = verifying.wrap(scheduler_module.verify)
    for module in (symmetric, solution_module):
        module.free_trees = bounding.wrap(module.free_trees)
    spent = time.process_time()
    total_s, solution = solved(topology, time.perf_counter, seed=SEED)
    names = ("servers", "transfers", "rounds", "bound", "gap", "optimal", "scheduler")
    return {
        **figures(solution, *names),
        "schedule_s": total_s - verifying.seconds - bounding.seconds,
        "verify_s": verifying.seconds,
        "bound_s": bounding.seconds,
        "total_s": total_s,
        "processor_s": time.process_time() - spent,
        "peak_memory_gb": peak_gb(),
    }


if __name__ == "__main__":
    run(
        __doc__,
        Rows(grid(network=NETWORKS), measure),
        alone=True,
        seeds=[SEED],
        collective="all_reduce",
    )
