"""Learning works: what five seeds each come to, beside what other ways of playing earn.

    python benchmarks/experiments/marl_learning.py [NAME ...]

Each case is one `gradweave train` in a folder of its own, with the settings below. Each seed's
policy is then judged in 4,096 episodes of its own that it has not seen. What there is to earn, and
what simple policies do, is in `marl_lines.py`.
What counts is the policy that is learned, which draws its actions under PPO and takes the best ones
under Q-learning: each seed's return has to be above the target. Targets were set after trial runs
of one to three seeds. The other way to act is reported beside it; in overcooked two agents that
never draw can wait for each other for ever. A riddle counts as learned only where the light says
something: with the light hidden, each policy has to earn less. Where names are given, the other
rows stay as they are.
"""

import dataclasses
import json
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import numpy as np
from scipy import stats

sys.path.insert(0, str(Path(__file__).parents[1]))

from record import RESULTS, record, versions

from gradweave.marl import load
from gradweave.marl.evaluation import HOWS, How, evaluate
from gradweave.marl.games.environment import View

SEEDS, EPISODES = 5, 4096
JUDGE_SEED = 1_000_003


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
    message: int | None = None
    """Element of what an agent sees that others can tell it something by; hidden, it must cost."""


CASES = {
    "simple_spread by IPPO": Case("MPE_simple_spread_v3", "ippo", 1_000_000, -20.0),
    "simple_spread by MAPPO": Case("MPE_simple_spread_v3", "mappo", 1_000_000, -20.0),
    "coin_game by IPPO": Case("coin_game:shared_rewards=true", "ippo", 1_000_000, 100.0),
    "overcooked by IPPO": Case("overcooked", "ippo", 1_000_000, 120.0),
    "simple_spread by QMIX": Case(
        "MPE_simple_spread_v3", "qmix", 1_000_000, -23.0, judged="greedy"
    ),
    "simple_spread by VDN": Case("MPE_simple_spread_v3", "vdn", 1_000_000, -23.0, judged="greedy"),
    "switch_riddle by VDN": Case("switch_riddle", "vdn", 800_000, 0.6, judged="greedy", message=1),
    "switch_riddle by QMIX": Case(
        "switch_riddle", "qmix", 400_000, 0.6, judged="greedy", message=1
    ),
}


def run(name: str, case: Case, folder: Path) -> dict[str, Any]:
    """Trains, judges, and reads the curve."""
    given = [f"--set={key}={json.dumps(value)}" for key, value in case.settings.items()]
    command = [
        *("gradweave", "train", "--env", case.env, "--algorithm", case.algorithm),
        *("--steps", str(case.steps), "--seeds", str(SEEDS), *given),
    ]
    done = subprocess.run(
        [sys.executable, "-m", *command, "--episodes", "16", "--output", str(folder), "--json"],
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
    earned = judged(case, folder)
    row = {
        "case": name,
        "command": " ".join(command),
        "target": case.target,
        "judged": case.judged,
        "reached": reached(case, earned),
        "return": earned,
        "episodes": EPISODES,
        **{key: held[key] for key in ("return_is", "steps")},
        "curve": curve[::every],
    }
    print(json.dumps({key: row[key] for key in row if key != "curve"}), flush=True)
    return row


def judged(case: Case, folder: Path) -> dict[str, Any]:
    """What each seed's policy earns in episodes of its own, by every way to act."""
    trained = load(folder)

    def earned(how: How, learner: Any = trained.learner) -> dict[str, Any]:
        each = evaluate(
            learner,
            trained.environment,
            trained.parameters,
            how,
            episodes=EPISODES,
            seed=JUDGE_SEED,
            same_episodes=False,
        )
        means = [one.mean for one in each]
        return {
            "mean": float(np.mean(means)),
            "by_seed": means,
            "error_by_seed": [one.error for one in each],
        }

    found = {how: earned(how) for how in HOWS}
    for how in ("greedy", "sampled"):
        found[how]["interval"] = interval(found[how]["by_seed"])
    if case.message is not None:
        hidden = Blind(trained.learner, case.message)
        found["hidden"] = earned(cast("How", case.judged), hidden)
    return found


class Blind:
    """A learner whose policy sees 0 in place of one element."""

    def __init__(self, learner: Any, element: int) -> None:
        self._learner, self._element = learner, element

    def memory(self, *given: Any) -> Any:
        return self._learner.memory(*given)

    def act(self, parameters: Any, memory: Any, view: View, keys: Any, *, greedy: bool) -> Any:
        seen = view.observation.at[..., self._element].set(0)
        view = dataclasses.replace(view, observation=seen)
        return self._learner.act(parameters, memory, view, keys, greedy=greedy)


def interval(means: list[float]) -> list[float]:
    """In which 95 of 100 such experiments have the mean of all seeds, by Student's t."""
    middle, error = np.mean(means), np.std(means, ddof=1) / len(means) ** 0.5
    return list(stats.t.interval(0.95, len(means) - 1, middle, error))


def reached(case: Case, earned: dict[str, Any]) -> bool:
    """Whether each seed's policy is above the target, and hiding what it is told costs each."""
    ours = earned[case.judged]
    above = min(ours["by_seed"]) > case.target
    if case.message is None:
        return above
    hidden = earned["hidden"]
    costs = np.subtract(ours["by_seed"], hidden["by_seed"])
    errors = np.hypot(ours["error_by_seed"], hidden["error_by_seed"])
    return above and bool((costs > 2 * errors).all())


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """The curves, one panel a case: each seed, and playing at random."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(2, -(-len(rows) // 2), figsize=(2.1 * len(rows), 6.4))
    for panel in panels.flat[len(rows) :]:
        panel.axis("off")
    for panel, row in zip(panels.flat, rows, strict=False):
        for seed in range(len(row["curve"][0]["return"])):
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
    for name in sys.argv[1:] or CASES:
        with tempfile.TemporaryDirectory() as folder:
            keep(run(name, CASES[name], Path(folder)))


def keep(row: dict[str, Any]) -> None:
    """Records a case in place of its earlier result."""
    path = RESULTS / "marl_learning.json"
    known = json.loads(path.read_text())["rows"] if path.exists() else []
    found = {row["case"]: row for row in [*known, row]}
    rows = [found[name] for name in CASES if name in found]
    draw(rows, RESULTS / "marl_learning.png")
    libraries = {name: version(name) for name in ("jax", "jaxmarl", "equinox", "optax")}
    record(
        "marl_learning",
        "python benchmarks/experiments/marl_learning.py",
        versions=versions() | libraries,
        seeds=list(range(SEEDS)),
        rows=rows,
    )


if __name__ == "__main__":
    main()
