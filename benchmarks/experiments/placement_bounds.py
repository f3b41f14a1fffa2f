"""Bounds of placements by duals alone, and by looking through all sequences of groups.

    python benchmarks/experiments/placement_bounds.py [--resume]

Networks in which all pairs of servers differ: latencies drawn alike for all pairs, or by distance
in a square; and the world's case of the paper. The bound found in a minute at most, beside the cost
that annealing finds and that of a cheaper placement, where the proof comes upon one; the
processor's time to find it, and that to count its certificate again.
"""

import time
from typing import Any

import numpy as np

from benchmarks.command_line import parser_of
from benchmarks.placement_cases import ACTIVATION_BYTES, DATA, GRADIENT_BYTES, WORKLOAD, cases
from benchmarks.record import record, recorded, show
from benchmarks.timing import timed
from gradweave.placement import Annealing, even_stages, placement_bound
from gradweave.placement.exchange import exchange_cost
from gradweave.placement.pairs import Pairs, pairs_of
from gradweave.placement.problem import Problem

NAME = "placement_bounds"
SHAPES = ((4, 2), (2, 4), (4, 4), (8, 2), (2, 8), (5, 4), (4, 5), (10, 2))
"""Stages and pipelines."""
KINDS = ("alike", "square")
SEEDS = 3
LIMIT_S = 60.0


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


def row(name: str, seed: int, problem: Problem) -> dict[str, Any]:
    annealed = exchange_cost(problem, Annealing().place(problem, seed=0)).seconds
    _, duals = timed(lambda: placement_bound(problem), time.process_time)
    found_s, found = timed(
        lambda: placement_bound(problem, cost_s=annealed, time_limit=LIMIT_S), time.process_time
    )
    proof = found.certificate
    read = type(proof).from_object(problem, **proof.as_object())
    counted_s, counted = timed(lambda: read.nanoseconds(problem), time.process_time)
    assert counted / 1e9 == found.seconds
    least = annealed
    if found.cheaper is not None:
        least = min(least, exchange_cost(problem, found.cheaper).seconds)
    return {
        "network": name,
        "stages": problem.stages,
        "pipelines": problem.data,
        "seed": seed,
        "annealed_s": annealed,
        "least_s": least,
        "by_duals_s": duals.seconds,
        "bound_s": found.seconds,
        "annealed_above": annealed / least - 1,
        "gap_by_duals": least / duals.seconds - 1,
        "gap": max(0.0, least / found.seconds - 1),
        "certificate": type(proof).__name__,
        "search_s": found_s,
        "recount_s": counted_s,
    }


def main() -> None:
    asked = parser_of(__doc__, resumes=True).parse_args()
    rows = list(recorded(NAME, ["rows"])[0].get("rows", [])) if asked.resume else []
    done = {(one["network"], one["stages"], one["pipelines"], one["seed"]) for one in rows}
    instances = [
        (kind, seed, drawn(kind, *shape, seed))
        for shape in SHAPES
        for kind in KINDS
        for seed in range(SEEDS)
    ]
    instances.append(("world", 0, Problem(pairs_of(cases()[-1].network), WORKLOAD, DATA)))
    for name, seed, problem in instances:
        if (name, problem.stages, problem.data, seed) not in done:
            rows.append(row(name, seed, problem))
            show(rows[-1])
            record(NAME, seeds=list(range(SEEDS)), rows=rows)


if __name__ == "__main__":
    main()
