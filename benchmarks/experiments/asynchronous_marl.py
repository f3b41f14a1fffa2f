"""Agents that learn by the asynchronous server beside a slow worker: return against time.

    python benchmarks/experiments/asynchronous_marl.py [--only WHERE] [--resume]

Four workers, one of which always takes 5 times as long, train simple_spread by IPPO, each as
`gradweave train` does with the aggregation named in the row. Two cores cannot compute for four
workers as fast as four would, so durations are emulated, as in stragglers.py: a worker sleeps for
the rest of the planned duration of a step, while games, gradients, messages and waiting are real.
All rules make the same number of steps of the game. `uncorrected`: workers learn from the
parameters that they played by, rather than pull again and weigh what they played. `killed`: a
worker dies by SIGKILL after a quarter of the updates, a server after half of them.

The same trainings run on the simulator of the same protocol, whose time is virtual and whose
messages take none, and on Ray, in real time. On the simulator longer ones run, too: each rule as
long as `sync`, and those that wait less also for 1.8 times as many steps, which is still about half
of its time. `staler` is where policies change much while a worker plays: eight workers, whose
differences count whole, half or an eighth. The seeds of a rule are learners side by side: they
share the order in which workers arrive, and nothing else.

Returns while learning are means over the episodes that ended in a line of the log, smoothed over a
tenth of the training; the return at the end is the policy's, in fresh episodes. A run has reached a
return once its smoothed return has. Rows are written as they come; `--resume`
makes the runs that are not recorded.
"""

import os
import signal
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.command_line import parser_of
from benchmarks.pictures import Picture, figure_with
from benchmarks.record import record, recorded, show
from gradweave.aggregate.asynchronous import Run, UpdateReport, simulate_training
from gradweave.aggregate.spec import AsynchronousSpec, parse
from gradweave.marl import Config, evaluate, make
from gradweave.marl.asynchronous.training import server_task, train
from gradweave.marl.learners.algorithms import build, settings
from gradweave.processes.jax_start import start_jax
from gradweave.processes.ray_cluster import cluster
from gradweave.training.log import read_log

NAME = "asynchronous_marl"
SEEDS = 3
WORKERS, SERVERS = 4, 2
STALER_WORKERS = 8
SIMULATOR, RAY, LONG, STALER = "simulator", "Ray", "simulator, longer", "simulator, staler"
STEPS = {SIMULATOR: 150_000, RAY: 150_000, LONG: 400_000, STALER: 150_000}
"""Of the game, by where a training runs."""
MORE = ", 1.8 times the steps"
SETTINGS = {"environments": 16, "rollout": 64}
STEP_S, SLOW, FACTOR = 0.15, 3, 5.0
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
    "async, rate 1/2": "consistency=async,rate=0.5",
    "async, rate 1/2, uncorrected": "consistency=async,rate=0.5,correction=false",
    "async, rate 1": "consistency=async,rate=1",
    "async, rate 1, uncorrected": "consistency=async,rate=1,correction=false",
}
KILLED = "async, killed"
RUN = {
    SIMULATOR: tuple(rule for rule in RULES if rule != KILLED and "rate" not in rule),
    RAY: ("sync", "async", KILLED, "ssp(3), catching up", "async, uncorrected"),
    LONG: (
        *("sync", f"async{MORE}", "async"),
        *(f"ssp(3), catching up{MORE}", "ssp(3), catching up"),
    ),
    STALER: (
        *("async, rate 1/2", "async, rate 1/2, uncorrected"),
        *("async, rate 1", "async, rate 1, uncorrected", "async", "async, uncorrected"),
    ),
}
"""Rules in the order in which they are run."""


def workers(where: str) -> int:
    return STALER_WORKERS if where == STALER else WORKERS


def aggregation(rule: str) -> str:
    planned = f"servers={SERVERS},step_s={STEP_S},slow={SLOW},factor={FACTOR:g}"
    return f"asynchronous:{RULES[rule.removesuffix(MORE)]},{planned}"


