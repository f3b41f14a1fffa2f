"""The paper's method as far as it says: two agents for each network, its rewards, fixed trees.

    taskset -c 0 python benchmarks/experiments/paper_method.py [--networks B3 D4 ...]

Algorithm 1 on the reduce-scatter of each network of Table 2 by itself, on the pinned shortest-path
trees; one seed, the configuration of `learning_choices`, whose 120 updates are of 64 episodes each,
but that half of the trees are selected at first.
Rounds are of episodes drawn from the policies: in the first update and the mean of the last ten.
"""

import dataclasses
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from command_line import parser_of
from learning_choices import EPISODES, PAPER, config
from record import record, recorded, show

from gradweave.environment.instance import Instance
from gradweave.learning.config import Exercise, Group
from gradweave.learning.training import Report, train
from gradweave.report import TABLE_2
from gradweave.report.comparison import Case
from gradweave.report.paper import PAPER_LEARNED

LAST = 10
"""Updates that the rounds at the end are the mean of."""


def trained(case: Case) -> dict[str, Any]:
    """One network's training."""
    network = case.network(0)
    spec = case.spec if case.instances == 1 else f"{case.spec},seed=0"
    group = Group((Exercise(spec, "reduce_scatter", "fixed"),), at_once=1, episodes=EPISODES)
    how = dataclasses.replace(
        config(**PAPER, trees="fixed"), groups=(group,), seeds=1, tree_bias=0.0
    )
    rounds, selected, seconds = [], [], 0.0

    def note(report: Report) -> None:
        nonlocal seconds
        rounds.append(float(np.mean(report.figures["rounds"])))
        selected.append(float(np.mean(report.figures["selected"])))
        seconds = report.seconds

    with tempfile.TemporaryDirectory() as folder:
        train(how, Path(folder), report=note, devices=1)
    return {
        "label": case.label,
        "bound": Instance(network, "reduce_scatter", "fixed").bound,
        "stages": 2 if case.stages == "all_reduce" else 1,
        "paper": PAPER_LEARNED[case.label],
        "first": rounds[0],
        "last": float(np.mean(rounds[-LAST:])),
        "selected_first": selected[0],
        "selected_last": float(np.mean(selected[-LAST:])),
        "updates": len(rounds),
        "minutes": round(seconds / 60, 1),
        "rounds": np.round(rounds, 3).tolist(),
    }


def main() -> None:
    labels = [case.label for case in TABLE_2]
    parser = parser_of(__doc__)
    text = "train on these; the rows of others stay as recorded"
    parser.add_argument("--networks", nargs="*", choices=labels, default=labels, help=text)
    asked = parser.parse_args().networks
    known, _ = recorded("paper_method", ["rows"])
    rows = {row["label"]: row for row in known.get("rows", [])}
    for case in TABLE_2:
        if case.label in asked:
            rows[case.label] = trained(case)
            show({key: value for key, value in rows[case.label].items() if key != "rounds"})
            record(
                "paper_method",
                libraries=("jax", "optax"),
                rows=[rows[label] for label in labels if label in rows],
            )


if __name__ == "__main__":
    main()
