"""Fairness with equal searches: every method with the best of the same rates and entropies.

    python benchmarks/experiments/fairness.py [--only WORLD] [--seeds N] [--resume]

Job scheduling, the Matthew effect and the manufacturing plant, each with its own defaults but for
the learning rate and the policies' entropy bonus. These are searched alike for every method: two
rates by three entropies, half of the steps, one seed that is not used again, the largest product of
utilisation and Jain's index. What runs by gossip on a ring has the settings of the same method with
the exact mean. Each seed is written as soon as it is measured; seeds go round all methods of a
world, so that all have as many.
"""

import itertools
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from command_line import parser_of
from fen import Trainer, measured
from record import record, recorded, show, source_now

from gradweave.processes.jax_start import start_jax

STEPS, SEARCH_STEPS, SEARCH_SEED = 1_000_000, 500_000, 1000
RATES, ENTROPIES = (1e-3, 3e-3), (0.01, 0.03, 0.1)
WORLDS = ("job_scheduling", "matthew_effect", "manufacturing_plant")
FLAT = {"hierarchy": False}
METHODS: dict[str, dict[str, Any]] = {
    "independent": {"objective": "own", **FLAT},
    "average": {"objective": "average", **FLAT},
    "alpha-fair": {"objective": "alpha_fair", **FLAT},
    "FEN": {},
}
"""Searched, with the exact mean."""
BY_GOSSIP = {"alpha-fair, ring": "alpha-fair", "FEN, ring": "FEN"}
"""With the settings of which they run."""
COMMAND, LIBRARIES = "python benchmarks/experiments/fairness.py", ("jax",)


def trainer(world: str, method: str, steps: int, found: dict[str, float]) -> Trainer:
    """For one method with the settings of a search."""
    from gradweave.marl.learners import algorithms

    parent = BY_GOSSIP.get(method, method)
    options = METHODS[parent] | {"gossip": "exact" if parent == method else "ring"} | found
    return Trainer(world, algorithms.settings("fen", world, options), steps)


def searched(world: str, method: str) -> None:
    """Tries the settings that are not tried yet."""
    for rate, entropy in itertools.product(RATES, ENTROPIES):
        one = {"world": world, "method": method, "rate": rate, "entropy": entropy}
        if any(row.items() >= one.items() for row in done()["search"]):
            continue
        found = {"learning_rate": rate, "entropy_coefficient": entropy}
        row = one | measured(trainer(world, method, SEARCH_STEPS, found), SEARCH_SEED)
        show(row)
        write("search", row)


def best(world: str, method: str) -> dict[str, float]:
    """The settings with the largest product."""
    parent = BY_GOSSIP.get(method, method)
    tried = [r for r in done()["search"] if (r["world"], r["method"]) == (world, parent)]
    row = max(tried, key=lambda row: row["product"])
    return {"learning_rate": row["rate"], "entropy_coefficient": row["entropy"]}


def done() -> dict[str, list[dict[str, Any]]]:
    """What is measured so far."""
    return {"search": [], "seeds_of": []} | recorded("fairness", ("search", "seeds_of"))[0]


def write(part: str, row: dict[str, Any]) -> None:
    """Adds a row."""
    there = done()
    there[part] = [*there[part], row | {"source": source_now(COMMAND, LIBRARIES)}]
    summary = summaries(there["seeds_of"])
    record("fairness", COMMAND, LIBRARIES, steps=STEPS, rows=summary, **there)


def summaries(seeds_of: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of each world's methods, means over the seeds, and which of them are on the front."""
    rows = []
    for world in WORLDS:
        group = []
        for method in [*METHODS, *BY_GOSSIP]:
            seeds = [r for r in seeds_of if (r["world"], r["method"]) == (world, method)]
            if not seeds:
                continue
            mean = {
                name: float(np.mean([one[name] for one in seeds]))
                for name in ("utilisation", "variation", "least", "greatest", "jain", "product")
                + ("gossip_bytes", "processor_s")
            }
            products = [one["product"] for one in seeds]
            group.append(
                {"world": world, "method": method, "seeds": len(seeds)}
                | {name: seeds[0][name] for name in ("rate", "entropy")}
                | mean
                | {"worst_variation": max(one["variation"] for one in seeds)}
                | {"least_product": min(products), "greatest_product": max(products)}
                | {"source": seeds[-1]["source"]}
            )
        for row in group:
            row["front"] = not any(
                other["utilisation"] > row["utilisation"] and other["variation"] < row["variation"]
                for other in group
            )
        rows += group
    return rows


def main() -> None:
    """Measures what is asked for; with `--resume`, what of that is lacking."""
    parser = parser_of(__doc__, resumes=True)
    parser.add_argument("--only", nargs="*", choices=WORLDS, default=WORLDS)
    parser.add_argument("--seeds", type=int, default=10)
    asked = parser.parse_args()
    if not asked.resume:
        record("fairness", COMMAND, LIBRARIES, steps=STEPS, rows=[], search=[], seeds_of=[])
    start_jax(1)
    for world in asked.only:
        for method in METHODS:
            searched(world, method)
        trainers: dict[str, Trainer] = {}
        for seed, method in itertools.product(range(asked.seeds), [*METHODS, *BY_GOSSIP]):
            one = {"world": world, "method": method, "seed": seed}
            if any(row.items() >= one.items() for row in done()["seeds_of"]):
                continue
            found = best(world, method)
            if method not in trainers:
                trainers[method] = trainer(world, method, STEPS, found)
            rates = {"rate": found["learning_rate"], "entropy": found["entropy_coefficient"]}
            row = one | rates | measured(trainers[method], seed)
            show(row)
            write("seeds_of", json.loads(json.dumps(row)))


if __name__ == "__main__":
    main()
