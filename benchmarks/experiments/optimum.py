"""The nine networks of the paper's Table 2: seconds to a schedule that meets the bound.

    taskset -c 0 python benchmarks/experiments/optimum.py

The portfolio with five seeds; on Jellyfish each seed is another graph. The stages are those that
the paper counts. After compilation.
"""

import time
from typing import Any

import gradweave as gw
from benchmarks.experiment import Rows, run
from benchmarks.solutions import figures, solved
from gradweave.report import TABLE_2

SEEDS = range(5)
CASES = {case.label: case for case in TABLE_2}


def warm() -> None:
    gw.solve(gw.topology.from_spec("jellyfish:reference=J15"))
    gw.solve(gw.topology.from_spec("ring:4"))


def measure(label: str, collective: Any, seed: int) -> dict[str, Any]:
    network = CASES[label].network(seed)
    seconds, solution = solved(network, time.perf_counter, collective=collective, seed=seed)
    found = figures(solution, "network", "rounds", "bound", "optimal", "scheduler")
    return found | {"seconds": seconds}


if __name__ == "__main__":
    cases = [
        {"label": label, "collective": case.stages, "seed": seed}
        for label, case in CASES.items()
        for seed in SEEDS
    ]
    run(__doc__, Rows(cases, measure), warm=warm, seeds=list(SEEDS))
