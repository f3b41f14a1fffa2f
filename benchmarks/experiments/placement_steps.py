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
from benchmarks.command_line import parser_of
from benchmarks.record import record, show
from benchmarks.timing import timed
from gradweave.placement import Annealing, Placer, RankOrder, Transformer, place, step_time

SHAPES = ((5, 4),)
SEEDS = range(10)
STEP_LIMIT_S = 5.0
"""For the schedules of all groups."""


def row(placer: Placer, name: str, stages: int, data: int, seeds: range) -> dict[str, Any]:
    """Costs by seed, processor seconds, and the first seed's steps."""
    network, work = gw.topology.cities(each=2), Transformer()

    def placed(seed: int) -> Any:
        return place(
            network, work, pipeline=stages, data=data, strategy=placer, bound=False, seed=seed
        )

    found = [timed(lambda seed=seed: placed(seed), time.process_time) for seed in seeds]
    first = found[0][1]
    one = {"placed": name, "stages": stages, "data": data}
    one |= {"cost_s": [each.cost_s for _, each in found]}
    one |= {"search_s": sum(processor_s for processor_s, _ in found) / len(found)}
    if name != "one batch":
        one |= {
            f"{order}_s": step_time(first, order, time_limit=STEP_LIMIT_S).seconds
            for order in ("1f1b", "gpipe")
        }
    show(one)
    return one


def main() -> None:
    """Measures all shapes."""
    parser_of(__doc__).parse_args()
    rows = [
        row(placer, name, stages, data, seeds)
        for stages, data in SHAPES
        for placer, name, seeds in (
            (Annealing(), "default", SEEDS),
            (Annealing(restarts=8), "one batch", SEEDS),
            (RankOrder(), "rank order", range(1)),
        )
    ]
    record("placement_steps", seeds=list(SEEDS), rows=rows)


if __name__ == "__main__":
    main()
