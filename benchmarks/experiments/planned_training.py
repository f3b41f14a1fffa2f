"""Trains the plan of the strategy `planned` on 320 networks of four kinds.

    taskset -c 0 python benchmarks/experiments/planned_training.py [FOLDER] [--resume]
        [--seed N] [--constants]

Networks of benchmarks/unequal_networks.py from other seeds than any comparison's: racks, slowed
links, random graphs and boxes, with gradients of 16 MB, 256 MB and 4 GB. Two kinds, wide areas and
two halves, are held out. The weights of seed 0 are then copied to
src/gradweave/learning/policies/weights, those of all runs to benchmarks/plans. With --constants no
message passing is trained: the same eleven numbers for all networks, by as many plans. What a run
came to is recorded beside the others.
"""

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.command_line import parser_of
from benchmarks.plan_training import PlanConfig, train_plan
from benchmarks.record import record, recorded, show
from benchmarks.unequal_networks import boxes, racks, random_graph, slowed
from gradweave.schedulers.greedy.decoding import Wiring
from gradweave.training.checkpoint import CHECKPOINT
from gradweave.training.log import read_log

MAKERS = (racks, slowed, random_graph, boxes)
SEEDS = range(80)
SIZES = (256e6, 4e9, 16e6)
FOLDER = Path("build/learned_plan")


def main() -> None:
    parser = parser_of(__doc__, resumes=True)
    text = "of checkpoint, log and weights (default: %(default)s)"
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER, help=text)
    parser.add_argument("--updates", type=int, default=PlanConfig.updates)
    parser.add_argument("--seed", type=int, default=PlanConfig.seed)
    parser.add_argument("--constants", action="store_true", help="train no message passing")
    asked = parser.parse_args()
    if (asked.folder / CHECKPOINT).exists() and not asked.resume:
        parser.error(f"{asked.folder} holds a training: --resume goes on, another folder begins")
    wirings = [
        Wiring(make(np.random.default_rng([2031, seed])), "all_reduce", SIZES[seed % 3])
        for seed in SEEDS
        for make in MAKERS
    ]
    config = PlanConfig(updates=asked.updates, seed=asked.seed, constants=asked.constants)
    train_plan(config, wirings, asked.folder, report=show)
    rows: list[dict[str, Any]] = read_log(asked.folder)
    fifth = max(1, len(rows) // 5)
    gains = [
        float(np.mean([r["gain"] for r in rows[i : i + fifth]])) for i in (0, len(rows) - fifth)
    ]
    run = {
        "policy": "constants" if config.constants else "message passing",
        "seed": config.seed,
        "updates": config.updates,
        "decoded": config.updates * config.networks * (2 * config.pairs + 1),
        "minutes": sum(row["seconds"] for row in rows) / 60,
        "first_fifth_gain": gains[0],
        "last_fifth_gain": gains[1],
    }
    there, _ = recorded("planned_training", ["runs"])
    same = ("policy", "seed")
    others = [r for r in there.get("runs", []) if [r[k] for k in same] != [run[k] for k in same]]
    record("planned_training", libraries=("jax", "optax"), runs=[*others, run])


if __name__ == "__main__":
    main()
