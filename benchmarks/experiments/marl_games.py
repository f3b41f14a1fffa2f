"""Win rates, scores and others of games' own measures, by trainings of a processor's budget.

    python benchmarks/experiments/marl_games.py [--only NAME ...] [--folder FOLDER]

Each case is one `gradweave train` of three seeds side by side, whose policies then play new
episodes, by drawn actions and by best ones, beside random play. Settings were chosen on other seeds
(from 100 on) than those reported (10, 11, 12). Curves are of drawn actions while learning: the
measure's mean over the episodes that ended in an update. With `--only`, recorded rows of other
cases are kept; with `--folder`, trainings are kept there, and resumed. `--attempt FOLDER` measures
nothing: it records how far a training with other settings came that was ended early.
"""

import dataclasses
import json
import resource
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.command_line import parser_of
from benchmarks.pictures import Picture, figure_with
from benchmarks.processes import printed_json
from benchmarks.record import record, recorded
from gradweave.marl.folder import begun
from gradweave.report.curves import read_curve

NAME = "marl_games"
FIRST, SEEDS, POINTS = 10, 3, 60
LAST = 50
"""Updates over which the log of an attempt is averaged."""


@dataclasses.dataclass(frozen=True)
class Case:
    """A training, and what it is judged by."""

    env: str
    steps: int
    measure: str
    """The game's own, or ``return``."""
    settings: dict[str, Any]
    target: float | None = None
    """That each seed's policy must exceed by its best actions, as in SMAC's test win rate."""
    algorithm: str = "ippo"
    episodes: int = 512
    """In which each learner's policy is evaluated."""

    def command(self) -> list[str]:
        """Of the training."""
        options = [f"--set={key}={json.dumps(value)}" for key, value in self.settings.items()]
        return [
            *("gradweave", "train", "--env", self.env, "--algorithm", self.algorithm),
            *("--steps", str(self.steps), "--seed", str(FIRST), "--seeds", str(SEEDS)),
            *("--episodes", str(self.episodes)),
            *options,
        ]


SMAX = {
    "environments": 64,
    "rollout": 32,
    "hidden": [64, 64],
    "activation": "relu",
    "learning_rate": 4e-3,
    "clip_ratio": 0.1,
    "max_gradient_norm": 0.25,
}
SMALL = "hanabi:num_colors=2,num_ranks=5,hand_size=2,max_info_tokens=3,max_life_tokens=1"
"""Hanabi-Small of the Hanabi Learning Environment (Bard et al. 2020): the best score is 10."""
CARDS = {"environments": 64, "rollout": 32, "hidden": [64, 64], "learning_rate": 2e-3}
MATRIX = {"environments": 64, "rollout": 32, "hidden": [64, 64]}
CASES = {
    "SMAX 3m": Case("HeuristicEnemySMAX:scenario=3m", 1_600_000, "win_rate", SMAX, target=0.9),
    "Hanabi, small": Case(SMALL, 100_000, "score", CARDS),
    "SMAX 2s3z": Case("HeuristicEnemySMAX:scenario=2s3z", 1_600_000, "win_rate", SMAX),
    "storm": Case("storm", 1_000_000, "return", MATRIX, episodes=128),
    "jaxnav": Case(
        *("jaxnav", 200_000, "arrived_rate", MATRIX | {"learning_rate": 2e-3}), episodes=64
    ),
}


