"""Agents that learn by the asynchronous server beside a slow worker: return against time.

    python benchmarks/experiments/asynchronous_marl.py [--again]

Four workers, one of which always takes 5 times as long, train simple_spread by IPPO, each as
`gradweave train` does with the aggregation named in the row. Two cores cannot compute for four
workers as fast as four would, so durations are emulated, as in stragglers.py: a worker sleeps for
the rest of the planned duration of a step, while games, gradients, messages and waiting are real.
All rules make the same number of steps of the game. `uncorrected`: workers learn from the
parameters that they played by, rather than pull again and weigh what they played. `killed`: a
worker dies by SIGKILL after a quarter of the updates, a server after half of them.

Returns while learning are means over the episodes that ended in a line of the log, smoothed over a
tenth of the training; the return at the end is the policy's, in fresh episodes. A run has reached a
return once its smoothed return has. Rows are written as they come, and a run that is recorded is
not repeated without --again.
"""

import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from record import RESULTS, load, record

from gradweave.aggregate.asynchronous import UpdateReport
from gradweave.marl import Config, evaluate
from gradweave.marl.asynchronous.training import train
from gradweave.marl.learners.algorithms import settings
from gradweave.processes.ray_cluster import cluster
from gradweave.training.log import read_log

NAME = "asynchronous_marl"
SEEDS = (0, 1, 2)
WORKERS, SERVERS = 4, 2
STEPS = 250_000
SETTINGS = {"environments": 16, "rollout": 64}
STEP_S, SLOW, FACTOR = 0.1, 3, 5.0
EPISODES, EVALUATION_SEED = 1024, 1_000_003
SMOOTHED = 0.1
"""Share of a training over which returns are smoothed."""
POINTS = 100
"""Of a curve."""
RULES = {
    "sync": "consistency=sync",
    "ssp(3), catching up": "consistency=ssp,bound=3,catch_up=true",
    "ssp(3), catching up, uncorrected": "consistency=ssp,bound=3,catch_up=true,correction=false",
    "async": "consistency=async",
    "async, uncorrected": "consistency=async,correction=false",
    "async, killed": "consistency=async",
}


def aggregation(rule: str) -> str:
    planned = f"servers={SERVERS},step_s={STEP_S},slow={SLOW},factor={FACTOR:g}"
    return f"asynchronous:{RULES[rule]},{planned}"


def config(rule: str, seed: int) -> Config:
    return Config(
        "MPE_simple_spread_v3",
        "ippo",
        settings("ippo", "spread", SETTINGS),
        STEPS,
        aggregation=aggregation(rule),
        devices=WORKERS,
        seed=seed,
    )


