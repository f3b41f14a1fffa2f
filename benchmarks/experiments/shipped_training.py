"""The training run of the shipped weights: its curves and cost.

python benchmarks/experiments/shipped_training.py            trains first: gradweave learn
python benchmarks/experiments/shipped_training.py FOLDER     reads the output of `gradweave learn`
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from record import RESULTS, record

from gradweave.learning.config import read_config


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """One row per update."""
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Rounds over the bound of each exercise against updates, as moving averages."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    curves: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        if row["agent"] == "imitation":  # then episodes are the expert's
            continue
        for name, values in row["problems"].items():
            curves.setdefault(name, []).append((row["update"], 100 * values["over_bound"]))
    figure = Figure(figsize=(13, 7))
    panels = figure.subplots(1, 2, sharey=True)
    for panel, fixed in zip(panels, (False, True), strict=True):
        panel.set_prop_cycle(color=colormaps["tab20"].colors)
        for name, points in curves.items():
            if name.endswith("fixed") != fixed:
                continue
            updates, over = np.array(points).T
            width = min(5, len(over))
            smooth = np.convolve(over, np.ones(width) / width, "valid")
            panel.plot(updates[width - 1 :], smooth, lw=1.1, label=_short(name))
        panel.set_title("fixed trees" if fixed else "grown trees")
        panel.set_xlabel("updates")
        panel.set_yscale("symlog", linthresh=1)
        panel.set_yticks([0, 1, 10, 100], ["0", "1", "10", "100"])
        panel.set_ylim(-0.2, 100)
        panel.grid(alpha=0.3)
        panel.legend(fontsize=7, ncol=2, loc="upper center", bbox_to_anchor=(0.5, -0.12))
    panels[0].set_ylabel("rounds over the bound, % (drawn episodes, mean of five updates)")
    figure.tight_layout()
    figure.savefig(path, dpi=130)


def _short(name: str) -> str:
    network, collective, _ = name.rsplit(" ", 2)
    return network + (" (reduce-scatter)" if collective == "reduce_scatter" else "")


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path("learned")
    if len(sys.argv) == 1:
        command = [str(Path(sys.executable).with_name("gradweave")), "learn", "--output", "learned"]
        subprocess.run(command, check=True)
    rows, config = rows_of(folder), read_config(None)
    draw(rows, RESULTS / "shipped_training.png")
    spent = [row["seconds"] for row in rows]
    by_update = [
        {key: row[key] for key in ("update", "agent", "group", "over_bound", "decisions")}
        for row in rows
    ]
    decisions = sum(row["decisions"] for row in rows)
    record(
        "shipped_training",
        "gradweave learn --output learned && "
        "python benchmarks/experiments/shipped_training.py learned",
        seed=config.seed,
        config=config.digest(),
        updates=len(rows),
        minutes=round(spent[-1] / 60, 1),
        decisions=decisions,
        decisions_per_second=round(decisions / spent[-1]),
        last_50_over_bound=round(float(np.mean([row["over_bound"] for row in rows[-50:]])), 5),
        rows=by_update,
    )


if __name__ == "__main__":
    main()
