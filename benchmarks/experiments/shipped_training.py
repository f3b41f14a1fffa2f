"""The training run of the shipped weights: its curves and cost.

python benchmarks/experiments/shipped_training.py            trains first
python benchmarks/experiments/shipped_training.py FOLDER     reads the output of a training

A training is `python -m gradweave.learning`.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.command_line import parser_of
from benchmarks.pictures import Picture, figure_with
from benchmarks.record import record
from gradweave.learning.config import Config, read_config


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """One row per update."""
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def draw(result: dict[str, Any], path: Path) -> None:
    """Rounds over the bound of each exercise against updates, as moving averages.

    Raises:
        SystemExit: they are not recorded.
    """
    from matplotlib import colormaps

    if "curves" not in result:
        raise SystemExit("shipped_training.json lacks the curves of the exercises: train again")
    figure, panels = figure_with((13, 7), 1, 2, sharey=True, dpi=100, layout=None, framed=True)
    for panel, fixed in zip(panels, (False, True), strict=True):
        panel.set_prop_cycle(color=colormaps["tab20"].colors)
        for name, curve in result["curves"].items():
            if name.endswith("fixed") != fixed:
                continue
            updates, over = curve["update"], 100 * np.array(curve["over_bound"])
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


def curves(rows: list[dict[str, Any]]) -> dict[str, dict[str, list[float]]]:
    """Rounds over the bound of each exercise, by update."""
    by_exercise: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        if row["agent"] == "imitation":  # then episodes are the expert's
            continue
        for name, values in row["problems"].items():
            curve = by_exercise.setdefault(name, {"update": [], "over_bound": []})
            curve["update"].append(row["update"])
            curve["over_bound"].append(values["over_bound"])
    return by_exercise


def trained(folder: Path | None, *options: str) -> Path:
    """The folder of a training: the given one, or that of a new training."""
    if folder is None:
        folder = Path(tempfile.mkdtemp(prefix="learned-")) / "learned"
        program = [sys.executable, "-m", "gradweave.learning"]
        subprocess.run([*program, "--output", str(folder), *options], check=True)
    return folder


def cost_and_curve(rows: list[dict[str, Any]], config: Config) -> dict[str, Any]:
    """What a training took, and how it went."""
    spent = [row["seconds"] for row in rows]
    decisions = sum(row["decisions"] for row in rows)
    columns = ("update", "agent", "group", "over_bound", "decisions")
    return {
        "seed": config.seed,
        "config": config.digest(),
        "updates": len(rows),
        "minutes": round(spent[-1] / 60, 1),
        "decisions": decisions,
        "decisions_per_second": round(decisions / spent[-1]),
        "last_50_over_bound": round(float(np.mean([r["over_bound"] for r in rows[-50:]])), 5),
        "rows": [{key: row[key] for key in columns} for row in rows],
    }


def main() -> None:
    picture = Picture("shipped_training", draw, ("curves",))
    parser = parser_of(__doc__, picture)
    parser.add_argument("folder", nargs="?", type=Path, help="output of gradweave.learning")
    rows = rows_of(trained(parser.parse_args().folder))
    content = cost_and_curve(rows, read_config(None))
    record("shipped_training", curves=curves(rows), **content)
    picture.redraw()


if __name__ == "__main__":
    main()
