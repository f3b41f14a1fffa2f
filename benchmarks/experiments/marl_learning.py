"""Final returns of five seeds per task, beside random play and targets.

    python benchmarks/experiments/marl_learning.py

Each case is one `gradweave train` with the settings below. Each seed's policy is then evaluated on
4,096 unseen episodes of its own. `marl_lines.py` has the returns of simple policies and the optima.
The learned policy counts, which samples actions under PPO and is greedy under Q-learning: each
seed's return must exceed the target. Targets were set after trial runs of one to three seeds. The
other kind of actions is reported too; in overcooked two greedy agents can wait for each other for
ever. The riddle counts as learned only if the light carries information: with the light hidden,
each policy must earn less.
"""

import dataclasses
import json
import sys
import tempfile
from pathlib import Path
from typing import Any, cast

import numpy as np
from scipy import stats

from benchmarks.experiment import Rows, grid, run
from benchmarks.pictures import Picture, figure_with
from benchmarks.processes import printed_json
from gradweave.marl import load_trained
from gradweave.marl.evaluation import HOWS, How, evaluate
from gradweave.marl.games.environment import View

SEEDS, EPISODES = 5, 4096
EVALUATION_SEED = 1_000_003


@dataclasses.dataclass(frozen=True)
class Case:
    """A training and its target."""

    env: str
    algorithm: str
    steps: int
    target: float
    """Mean return over agents and episodes that the worst seed must exceed."""
    actions: str = "sampled"
    """Which actions count: sampled under PPO, greedy under Q-learning."""
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    message: int | None = None
    """Element of the observation that carries messages; hiding it must lower the return."""


CASES = {
    "simple_spread by IPPO": Case("MPE_simple_spread_v3", "ippo", 1_000_000, -20.0),
    "simple_spread by MAPPO": Case("MPE_simple_spread_v3", "mappo", 1_000_000, -20.0),
    "coin_game by IPPO": Case("coin_game:shared_rewards=true", "ippo", 1_000_000, 100.0),
    "overcooked by IPPO": Case("overcooked", "ippo", 1_000_000, 120.0),
    "simple_spread by QMIX": Case(
        "MPE_simple_spread_v3", "qmix", 1_000_000, -23.0, actions="greedy"
    ),
    "simple_spread by VDN": Case("MPE_simple_spread_v3", "vdn", 1_000_000, -23.0, actions="greedy"),
    "switch_riddle by VDN": Case("switch_riddle", "vdn", 800_000, 0.6, actions="greedy", message=1),
    "switch_riddle by QMIX": Case(
        "switch_riddle", "qmix", 400_000, 0.6, actions="greedy", message=1
    ),
}


def measure(case: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        return trained(CASES[case], Path(folder))


def trained(case: Case, folder: Path) -> dict[str, Any]:
    """Trains, evaluates, and reads the curve."""
    options = [f"--set={key}={json.dumps(value)}" for key, value in case.settings.items()]
    command = [
        *("gradweave", "train", "--env", case.env, "--algorithm", case.algorithm),
        *("--steps", str(case.steps), "--seeds", str(SEEDS), *options),
    ]
    said = printed_json(
        [sys.executable, "-m", *command, "--episodes", "16", "--output", str(folder), "--json"]
    )
    curve = [
        {"steps": row["steps"], "return": row["return"]}
        for row in map(json.loads, (folder / "log.jsonl").read_text().splitlines())
    ]
    every = max(len(curve) // 100, 1)
    returns = evaluated(case, folder)
    return {
        "command": " ".join(command),
        "target": case.target,
        "judged": case.actions,
        "reached": reached(case, returns),
        "return": returns,
        "episodes": EPISODES,
        **{key: said[key] for key in ("return_is", "steps")},
        "curve": curve[::every],
    }


def evaluated(case: Case, folder: Path) -> dict[str, Any]:
    """Returns of each seed's policy on unseen episodes, by kind of actions."""
    trained = load_trained(folder)

    def returns(how: How, learner: Any = trained.learner) -> dict[str, Any]:
        each = evaluate(
            learner,
            trained.environment,
            trained.parameters,
            how,
            episodes=EPISODES,
            seed=EVALUATION_SEED,
            same_episodes=False,
        )
        means = [one.mean for one in each]
        return {
            "mean": float(np.mean(means)),
            "by_seed": means,
            "error_by_seed": [one.error for one in each],
        }

    by_actions = {how: returns(how) for how in HOWS}
    for how in ("greedy", "sampled"):
        by_actions[how]["interval"] = interval(by_actions[how]["by_seed"])
    if case.message is not None:
        hidden = Blind(trained.learner, case.message)
        by_actions["hidden"] = returns(cast("How", case.actions), hidden)
    return by_actions


class Blind:
    """A learner whose policy observes 0 in place of one element."""

    def __init__(self, learner: Any, element: int) -> None:
        self._learner, self._element = learner, element

    def memory(self, *arguments: Any) -> Any:
        return self._learner.memory(*arguments)

    def act(self, parameters: Any, memory: Any, view: View, keys: Any, *, greedy: bool) -> Any:
        seen = view.observation.at[..., self._element].set(0)
        view = dataclasses.replace(view, observation=seen)
        return self._learner.act(parameters, memory, view, keys, greedy=greedy)


def interval(means: list[float]) -> list[float]:
    """The 95 % confidence interval of the mean over seeds, by Student's t."""
    middle, error = np.mean(means), np.std(means, ddof=1) / len(means) ** 0.5
    return list(stats.t.interval(0.95, len(means) - 1, middle, error))


def reached(case: Case, returns: dict[str, Any]) -> bool:
    """Whether each seed's policy exceeds the target, and needs the message if there is one."""
    ours = returns[case.actions]
    above = min(ours["by_seed"]) > case.target
    if case.message is None:
        return above
    hidden = returns["hidden"]
    losses = np.subtract(ours["by_seed"], hidden["by_seed"])
    errors = np.hypot(ours["error_by_seed"], hidden["error_by_seed"])
    return above and bool((losses > 2 * errors).all())


def draw(result: dict[str, Any], path: Path) -> None:
    """The curves, one panel per case: each seed, and random play."""
    rows = result["rows"]
    figure, panels = figure_with(
        (2.1 * len(rows), 6.4), 2, -(-len(rows) // 2), dpi=100, layout=None, framed=True
    )
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


if __name__ == "__main__":
    run(
        __doc__,
        Rows(grid(case=CASES), measure),
        picture=Picture("marl_learning", draw),
        libraries=("jax", "jaxmarl", "equinox", "optax"),
        seeds=list(range(SEEDS)),
    )
