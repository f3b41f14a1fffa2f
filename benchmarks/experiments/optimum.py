"""The nine networks of the paper's Table 2: seconds to a schedule that meets its bound.

    taskset -c 0 python benchmarks/experiments/optimum.py

The portfolio with five seeds; on Jellyfish each seed is another graph. The stages are those that
the paper counts. Compiled code is warmed up first.
"""

import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from record import record

import gradweave as gw
from gradweave.report import TABLE_2

SEEDS = range(5)


def main() -> None:
    gw.solve(gw.topology.from_spec("jellyfish:reference=J15"))  # compiles
    gw.solve(gw.topology.from_spec("ring:4"))
    rows: list[dict[str, Any]] = []
    for case in TABLE_2:
        for seed in SEEDS:
            network = case.network(seed)
            begin = time.perf_counter()
            solution = gw.solve(network, collective=case.stages, seed=seed)
            rows.append(
                {
                    "label": case.label,
                    "network": network.name,
                    "collective": case.stages,
                    "seed": seed,
                    "rounds": solution.rounds,
                    "bound": solution.bound.rounds,
                    "optimal": solution.optimal,
                    "scheduler": gw.schedulers.to_spec(solution.scheduler),
                    "seconds": time.perf_counter() - begin,
                }
            )
            print(rows[-1], flush=True)
    record(
        "optimum",
        "taskset -c 0 python benchmarks/experiments/optimum.py",
        seeds=list(SEEDS),
        rows=rows,
    )
    slowest = max(row["seconds"] for row in rows)
    print(f"optimal: {all(row['optimal'] for row in rows)}; slowest {slowest:.2f} s")


if __name__ == "__main__":
    main()
