"""Bounds of placements by duals alone, and by looking through all sequences of groups.

    python benchmarks/experiments/placement_bounds.py

Networks in which all pairs of servers differ: latencies drawn alike for all pairs, or by distance
in a square; and the world's case of the paper. The bound found in a minute at most, beside the cost
that annealing finds and that of a cheaper placement, where the proof comes upon one; the
processor's time to find it, and that to count its certificate again.
"""

import time
from typing import Any

import numpy as np

from benchmarks.experiment import Case, Rows, run
from benchmarks.placement_cases import ACTIVATION_BYTES, DATA, GRADIENT_BYTES, WORKLOAD
from benchmarks.placement_cases import cases as placements
from benchmarks.timing import timed
from gradweave.placement import Annealing, even_stages, placement_bound
from gradweave.placement.exchange import exchange_cost
from gradweave.placement.pairs import Pairs, pairs_of
from gradweave.placement.problem import Problem

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


def cases() -> list[Case]:
    names = ("network", "seed", "stages", "pipelines")
    made = [(kind, seed, *shape) for shape in SHAPES for kind in KINDS for seed in range(SEEDS)]
    world = ("world", 0, len(WORKLOAD.stages), DATA)
    return [dict(zip(names, one, strict=True)) for one in (*made, world)]


def measure(network: str, seed: int, stages: int, pipelines: int) -> dict[str, Any]:
    if network == "world":
        problem = Problem(pairs_of(placements()[-1].network), WORKLOAD, DATA)
    else:
        problem = drawn(network, stages, pipelines, seed)
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


if __name__ == "__main__":
    run(__doc__, Rows(cases, measure), seeds=list(range(SEEDS)))
