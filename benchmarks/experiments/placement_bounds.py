"""Bounds of placements by runs alone, and by sequences of groups that are searched.

    python benchmarks/experiments/placement_bounds.py [--resume]

Networks of 8 servers in which all pairs differ: latencies drawn alike for all pairs, or by
distance in a square; and the world's case of the paper. The bound found, beside the cost that
annealing finds, the processor's time to find it, and that to count its certificate again.
"""

import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from command_line import parser_of
from placement_cases import ACTIVATION_BYTES, DATA, GRADIENT_BYTES, WORKLOAD, cases
from record import record, recorded, show
from timing import timed

from gradweave.placement import (
    Annealing,
    GroupDuals,
    Pairs,
    Problem,
    even_stages,
    exchange_cost,
    pairs_of,
    placement_bound,
)

NAME = "placement_bounds"
SHAPES = ((4, 2), (2, 4))
"""Stages and pipelines."""
KINDS = ("alike", "square")
SEEDS = 3
LIMIT_S = 900.0


def drawn(kind: str, stages: int, data: int, seed: int) -> Problem:
    rng, count = np.random.default_rng([2611, seed, stages, data]), stages * data
    if kind == "alike":
        latency = rng.uniform(1e-3, 0.25, (count, count))
        bandwidth = 1.25e8 * 10 ** rng.uniform(-0.7, 1, (count, count))
    else:
        place = rng.uniform(0, 1, (count, 2))
        distance = np.linalg.norm(place[:, None] - place[None], axis=2)
        latency, bandwidth = 1e-3 + 0.2 * distance, 1.25e9 / (1 + 20 * distance)
    work = even_stages(stages, activation_bytes=ACTIVATION_BYTES, gradient_bytes=GRADIENT_BYTES)
    return Problem(Pairs(latency, bandwidth), work, data)


def row(name: str, shape: str, seed: int, problem: Problem) -> dict[str, Any]:
    cost = exchange_cost(problem, Annealing().place(problem, seed=0)).seconds
    _, runs = timed(lambda: placement_bound(problem), time.process_time)
    found_s, found = timed(
        lambda: placement_bound(problem, cost_s=cost, time_limit=LIMIT_S), time.process_time
    )
    read = GroupDuals.from_object(problem, **found.duals.as_object())
    counted_s, counted = timed(lambda: read.nanoseconds(problem)[0], time.process_time)
    assert counted / 1e9 == found.seconds
    return {
        "network": name,
        "shape": shape,
        "seed": seed,
        "cost_s": cost,
        "by_runs_s": runs.seconds,
        "bound_s": found.seconds,
        "gap_by_runs": cost / runs.seconds - 1,
        "gap": cost / found.seconds - 1,
        "search_s": found_s,
        "recount_s": counted_s,
        "windows": len(found.duals.windows),
    }


def main() -> None:
    asked = parser_of(__doc__, resumes=True).parse_args()
    rows = list(recorded(NAME, ["rows"])[0].get("rows", [])) if asked.resume else []
    done = {(one["network"], one["shape"], one["seed"]) for one in rows}
    for kind, (stages, data), seed in (
        (kind, shape, seed) for seed in range(SEEDS) for shape in SHAPES for kind in KINDS
    ):
        key = kind, f"{stages} × {data}", seed
        if key not in done:
            rows.append(row(*key, drawn(kind, stages, data, seed)))
            show(rows[-1])
            record(NAME, seeds=list(range(SEEDS)), rows=rows)
    if not any(one["network"] == "world" for one in rows):
        problem = Problem(pairs_of(cases()[-1].network), WORKLOAD, DATA)
        rows.append(row("world", f"{problem.stages} × {DATA}", 0, problem))
        show(rows[-1])
        record(NAME, seeds=list(range(SEEDS)), rows=rows)


if __name__ == "__main__":
    main()
