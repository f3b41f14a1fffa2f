"""Placements of a transformer on ten cities: what communication costs, and the predicted step.

    python benchmarks/experiments/placement_steps.py

Two servers in each of ten cities, the default transformer of `gradweave.placement`, in 5 stages of
4 pipelines. The cost of communication is the exchange model's: by the default search over ten
seeds, by one batch of eight restarts, and in rank order. The step is that of `step_time` by 1F1B
and GPipe, of the placement of the first seed, and of rank order.
"""

import time
from typing import Any

import gradweave as gw
from benchmarks.experiment import Rows, grid, run
from benchmarks.timing import timed
from gradweave.placement import Annealing, Placer, RankOrder, Transformer, place, step_time

SEEDS = range(10)
PLACERS: dict[str, tuple[Placer, range]] = {
    "default": (Annealing(), SEEDS),
    "one batch": (Annealing(restarts=8), SEEDS),
    "rank order": (RankOrder(), range(1)),
}
"""By name: the search, and its seeds."""
STEP_LIMIT_S = 5.0
"""For the schedules of all groups."""


def measure(placed: str, stages: int, data: int) -> dict[str, Any]:
    """Costs by seed, processor seconds, and the first seed's steps."""
    placer, seeds = PLACERS[placed]
    network, work = gw.topology.cities(each=2), Transformer()

    def place_once(seed: int) -> Any:
        return place(
            network, work, pipeline=stages, data=data, strategy=placer, bound=False, seed=seed
        )

    found = [timed(lambda seed=seed: place_once(seed), time.process_time) for seed in seeds]
    first = found[0][1]
    one: dict[str, Any] = {"cost_s": [each.cost_s for _, each in found]}
    one |= {"search_s": sum(processor_s for processor_s, _ in found) / len(found)}
    if placed != "one batch":
        one |= {
            f"{order}_s": step_time(first, order, time_limit=STEP_LIMIT_S).seconds
            for order in ("1f1b", "gpipe")
        }
    return one


if __name__ == "__main__":
    run(__doc__, Rows(grid(stages=[5], data=[4], placed=PLACERS), measure), seeds=list(SEEDS))
