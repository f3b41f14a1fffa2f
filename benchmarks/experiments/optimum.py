"""The nine networks of the paper's Table 2: seconds to a schedule that meets the bound.

    taskset -c 0 python benchmarks/experiments/optimum.py

The portfolio with five seeds; on Jellyfish each seed is another graph. The stages are those that
the paper counts. After compilation.
"""

import time
from typing import Any

import gradweave as gw
from benchmarks.command_line import parser_of
from benchmarks.record import printed, record
from benchmarks.solutions import figures, solved
from gradweave.report import TABLE_2
from gradweave.report.comparison import Case

SEEDS = range(5)


def measure(case: Case, seed: int) -> dict[str, Any]:
    network = case.network(seed)
    seconds, solution = solved(network, time.perf_counter, collective=case.stages, seed=seed)
    row = {"label": case.label, "network": network.name, "collective": case.stages, "seed": seed}
    found = figures(solution, "rounds", "bound", "optimal", "scheduler")
    return row | found | {"seconds": seconds}


def main() -> None:
    parser_of(__doc__).parse_args()
    gw.solve(gw.topology.from_spec("jellyfish:reference=J15"))  # compiles
    gw.solve(gw.topology.from_spec("ring:4"))
    rows = printed(measure(case, seed) for case in TABLE_2 for seed in SEEDS)
    record(
        "optimum",
        seeds=list(SEEDS),
        rows=rows,
    )
    slowest = max(row["seconds"] for row in rows)
    print(f"optimal: {all(row['optimal'] for row in rows)}; slowest {slowest:.2f} s")


if __name__ == "__main__":
    main()
