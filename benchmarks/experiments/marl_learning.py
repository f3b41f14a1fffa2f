"""Learning works: returns above playing at random, three seeds each, curves and end points.

    python benchmarks/experiments/marl_learning.py [NAME ...]

Each case is one `gradweave train` in a folder of its own, on one core, with the settings below; its
policies are then judged in episodes that they have not seen, beside agents that play at random.
What there is to earn, and what simple policies do, is in `marl_lines.py`.
What counts is the policy that is learned, which draws its actions under PPO and takes the best ones
under Q-learning: each seed's return has to be above the target. Targets were set after trial runs
of one to three seeds. The other way to act is reported beside it; in overcooked two agents that
never draw can wait for each other for ever. Where names are given, the other rows stay as they are.
"""

import dataclasses
import json
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from record import RESULTS, record, versions

SEEDS, EPISODES = 3, 256


@dataclasses.dataclass(frozen=True)
class Case:
    """A training and what it has to come to."""

    env: str
    algorithm: str
    steps: int
    target: float
    """Mean over agents and episodes, that the worst seed has to be above."""
    judged: str = "sampled"
    """Which actions count: PPO learns to draw them, Q-learning to take the best."""
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    episodes: int = EPISODES
    """That it is judged by; more of short ones, whose returns differ much."""


CASES = {
    "simple_spread by IPPO": Case("MPE_simple_spread_v3", "ippo", 1_000_000, -20.0),
    "simple_spread by MAPPO": Case("MPE_simple_spread_v3", "mappo", 1_000_000, -20.0),
    "coin_game by IPPO": Case("coin_game:shared_rewards=true", "ippo", 1_000_000, 50.0),
    "overcooked by IPPO": Case("overcooked", "ippo", 1_000_000, 120.0),
    "simple_spread by QMIX": Case(
        "MPE_simple_spread_v3", "qmix", 1_000_000, -23.0, judged="greedy"
    ),
    "simple_spread by VDN": Case("MPE_simple_spread_v3", "vdn", 1_000_000, -23.0, judged="greedy"),
    "switch_riddle by VDN": Case(
        "switch_riddle", "vdn", 400_000, 0.65, judged="greedy", episodes=4096
    ),
    "switch_riddle by QMIX": Case(
        "switch_riddle", "qmix", 400_000, 0.65, judged="greedy", episodes=4096
    ),
}


def run(name: str, case: Case, folder: Path) -> dict[str, Any]:
    """Trains, judges, and reads the curve."""
    given = [f"--set={key}={json.dumps(value)}" for key, value in case.settings.items()]
    command = [
        *("gradweave", "train", "--env", case.env, "--algorithm", case.algorithm),
        *("--steps", str(case.steps), "--seeds", str(SEEDS), "--episodes", str(case.episodes)),
        *given,
    ]
    done = subprocess.run(
        [sys.executable, "-m", *command, "--output", str(folder), "--json"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    held = json.loads(done.stdout)
    curve = [
        {"steps": row["steps"], "return": row["return"]}
        for row in map(json.loads, (folder / "log.jsonl").read_text().splitlines())
    ]
    every = max(len(curve) // 100, 1)
    row = {
        "case": name,
        "command": " ".join(command),
        "target": case.target,
        "judged": case.judged,
        "reached": min(held["return"][case.judged]["by_seed"]) > case.target,
        **{key: held[key] for key in ("return", "return_is", "steps", "steps_per_s", "wall_s")},
        "curve": curve[::every],
    }
    print(json.dumps({key: row[key] for key in row if key != "curve"}), flush=True)
    return row


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """The curves, one panel a case: each seed, and playing at random."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(2, -(-len(rows) // 2), figsize=(2.1 * len(rows), 6.4))
    for panel in panels.flat[len(rows) :]:
        panel.axis("off")
    for panel, row in zip(panels.flat, rows, strict=False):
        for seed in range(SEEDS):
            points = [
                (point["steps"], point["return"][seed])
                for point in row["curve"]
                if point["return"][seed] is not None
            ]
            panel.plot(*zip(*points, strict=True), linewidth=1, label=f"seed {seed}")
        panel.axhline(row["return"]["random"]["mean"], color="grey", ls="--", label="at random")
        panel.axhline(row["target"], color="black", ls=":", label="target")
        panel.set_title(row["case"])
        panel.set_xlabel("environment steps")
        panel.grid(alpha=0.3)
    for first in panels[:, 0]:
        first.set_ylabel("return while learning, mean over agents")
    panels[0][0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=130)


def main() -> None:
    names = sys.argv[1:] or list(CASES)
    with tempfile.TemporaryDirectory() as folder:
        rows = [
            run(name, CASES[name], Path(folder) / str(number)) for number, name in enumerate(names)
        ]
    path = RESULTS / "marl_learning.json"
    known = json.loads(path.read_text())["rows"] if path.exists() else []
    found = {row["case"]: row for row in [*known, *rows]}
    rows = [found[name] for name in CASES if name in found]
    draw(rows, RESULTS / "marl_learning.png")
    libraries = {name: version(name) for name in ("jax", "jaxmarl", "equinox", "optax")}
    record(
        "marl_learning",
        "python benchmarks/experiments/marl_learning.py",
        versions=versions() | libraries,
        seeds=list(range(SEEDS)),
        episodes={name: case.episodes for name, case in CASES.items()},
        rows=rows,
    )


if __name__ == "__main__":
    main()