def run(name: str, folder: Path) -> dict[str, Any]:
    """Trains, evaluates, and reads the curve."""
    case = CASES[name]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = printed_json(
        [sys.executable, "-m", *case.command(), "--output", str(folder), "--json"]
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    best = judged(case, result, "greedy")
    return {
        "case": name,
        "command": " ".join(case.command()),
        "env": case.env,
        "algorithm": case.algorithm,
        "steps": result["steps"],
        "episodes": result["episodes"],
        "measure": case.measure,
        "target": case.target,
        "reached": None if case.target is None else min(best) > case.target,
        **{how: of_how(case, result, how) for how in ("sampled", "greedy", "random")},
        "curve": curve_of(case, folder),
        # A training that was resumed took more than this command did.
        "cpu_s": None if result["resumed_from"] else spent,
    }


def judged(case: Case, result: dict[str, Any], how: str) -> list[float]:
    """What each seed's policy is judged by."""
    of = result["return"][how]
    return of["by_seed"] if case.measure == "return" else of["measures"][case.measure]


def of_how(case: Case, result: dict[str, Any], how: str) -> dict[str, Any]:
    """What policies came to by their way of acting: means over episodes."""
    each = judged(case, result, how)
    of = result["return"][how]
    return {
        "by_seed": each,
        "mean": float(np.mean(each)),
        "return": of["mean"],
        "length": of["length"],
        "measures": {name: float(np.mean(values)) for name, values in of["measures"].items()},
    }


def curve_of(case: Case, folder: Path) -> dict[str, list[Any]]:
    """The measure while learning, smoothed to so many points: by steps, each seed's."""
    curve = read_curve(folder, case.measure)
    every = max(1, len(curve.steps) // POINTS)
    smooth = curve.smoothed(every)
    rows = [
        (steps, [None if np.isnan(value) else round(float(value), 4) for value in values])
        for steps, values in zip(
            smooth.steps[every - 1 :: every], smooth.values[every - 1 :: every], strict=True
        )
    ]
    return {"steps": [int(steps) for steps, _ in rows], "by_seed": [each for _, each in rows]}


def attempt(folder: Path, measure: str = "win_rate") -> dict[str, Any]:
    """How far a training came that was ended early, by its log: drawn actions while learning."""
    _, about = begun(folder) or parser_of(__doc__).error(f"{folder}: has no checkpoint")
    config, curve = about["config"], read_curve(folder, measure).smoothed(LAST)
    return {
        "env": config["env"],
        "algorithm": config["algorithm"],
        "seed": config["seed"],
        "settings": {
            name.removeprefix("settings."): value
            for name, value in config.items()
            if name.startswith("settings.")
        },
        "steps": int(curve.steps[-1]),
        "of_steps": config["steps"],
        "measure": measure,
        "at": {
            str(int(steps)): [round(float(value), 4) for value in values]
            for steps, values in zip(
                curve.steps[LAST - 1 :: LAST], curve.values[LAST - 1 :: LAST], strict=True
            )
        },
    }


def draw(result: dict[str, Any], path: Path) -> None:
    """The curves, one panel a case: mean and range over seeds, random play and the target."""
    rows: Sequence[dict[str, Any]] = result["rows"]
    columns = min(3, len(rows))
    lines = -(-len(rows) // columns)
    figure, panels = figure_with((4.0 * columns, 2.9 * lines), lines, columns, squeeze=False)
    for panel in panels.flat[len(rows) :]:
        panel.axis("off")
    for panel, row in zip(panels.flat, rows, strict=False):
        values = np.array(row["curve"]["by_seed"], float)
        there = np.isfinite(values).any(1)
        steps, values = np.array(row["curve"]["steps"])[there] / 1e6, values[there]
        panel.fill_between(steps, np.nanmin(values, 1), np.nanmax(values, 1), alpha=0.2, lw=0)
        panel.plot(steps, np.nanmean(values, 1), label=f"mean and range of {values.shape[1]} seeds")
        panel.axhline(row["random"]["mean"], color="grey", ls="--", label="at random")
        if row["target"] is not None:
            panel.axhline(row["target"], color="black", ls=":", label="target")
        panel.set_title(f"{row['case']}: {row['measure'].replace('_', ' ')}", fontsize=9)
        panel.set_xlabel("million steps of each learner", fontsize=8)
        panel.tick_params(labelsize=8)
        panel.grid(alpha=0.3)
    panels.flat[0].legend(fontsize=7)
    figure.savefig(path)


def keep(by_case: dict[str, Any], attempts: list[Any], kept: dict[str, Any]) -> None:
    """Writes the result."""
    record(
        NAME,
        libraries=("jax", "jaxmarl", "equinox", "optax"),
        kept=kept,
        seed=FIRST,
        learners=SEEDS,
        attempts=attempts,
        rows=[by_case[case] for case in CASES if case in by_case],
    )


def main() -> None:
    picture = Picture(NAME, draw, ("rows",))
    parser = parser_of(__doc__, picture)
    parser.add_argument("--only", nargs="+", choices=CASES)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--attempt", nargs="+", type=Path)
    options = parser.parse_args()
    known, kept = recorded(NAME, ["rows", "attempts"])
    by_case = {row["case"]: row for row in known.get("rows", [])}
    if options.attempt:
        keep(by_case, [attempt(folder) for folder in options.attempt], {})
        return
    with tempfile.TemporaryDirectory() as scratch:
        for name in options.only or CASES:
            folder = (options.folder or Path(scratch)) / name.replace(" ", "_")
            by_case[name] = run(name, folder)
            print(json.dumps({k: v for k, v in by_case[name].items() if k != "curve"}), flush=True)
            keep(by_case, known.get("attempts", []), kept)
            picture.redraw()


if __name__ == "__main__":
    main()
