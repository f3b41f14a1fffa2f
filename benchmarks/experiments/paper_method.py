"""The paper's method as far as it says: two agents for each network, its rewards, Algorithm 1.

    taskset -c 0 python benchmarks/experiments/paper_method.py [--networks B3 D4 ...] [--resume]

Each of Table 2's networks by itself, three seeds, on trees by two readings: shortest paths with
ties broken evenly, and grown. `gradweave learn --paper B3 --devices 1` is one of these trainings.
The paper's Jellyfish graphs are unknown; these are the first of our 20 of each size.
Trainings are recorded as they end, the smallest networks first; `--resume` goes on after the last
recorded training, and from the last checkpoint of the training that was under way.
"""

import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from command_line import parser_of
from record import RESULTS, record, recorded, show

from gradweave.environment.instance import Trees
from gradweave.learning.paper import config, outcome
from gradweave.learning.training import train, updates_done
from gradweave.processes.jax_start import start_jax
from gradweave.report import TABLE_2
from gradweave.report.comparison import Case
from gradweave.report.paper import PAPER_LEARNED

NAME = "paper_method"
SEEDS = 3
READINGS: tuple[Trees, ...] = ("even", "grown")
FOLDER = RESULTS.parents[1] / "build" / NAME
"""Folder of the training that is under way."""
Cell = tuple[str, Trees, int]
"""A network's label, its trees, and a seed."""


def cells() -> Iterator[tuple[Cell, Case]]:
    """All trainings; those of a network follow each other, since they share compiled programs."""
    for case in sorted(TABLE_2, key=lambda case: case.network(0).num_servers):
        for trees in READINGS:
            for seed in range(SEEDS):
                yield (case.label, trees, seed), case


def trained(case: Case, trees: Trees, seed: int) -> dict[str, Any]:
    """One training."""
    how, folder = config(case.spec, trees, seed), FOLDER / f"{case.label}-{trees}-{seed}"
    begun, resumed_from = time.process_time(), updates_done(how, folder)
    train(how, folder, report=lambda _: None, devices=1)
    processor_s, found = time.process_time() - begun, outcome(how, folder)
    shutil.rmtree(folder)
    return {
        "label": case.label,
        "trees": trees,
        "seed": seed,
        "bound": found.bound,
        "constants": found.constants,
        "stages": 2 if case.stages == "all_reduce" else 1,
        "paper": PAPER_LEARNED[case.label],
        "first": found.first,
        "last": found.last,
        "selected_first": found.selected[0],
        "selected_last": found.selected[-1],
        "updates": len(found.rounds),
        "resumed_from": resumed_from,
        "processor_s": round(processor_s, 1),
        "curve": np.round(found.rounds, 3).tolist(),
    }


def main() -> None:
    labels = [case.label for case in TABLE_2]
    parser = parser_of(__doc__, resumes=True)
    text = "train on these; the rows of others stay as recorded"
    parser.add_argument("--networks", nargs="*", choices=labels, default=labels, help=text)
    asked = parser.parse_args()
    start_jax(1)
    known = recorded(NAME, ["rows"])[0].get("rows", [])
    rows = {(row["label"], row["trees"], row["seed"]): row for row in known}
    if not asked.resume:
        shutil.rmtree(FOLDER, ignore_errors=True)
        rows = {cell: row for cell, row in rows.items() if cell[0] not in asked.networks}
    for cell, case in cells():
        if case.label in asked.networks and cell not in rows:
            rows[cell] = trained(case, *cell[1:])
            show(rows[cell])
            there = [rows[one] for one, _ in cells() if one in rows]
            record(NAME, libraries=("jax", "optax"), seeds=list(range(SEEDS)), rows=there)


if __name__ == "__main__":
    main()