def killing(updates: int) -> Any:
    """Kills a worker after a quarter of the updates of a server, a server after half of them."""
    left = {"workers": updates // 4, "servers": updates // 2}

    def on_update(made: UpdateReport) -> None:
        for who, at in list(left.items()):
            if made.update >= at:
                del left[who]
                os.kill(getattr(made, who)[0], signal.SIGKILL)

    return on_update


def row(rule: str, seed: int, folder: Path) -> dict[str, Any]:
    """Trains, evaluates, and reads the curve."""
    of = config(rule, seed)
    on_update = killing(of.updates * WORKERS) if rule.endswith("killed") else lambda _: None
    begin = time.monotonic()
    trained = train(of, folder, checkpoint_minutes=0.05, on_update=on_update)
    wall_s, run = time.monotonic() - begin, trained.run
    assert run is not None
    returns = evaluate(
        trained.learner,
        trained.environment,
        trained.parameters,
        "sampled",
        episodes=EPISODES,
        seed=EVALUATION_SEED,
    )[0]
    lines = read_log(folder)
    return {
        "rule": rule,
        "seed": seed,
        "aggregation": of.aggregation,
        "steps": of.updates * of.settings.steps,
        "seconds": float(run.history.seconds[-1]),
        "wall_s": round(wall_s, 1),
        "return": returns.mean,
        "error": returns.error,
        "staleness_mean": float(run.history.staleness.mean()),
        "staleness_most": int(run.history.staleness.max()),
        "weight": mean(line["weight"][0] for line in lines) if "weight" in lines[0] else None,
        "by_worker": [int((run.history.worker == i).sum()) for i in range(WORKERS)],
        "replaced": run.replaced,
        "recovered": run.recovered,
        "curve": curve(lines),
    }


def mean(values: Any) -> float:
    return float(np.mean(list(values)))


def curve(lines: list[dict[str, Any]]) -> dict[str, list[float]]:
    """Returns while learning, smoothed over those that came before."""
    returns = np.array([np.nan if x["return"][0] is None else x["return"][0] for x in lines])
    window = max(1, round(SMOOTHED * len(lines)))
    smooth = [
        float(np.nanmean(returns[i + 1 - window : i + 1])) for i in range(window - 1, len(lines))
    ]
    every = max(1, len(smooth) // POINTS)
    chosen = range(len(smooth) - 1, -1, -every)[::-1]
    return {
        "seconds": [lines[i + window - 1]["seconds"] for i in chosen],
        "steps": [lines[i + window - 1]["steps"] for i in chosen],
        "return": [round(smooth[i], 4) for i in chosen],
    }


def reached(row: dict[str, Any], level: float, by: str) -> float | None:
    """When a run's smoothed return first was at a level; None if it never was."""
    at = [i for i, one in enumerate(row["curve"]["return"]) if one >= level]
    return row["curve"][by][at[0]] if at else None


def compared(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of each run: when it reached what sync with the same seed had at its end."""
    found = []
    syncs = {one["seed"]: one for one in rows if one["rule"] == "sync"}
    for one in rows:
        sync = syncs.get(one["seed"])
        if sync is None:
            continue
        level = sync["curve"]["return"][-1]
        seconds = reached(one, level, "seconds")
        found.append(
            {
                "rule": one["rule"],
                "seed": one["seed"],
                "level": level,
                "seconds": seconds,
                "steps": reached(one, level, "steps"),
                "share_of_sync": None if seconds is None else seconds / sync["seconds"],
            }
        )
    return found


COLORS = {
    "sync": "#23262b",
    "ssp(3), catching up": "#3ca951",
    "ssp(3), catching up, uncorrected": "#a5d6ad",
    "async": "#4269d0",
    "async, uncorrected": "#9aa7e0",
    "async, killed": "#c0392b",
}


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Return against time and against steps: each seed, and the mean at the end."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.2), dpi=130, layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for panel, by in zip(panels, ("seconds", "steps"), strict=True):
        for rule, color in COLORS.items():
            for place, one in enumerate(x for x in rows if x["rule"] == rule):
                label = rule if place == 0 else None
                shown = one["curve"]
                panel.plot(shown[by], shown["return"], color=color, linewidth=1, label=label)
        panel.set_xlabel({"seconds": "seconds", "steps": "steps of the game"}[by])
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("return while learning, mean over agents")
    panels[0].legend(fontsize=7, frameon=False)
    figure.savefig(path)


def keep(rows: list[dict[str, Any]], load_at_start: float) -> None:
    draw(rows, RESULTS / f"{NAME}.png")
    record(
        NAME,
        libraries=("ray", "jax", "jaxlib", "jaxmarl", "optax"),
        seeds=SEEDS,
        load_at_start=load_at_start,
        workers=WORKERS,
        servers=SERVERS,
        settings=SETTINGS,
        step_s=STEP_S,
        slow_worker=SLOW,
        factor=FACTOR,
        episodes=EPISODES,
        emulation="durations by sleep, games and gradients real",
        compared=compared(rows),
        rows=rows,
    )


def main() -> None:
    before = (RESULTS / f"{NAME}.json").exists() and "--again" not in sys.argv[1:]
    rows: list[dict[str, Any]] = load(NAME)["rows"] if before else []
    done, busy = {(one["rule"], one["seed"]) for one in rows}, os.getloadavg()[0]
    with cluster():
        for seed in SEEDS:
            for rule in RULES:
                if (rule, seed) in done:
                    continue
                with tempfile.TemporaryDirectory() as folder:
                    rows.append(row(rule, seed, Path(folder)))
                print({k: v for k, v in rows[-1].items() if k != "curve"}, flush=True)
                keep(rows, busy)


if __name__ == "__main__":
    main()