def config(where: str, rule: str) -> Config:
    return Config(
        "MPE_simple_spread_v3",
        "ippo",
        settings("ippo", "spread", SETTINGS),
        round(STEPS[where] * (1.8 if rule.endswith(MORE) else 1.0)),
        aggregation=aggregation(rule),
        devices=workers(where),
        seeds=SEEDS,
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


def on_ray(rule: str) -> list[dict[str, Any]]:
    """Trains as the command does."""
    of = config(RAY, rule)
    on_update = killing(of.updates * WORKERS) if rule == KILLED else lambda _: None
    with tempfile.TemporaryDirectory() as folder:
        trained = train(of, Path(folder), checkpoint_minutes=0.05, on_update=on_update)
        lines = read_log(Path(folder))
    assert trained.run is not None
    return rows_of(RAY, rule, of, trained.run, lines)


def simulated(where: str, rule: str) -> list[dict[str, Any]]:
    """Trains on the simulator."""
    of, told = config(where, rule), []
    lines: list[dict[str, Any]] = []
    spec = parse(of.aggregation)
    assert isinstance(spec, AsynchronousSpec)

    def report(made: UpdateReport) -> None:
        told.extend(one.metrics for one in made.aux)
        if len(told) < of.devices:
            return
        episodes = sum(one.episodes for one in told)
        returns = sum(one.returns.mean(-1) for one in told)
        line = {
            "seconds": made.seconds,
            "steps": of.settings.steps * made.gradients // of.devices,
            "return": (returns / np.where(episodes, episodes, np.nan)).tolist(),
        }
        if spec.correction:
            line["weight"] = np.mean([one.figures["weight"] for one in told], 0).tolist()
        lines.append(line)
        told.clear()

    run = simulate_training(server_task(of, spec), report=report)
    return rows_of(where, rule, of, run, lines)


def rows_of(
    where: str, rule: str, of: Config, run: Run, lines: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Of each seed: its policy evaluated, and its curve."""
    environment = make(of.env)
    learner = build(of, environment, lambda optimizer: optimizer)
    how = "sampled"
    returns = evaluate(
        learner, environment, run.params, how, episodes=EPISODES, seed=EVALUATION_SEED
    )
    return [
        {
            "on": where,
            "rule": rule,
            "seed": seed,
            "aggregation": of.aggregation,
            "steps": of.updates * of.settings.steps,
            "seconds": float(run.history.seconds[-1]),
            "return": one.mean,
            "error": one.error,
            "staleness_mean": float(run.history.staleness.mean()),
            "staleness_most": int(run.history.staleness.max()),
            "weight": mean(x["weight"][seed] for x in lines) if "weight" in lines[0] else None,
            "by_worker": [int((run.history.worker == i).sum()) for i in range(of.devices)],
            "replaced": run.replaced,
            "recovered": run.recovered,
            "curve": curve(lines, seed),
        }
        for seed, one in enumerate(returns)
    ]


def mean(values: Any) -> float:
    return float(np.mean(list(values)))


def curve(lines: list[dict[str, Any]], seed: int) -> dict[str, list[float]]:
    """A seed's returns while learning, smoothed over those that came before."""
    returns = np.array([x["return"][seed] for x in lines], np.float64)
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
    syncs = {(one["on"], one["seed"]): one for one in rows if one["rule"] == "sync"}
    for one in rows:
        sync = syncs.get((one["on"], one["seed"]))
        if sync is None:
            continue
        level = sync["curve"]["return"][-1]
        seconds = reached(one, level, "seconds")
        found.append(
            {
                "on": one["on"],
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
    "async, rate 1/2": "#efb118",
    "async, rate 1/2, uncorrected": "#f5d78a",
    "async, rate 1": "#9c6b4e",
    "async, rate 1, uncorrected": "#cdb5a6",
}


def draw(result: dict[str, Any], path: Path) -> None:
    """Return against time and against steps, on the simulator and on Ray: each seed."""
    rows = result["rows"]
    measured = [where for where in RUN if any(one["on"] == where for one in rows)]
    figure, panels = figure_with(
        (11, 3.5 * len(measured)), len(measured), 2, sharey=True, squeeze=False, dpi=130
    )
    for line, where in zip(panels, measured, strict=True):
        for panel, by in zip(line, ("seconds", "steps"), strict=True):
            of = [one for one in rows if one["on"] == where]
            draw_curves(panel, of, by)
            panel.set_xlabel({"seconds": "seconds", "steps": "steps of the game"}[by])
            panel.set_title(where, fontsize=10, loc="left")
            panel.grid(alpha=0.3)
        line[0].set_ylabel("return while learning, mean over agents")
        if line[0].lines:
            line[0].legend(fontsize=7, frameon=False)
    figure.savefig(path)


def draw_curves(panel: Any, rows: list[dict[str, Any]], by: str) -> None:
    for rule in dict.fromkeys(one["rule"] for one in rows):
        color = COLORS[rule.removesuffix(MORE)]
        for place, one in enumerate(x for x in rows if x["rule"] == rule):
            label, shown = rule if place == 0 else None, one["curve"]
            style = {"linestyle": "dashed" if rule.endswith(MORE) else "solid", "linewidth": 1}
            panel.plot(shown[by], shown["return"], color=color, label=label, **style)


def keep(rows: list[dict[str, Any]], load_at_start: float) -> None:
    record(
        NAME,
        libraries=("ray", "jax", "jaxlib", "jaxmarl", "optax"),
        seeds=list(range(SEEDS)),
        load_at_start=load_at_start,
        workers={where: workers(where) for where in RUN},
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
    """Measures what is asked for, and lacking."""
    picture = Picture(NAME, draw, ("rows",))
    parser = parser_of(__doc__, picture, resumes=True)
    parser.add_argument("--only", choices=RUN, help="the others stay as recorded")
    asked = parser.parse_args()
    start_jax(1)
    known, _ = recorded(NAME, ["rows"]) if asked.only or asked.resume else ({}, {})
    rows = [one for one in known.get("rows", []) if asked.resume or one["on"] != asked.only]
    done, busy = {(one["on"], one["rule"]) for one in rows}, os.getloadavg()[0]
    for where in [asked.only] if asked.only else RUN:
        lacking = [rule for rule in RUN[where] if (where, rule) not in done]
        with cluster() if where == RAY and lacking else nullcontext():
            for rule in lacking:
                rows += on_ray(rule) if where == RAY else simulated(where, rule)
                show(rows[-1])
                keep(rows, busy)
                picture.redraw()


if __name__ == "__main__":
    main()
