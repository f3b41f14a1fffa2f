"""The paper's method as far as it says: two agents for each network, its rewards, Algorithm 1.

    taskset -c 0 python benchmarks/experiments/paper_method.py [--networks B3 D4 ...] [--resume]

Each of Table 2's networks by itself, three seeds, on trees by two readings: shortest paths with
ties broken evenly, and grown. `gradweave learn --paper B3 --devices 1` is one of these trainings.
The paper's Jellyfish graphs are unknown; these are the first of our 20 of each size.
Trainings are recorded as they end, seed by seed, the smallest networks first; `--resume` trains
those that are missing, from the last checkpoint of the training that was under way.
"""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks.command_line import parser_of
from benchmarks.markdown_table import NETWORKS
from benchmarks.pictures import Picture, figure_with
from benchmarks.record import RESULTS, record, recorded, show
from gradweave.environment.instance import Trees
from gradweave.learning.paper import config, others, outcome
from gradweave.learning.training import train, updates_done
from gradweave.processes.jax_start import start_jax
from gradweave.report import TABLE_2
from gradweave.report.comparison import Case
from gradweave.report.paper import PAPER_LEARNED

NAME = "paper_method"
SEEDS, UPDATES = 3, config("", "even").updates
NAMES: dict[Trees, str] = {"even": "even shortest paths", "grown": "grown trees"}
READINGS = tuple(NAMES)
FOLDER = RESULTS.parents[1] / "build" / NAME
"""Folder of the training that is under way."""
Cell = tuple[str, Trees, int]
"""A network's label, its trees, and a seed."""


def cells() -> Iterator[tuple[Cell, Case]]:
    """All trainings: each network once on even trees, each once on grown trees, other seeds."""
    by_size = sorted(TABLE_2, key=lambda case: case.network(0).num_servers)
    for seed in range(SEEDS):
        for trees in READINGS:
            for case in by_size:
                yield (case.label, trees, seed), case


def untrained() -> Iterator[dict[str, Any]]:
    """The figures of each network that need no training."""
    for case in TABLE_2:
        for trees in READINGS:
            known = [others(config(case.spec, trees, seed)) for seed in range(SEEDS)]
            yield {
                "label": case.label,
                "trees": trees,
                "servers": case.network(0).num_servers,
                "bound": known[0].bound,
                "constants": fmean(one.constants for one in known),
                "stages": 2 if case.stages == "all_reduce" else 1,
                "paper": PAPER_LEARNED[case.label],
            }


def trained(case: Case, trees: Trees, seed: int) -> dict[str, Any]:
    """One training."""
    how, folder = config(case.spec, trees, seed), FOLDER / f"{case.label}-{trees}-{seed}"
    begun, resumed_from = time.process_time(), updates_done(how, folder)
    train(how, folder, report=lambda _: None, devices=1)
    processor_s, found = time.process_time() - begun, outcome(folder)
    shutil.rmtree(folder)
    return {
        "label": case.label,
        "trees": trees,
        "seed": seed,
        "first": found.first,
        "last": found.last,
        "selected_first": found.selected[0],
        "selected_last": found.selected[-1],
        "updates": len(found.rounds),
        "resumed_from": resumed_from,
        "processor_s": round(processor_s, 1),
        "curve": np.round(found.rounds, 3).tolist(),
    }


def draw(result: dict[str, Any], path: Path) -> None:
    """A panel per network: mean and range over seeds of each reading, bounds, and the paper."""
    from matplotlib.lines import Line2D

    figure, panels = figure_with((11, 9), 3, 3)
    colours = dict(zip(READINGS, ("C0", "C1"), strict=True))
    for panel, case in zip(panels.flat, TABLE_2, strict=True):
        for known in (row for row in result["networks"] if row["label"] == case.label):
            trees, colour = known["trees"], colours[known["trees"]]
            curves = [
                row["curve"]
                for row in result["rows"]
                if (row["label"], row["trees"]) == (case.label, trees)
            ]
            if curves:
                rounds = np.array(curves)
                updates = np.arange(1, rounds.shape[1] + 1)
                panel.plot(updates, rounds.mean(0), color=colour, label=NAMES[trees], lw=1.2)
                panel.fill_between(updates, rounds.min(0), rounds.max(0), color=colour, alpha=0.25)
            panel.axhline(known["bound"], color=colour, ls=":", lw=1.2)
            panel.axhline(known["constants"], color=colour, ls="--", lw=0.9)
        paper = PAPER_LEARNED[case.label] / known["stages"]
        panel.axhline(paper, color="0.35", lw=1)
        panel.set_title(NETWORKS[case.label], fontsize=10)
        panel.set_xlim(0, UPDATES)
        panel.set_ylim(bottom=0)
        panel.tick_params(labelsize=8)
        if not any(row["label"] == case.label for row in result["rows"]):
            panel.text(0.5, 0.2, "not yet trained", ha="center", transform=panel.transAxes)
    for panel in panels[:, 0]:
        panel.set_ylabel("rounds of one stage", fontsize=9)
    for panel in panels[-1]:
        panel.set_xlabel("updates", fontsize=9)
    lines = [Line2D([], [], color=colours[trees]) for trees in READINGS]
    lines += [Line2D([], [], color="k", ls=ls) for ls in ("--", ":")]
    lines.append(Line2D([], [], color="0.35"))
    names = [*NAMES.values(), "19 constants on these trees", "bound", "the paper, as settled"]
    figure.legend(lines, names, loc="outside lower center", ncol=5, fontsize=9, frameon=False)
    figure.savefig(path)


def main() -> None:
    labels = [case.label for case in TABLE_2]
    picture = Picture(NAME, draw, ("networks", "rows"))
    parser = parser_of(__doc__, picture, resumes=True)
    text = "train on these; the rows of others stay as recorded"
    parser.add_argument("--networks", nargs="*", choices=labels, default=labels, help=text)
    asked = parser.parse_args()
    start_jax(1)
    networks = list(untrained())
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
            seeds = list(range(SEEDS))
            record(NAME, libraries=("jax", "optax"), seeds=seeds, networks=networks, rows=there)
    picture.redraw()


if __name__ == "__main__":
    main()
