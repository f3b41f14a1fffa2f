"""Ablation of learning: rewards, hierarchy, trees, imitation. Curves and final values.

python benchmarks/experiments/learning_choices.py

Each variant trains two seeds in parallel, with the same networks, episodes and updates.
"""

import dataclasses
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks.command_line import parser_of
from benchmarks.pictures import Picture, figure_with
from benchmarks.record import record
from gradweave.environment import Rewards
from gradweave.learning.config import Config, Exercise, Group
from gradweave.learning.paper import SETTINGS
from gradweave.learning.ppo import PPO
from gradweave.learning.training import Report, train

NETWORKS = ("bcube:n=3,k=1", "bcube:n=2,k=2", "dcell:n=3,k=1")
SEEDS, ITERATIONS, EPISODES = 2, 24, 64


def config(**changes: Any) -> Config:
    """Three networks, grown trees, rounds as the only reward, two agents, unless changed."""
    trees = changes.pop("trees", "grown")
    collective = "all_gather" if trees == "grown" else "reduce_scatter"
    exercises = tuple(Exercise(network, collective, trees) for network in NETWORKS)
    defaults: dict[str, Any] = {
        "groups": (Group(exercises, at_once=3, episodes=EPISODES),),
        "iterations": ITERATIONS,
        "tree_updates": 1,
        "workload_updates": 4,
        "seeds": SEEDS,
        "tree_bias": 1.0,
        "rewards": Rewards.ours(),
        "tree": PPO(learning_rate=6e-3, minibatches=2),
        "checkpoint_minutes": 1e6,
    }
    return Config(**(defaults | changes))


PAPER = dict(SETTINGS)
VARIANTS = {
    "rounds as the reward, two agents, grown trees": config(),
    "the paper's rewards, two agents, grown trees": config(**PAPER),
    "rounds as the reward, one agent, grown trees": config(single_policy=True),
    "the paper's rewards, one agent, grown trees": config(**PAPER, single_policy=True),
    "repaired episodes imitated first, two agents, grown trees": config(
        imitation_updates=4 * 5, iterations=ITERATIONS - 4
    ),
    "rounds as the reward, two agents, fixed trees": config(trees="fixed"),
    "the paper's rewards, two agents, fixed trees": config(**PAPER, trees="fixed"),
}


def run(name: str, how: Config) -> list[dict[str, Any]]:
    """One row an update: rounds over the bound, of each seed and network."""
    rows: list[dict[str, Any]] = []

    def note(report: Report) -> None:
        figures = report.figures
        rows.append(
            {
                "variant": name,
                "update": report.update,
                "agent": report.agent,
                "over_bound": np.round(figures["over_bound"].mean(1), 5).tolist(),
                "rounds": np.round(figures["rounds"].mean(0), 4).tolist(),
                "selected": round(float(figures["selected"].mean()), 4),
                "decisions": int(figures["decisions"].sum() * len(jax.devices())),
                "seconds": round(report.seconds, 1),
            }
        )

    with tempfile.TemporaryDirectory() as folder:
        train(how, Path(folder), report=note)
    rows = [row for row in rows if row["agent"] != "imitation"]  # of the expert's episodes
    print(json.dumps(rows[-1]), flush=True)
    return rows


def draw(result: dict[str, Any], path: Path) -> None:
    """The curves, one panel for grown trees and one for fixed ones."""
    rows = result["rows"]
    figure, panels = figure_with((11, 4.2), 1, 2, sharey=True, dpi=100, layout=None, framed=True)
    for panel, trees in zip(panels, ("grown trees", "fixed trees"), strict=True):
        for name in dict.fromkeys(row["variant"] for row in rows):
            if not name.endswith(trees):
                continue
            curve = [row for row in rows if row["variant"] == name]
            over_bound = 100 * np.array([row["over_bound"] for row in curve])
            updates = [row["update"] for row in curve]
            (line,) = panel.plot(updates, over_bound.mean(1), label=name.rsplit(",", 1)[0])
            low, high = over_bound.min(1), over_bound.max(1)
            panel.fill_between(updates, low, high, alpha=0.2, color=line.get_color())
        panel.set_title(f"{trees}: BCube(3,1), BCube(2,2), DCell(3,1)")
        panel.set_xlabel("updates")
        panel.grid(alpha=0.3)
        panel.legend(fontsize=8)
    panels[0].set_ylabel("rounds over the bound, % (sampled episodes)")
    figure.tight_layout()
    figure.savefig(path, dpi=130)


def main() -> None:
    picture = Picture("learning_choices", draw, ("rows",))
    parser_of(__doc__, picture).parse_args()
    jax.config.update("jax_num_cpu_devices", os.cpu_count() or 1)
    rows: list[dict[str, Any]] = []
    start = time.monotonic()
    for name, how in VARIANTS.items():
        rows += run(name, how)
    record(
        "learning_choices",
        seeds=SEEDS,
        networks=NETWORKS,
        minutes=round((time.monotonic() - start) / 60, 1),
        config={name: dataclasses.asdict(how) for name, how in VARIANTS.items()},
        rows=rows,
    )
    picture.redraw()


if __name__ == "__main__":
    main()
