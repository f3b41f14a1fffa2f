"""PPO on simple_spread: Gradweave beside RLlib, the same game, networks and settings, two cores.

    python benchmarks/experiments/rllib.py [--folder build/rllib-venv]

RLlib, torch and mpe2 are installed in a virtual environment of their own, created in the folder on
the first run (2 GB; torch's CPU wheel suffices). `peers/rllib_side.py` runs in it.

1. Parity. `mpe2.simple_spread_v3` plays random actions, half of its episodes crowded; JaxMARL's
   game replays them, each step from mpe2's state, and each episode from its initial state. The
   largest differences are recorded. JaxMARL's episodes have 26 steps by default, mpe2's 25: both
   have 25 here.
2. Training. Seeds and sides take turns, each training in a new process with both cores: RLlib with
   two env runners and one learner, or two learners (torch's DDP over gloo); Gradweave on one and on
   two devices, each twice: first with an empty compilation cache, then with the cache of the first
   run, as for commands. Returns are the mean over agents of an episode's reward, over the episodes
   that ended in an update, while learning. Time counts from the start of the process: imports,
   Ray's start, compilation. An update's time is when it is reported, which Gradweave does about
   once a second. The sustained rate leaves out RLlib's first two updates and Gradweave's first
   call.

RLlib's settings make its loss equal to Gradweave's; initial parameters and Adam's ε are set in the
same way. Remaining differences: RLlib normalises advantages over a batch rather than a minibatch,
and adds a masked row to each fragment of an episode, so that its minibatches have 6500 rows rather
than 6144, for the same 16 steps of the optimizer.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.command_line import parser_of
from benchmarks.pictures import Picture, figure_with
from benchmarks.record import record

PINNED = (
    *("ray[rllib]==2.60.0", "torch==2.13.0", "mpe2==1.1.1"),
    *("pettingzoo==1.27.0", "gymnasium==1.2.2", "numpy==2.4.6"),
)
SIDE = Path(__file__).parents[1] / "peers" / "rllib_side.py"
ENV = "MPE_simple_spread_v3:max_steps=24"
"""JaxMARL counts from 0: episodes have 25 steps, as in mpe2."""
SHARED: dict[str, Any] = {
    "environments": 64, "rollout": 128, "epochs": 4, "learning_rate": 1e-3, "discount": 0.95,
    "gae_lambda": 0.95, "clip_ratio": 0.2, "entropy_coefficient": 0.01, "value_coefficient": 0.5,
    "max_gradient_norm": 0.5, "hidden": [64, 64],
}  # fmt: skip
OURS = {"minibatches": 4, "decay": False, "truncation": "end", "activation": "tanh"}
THEIRS = {"env_runners": 2, "minibatch_rows": 6500}
STEPS_OF_UPDATE = SHARED["environments"] * SHARED["rollout"]
UPDATES, OUR_UPDATES = 14, 100
"""Of RLlib, and of Gradweave, which are cheaper."""
SEEDS = (0, 1, 2)
TARGET = -22.5
"""Target return: mean of three updates."""
PARITY_EPISODES = 400


@dataclasses.dataclass(frozen=True)
class Case:
    """A side and its number of learners or devices."""

    side: str
    name: str
    parts: int
    """RLlib's remote learners, or Gradweave's devices."""
    cached: bool = False
    """With the compilation cache of the case before it."""


CASES = (
    Case("rllib", "RLlib, one learner", 0),
    Case("gradweave", "Gradweave, 1 device", 1),
    Case("gradweave", "Gradweave, 1 device, later run", 1, cached=True),
    Case("rllib", "RLlib, two learners", 2),
    Case("gradweave", "Gradweave, 2 devices", 2),
    Case("gradweave", "Gradweave, 2 devices, later run", 2, cached=True),
)
RUNS = {
    "rllib": [case.name for case in CASES if case.side == "rllib"],
    "first_run": [case.name for case in CASES if case.side == "gradweave" and not case.cached],
    "later_run": [case.name for case in CASES if case.side == "gradweave" and case.cached],
}


def installed(folder: Path) -> Path:
    """RLlib's virtual environment's Python; creates it if needed."""
    python, pins = folder / "bin" / "python", folder / "pinned.txt"
    if not pins.exists() or pins.read_text().split() != list(PINNED):
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PINNED], check=True)
        pins.write_text("\n".join(PINNED) + "\n")
    return python.absolute()


def parity(python: Path, folder: Path) -> dict[str, Any]:
    """The largest differences between both games, over random episodes."""
    import jax
    import jax.numpy as jnp

    from gradweave.marl.games.environments import make

    path = folder / "play.npz"
    subprocess.run([python, SIDE, "play", path, "0", str(PARITY_EPISODES)], check=True)
    theirs = np.load(path)
    game = make(ENV).game
    agents = list(game.agents)
    start = game.reset(jax.random.key(0))[1]

    def stacked(by_agent: dict[str, Any]) -> Any:
        return jnp.stack([by_agent[agent] for agent in agents])

    def step(state: Any, action: Any) -> tuple[Any, Any]:
        by_agent = {agent: action[i] for i, agent in enumerate(agents)}
        seen, state, reward, done, _ = game.step_env(jax.random.key(0), state, by_agent)
        return state, (stacked(seen), stacked(reward), done["__all__"], state.p_pos, state.p_vel)

    def at(p: Any, v: Any) -> Any:
        return start.replace(p_pos=p.astype(jnp.float32), p_vel=v.astype(jnp.float32))

    @jax.jit
    @jax.vmap
    def one_step(p: Any, v: Any, action: Any) -> Any:
        return step(at(p, v), action)[1]

    @jax.jit
    @jax.vmap
    def episode(p: Any, v: Any, actions: Any) -> Any:
        return jax.lax.scan(step, at(p, v), actions)[1]

    p, v, actions = theirs["p"], theirs["v"], theirs["action"]
    expected = theirs["seen"], theirs["reward"], theirs["over"][:, :, 0], p[:, 1:], v[:, 1:]

    def flat(x: Any) -> Any:
        return x.reshape(-1, *x.shape[2:])

    single = one_step(flat(p[:, :-1]), flat(v[:, :-1]), flat(actions))
    whole = episode(p[:, 0], v[:, 0], actions)

    def largest(got: Any, expected: Any) -> dict[str, float]:
        names = ("observation", "reward", "position", "velocity")
        pairs = [(got[i], expected[i]) for i in (0, 1, 3, 4)]
        return {
            name: float(np.abs(np.asarray(one, np.float64) - other).max())
            for name, (one, other) in zip(names, pairs, strict=True)
        }

    between = np.linalg.norm(p[:, 1:, :3, None] - p[:, 1:, None, :3], axis=-1)
    touching = ((between < 0.3).sum((-1, -2)) > 3).mean()
    longer = make("MPE_simple_spread_v3").game.max_steps + 1
    return {
        "episodes": PARITY_EPISODES,
        "steps": int(actions.shape[0] * actions.shape[1]),
        "share_of_steps_with_agents_touching": float(touching),
        "largest_difference_of_one_step": largest(single, tuple(map(flat, expected))),
        "largest_difference_in_an_episode": largest(whole, expected),
        "ends_agree": bool((np.asarray(whole[2]) == expected[2]).all()),
        "steps_of_an_episode": {"mpe2": int(actions.shape[1]), "JaxMARL's default": longer},
        "return_at_random": float(theirs["reward"][::2].sum(1).mean()),
    }


def train_case(case: Case, seed: int, python: Path, folder: Path) -> dict[str, Any]:
    """One training in a process of its own.

    Args:
        folder: also has the compilation caches, by number of devices and seed.
    """
    with tempfile.TemporaryDirectory(dir=folder) as run_folder:
        options = {**SHARED, "seed": seed, "folder": run_folder}
        if case.side == "rllib":
            options |= {**THEIRS, "learners": case.parts, "updates": UPDATES}
            command = [python, SIDE, "train"]
        else:
            cache = folder / f"compiled-{case.parts}-{seed}"
            if cache.exists() != case.cached:
                raise SystemExit(f"{case.name}: unexpected state of the compilation cache {cache}")
            options |= {"devices": case.parts, "updates": OUR_UPDATES, "compiled": str(cache)}
            command = [sys.executable, __file__, "--train"]
        settings = Path(run_folder) / "settings.json"
        settings.write_text(json.dumps(options))
        load, begin = os.getloadavg()[0], time.time()
        lines = reports([*command, settings], Path(run_folder) / "errors.txt")
    first, *rows = [{**line, "at": line["at"] - begin} for line in lines]
    row = {
        "case": case.name,
        "side": case.side,
        "seed": seed,
        "load_at_start": load,
        **summary(rows, 2 if case.side == "rllib" else first["calls_of_one_update"]),
        "about": {key: value for key, value in first.items() if key != "at"},
        "curve": [[round(r["at"], 3), r["steps"], round(r["mean_return"], 4)] for r in rows],
    }
    print(json.dumps({k: x for k, x in row.items() if k not in ("curve", "about")}), flush=True)
    return row


def reports(command: list[Any], errors: Path) -> list[dict[str, Any]]:
    """The lines of JSON that a process prints; its process group is killed at the end."""
    with errors.open("w") as sink:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=sink, text=True, start_new_session=True
        )
        try:
            out, _ = process.communicate(timeout=600)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
        raise SystemExit(f"{command} failed:\n{errors.read_text()[-3000:]}")
    return [json.loads(line[1:]) for line in out.splitlines() if line.startswith("@")]


def summary(rows: list[dict[str, Any]], warming: int) -> dict[str, Any]:
    """Rate, times and returns of a training."""
    before, last = rows[warming - 1], rows[-1]
    fixed = UPDATES * STEPS_OF_UPDATE
    at_fixed = next(i for i, row in enumerate(rows) if row["steps"] >= fixed)
    means = [
        statistics.fmean(r["mean_return"] for r in rows[i - 2 : i + 1]) for i in range(2, len(rows))
    ]
    reached = next((i + 2 for i, mean in enumerate(means) if mean >= TARGET), None)
    return {
        "sustained_steps_per_s": (last["steps"] - before["steps"]) / (last["at"] - before["at"]),
        "first_update_s": rows[0]["at"],
        "wall_s_to_fixed_steps": rows[at_fixed]["at"],
        "return_at_fixed_steps": means[at_fixed - 2],
        "wall_s_to_target": None if reached is None else rows[reached]["at"],
        "steps_to_target": None if reached is None else rows[reached]["steps"],
        "steps": last["steps"],
        "wall_s": last["at"],
        "return_at_end": means[-1],
    }


def train(settings: Path) -> None:
    """Gradweave's side: trains as `gradweave train` does, and prints when updates are reported."""
    options = json.loads(settings.read_text())
    os.environ["XDG_CACHE_HOME"] = options["compiled"]
    from gradweave.processes.jax_start import start_jax

    start_jax(options["devices"])

    import jax

    from gradweave.marl import training
    from gradweave.marl.config import Config
    from gradweave.marl.learners import algorithms
    from gradweave.training.log import read_log

    shared = {key: options[key] for key in SHARED}
    config = Config(
        env=ENV,
        algorithm="ippo",
        settings=algorithms.settings("ippo", "spread", {**shared, **OURS}),
        steps=options["updates"] * STEPS_OF_UPDATE,
        devices=options["devices"],
        seed=options["seed"],
    )
    folder = Path(options["folder"]) / "training"
    reported: list[tuple[int, float]] = []
    done = training.train(
        config, folder, report=lambda progress: reported.append((progress.update, time.time()))
    )
    shapes = [list(x.shape[1:]) for x in jax.tree.leaves(done.parameters)]
    calls = iter(reported)
    until, at = next(calls)
    libraries = {name: version(name) for name in ("jax", "jaxmarl", "equinox", "optax")}
    lines = [{"at": at, "parameters": shapes, "calls_of_one_update": until, "versions": libraries}]
    for row in read_log(folder):
        if row["update"] > until:
            until, at = next(calls)
        lines.append({"at": at, "steps": row["steps"], "mean_return": row["return"][0]})
    for line in lines:
        print("@" + json.dumps(line))


def _best(medians: list[dict[str, Any]], key: str, *, most: bool) -> dict[str, Any]:
    """Of the cases that reached what the figure asks for."""
    reached = [row for row in medians if row[key] is not None]
    return max(reached, key=lambda row: row[key] if most else -row[key])


def compared(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians by case, and ratios to RLlib seed by seed.

    Ours is the case with the highest sustained rate; RLlib's the best in each of the figures, since
    the one with the higher rate is not the one that is sooner at the return.
    """
    keys = (
        *("sustained_steps_per_s", "first_update_s", "wall_s_to_fixed_steps"),
        *("return_at_fixed_steps", "wall_s_to_target", "steps_to_target", "return_at_end"),
    )

    def median(case: Case, key: str) -> float | None:
        values = [row[key] for row in rows if row["case"] == case.name]
        return None if None in values else statistics.median(values)

    medians = [
        {"case": case.name, "side": case.side, **{key: median(case, key) for key in keys}}
        for case in CASES
    ]
    rate = "sustained_steps_per_s"
    fastest = {
        run: max((m for m in medians if m["case"] in names), key=lambda m: m[rate])["case"]
        for run, names in RUNS.items()
    }
    at = {(row["case"], row["seed"]): row for row in rows}
    compared_keys = (rate, "wall_s_to_fixed_steps", "wall_s_to_target")
    theirs = [row for row in medians if row["case"] in RUNS["rllib"]]
    best = {key: _best(theirs, key, most=key == rate)["case"] for key in compared_keys}

    def ratios(run: str, key: str) -> list[float]:
        pairs = [(at[fastest[run], seed][key], at[best[key], seed][key]) for seed in SEEDS]
        known = [(ours, theirs) for ours, theirs in pairs if ours and theirs]
        return [ours / theirs if key == rate else theirs / ours for ours, theirs in known]

    return {
        "medians": medians,
        "fastest": fastest,
        "rllib_best": best,
        "times_rllib": {
            run: {key: ratios(run, key) for key in compared_keys}
            for run in ("first_run", "later_run")
        },
    }


def draw(result: dict[str, Any], path: Path) -> None:
    """Return against time, one line per training; updates reported together are one point."""
    rows, at_random = result["rows"], result["parity"]["return_at_random"]
    figure, panel = figure_with((7, 4.2), dpi=100, layout=None, framed=True)
    colours = {case.name: f"C{i}" for i, case in enumerate(CASES)}
    for row in rows:
        together: dict[float, list[float]] = {}
        for at, _, value in row["curve"]:
            together.setdefault(at, []).append(value)
        seconds, returns = list(together), [statistics.fmean(x) for x in together.values()]
        label = row["case"] if row["seed"] == SEEDS[0] else None
        panel.plot(seconds, returns, color=colours[row["case"]], lw=1.2, alpha=0.8, label=label)
    panel.axhline(at_random, color="grey", ls="--", lw=1, label="at random")
    panel.axhline(TARGET, color="black", ls=":", lw=1, label="stated return")
    panel.set_xscale("log")
    ticks = (5, 10, 15, 20, 30, 40, 60)
    panel.set_xticks(ticks, [str(tick) for tick in ticks])
    panel.set_xticks([], minor=True)
    panel.set_xlabel("seconds since the process was started")
    panel.set_ylabel("return while learning, mean over agents")
    panel.set_title("PPO on simple_spread, two cores, three seeds")
    panel.grid(alpha=0.3, which="both")
    panel.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=130)


def main() -> None:
    picture = Picture("rllib", draw, ("parity", "rows"))
    parser = parser_of(__doc__, picture)
    parser.add_argument("--folder", type=Path, default=Path("build/rllib-venv"))
    parser.add_argument("--train", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.train:
        train(arguments.train)
        return
    load = os.getloadavg()
    python = installed(arguments.folder)
    # Ray's sockets need short paths.
    with tempfile.TemporaryDirectory(prefix="rl") as folder:
        games = parity(python, Path(folder))
        print(json.dumps(games), flush=True)
        rows = [train_case(case, seed, python, Path(folder)) for seed in SEEDS for case in CASES]
    result = compared(rows)
    print(json.dumps(result, indent=1), flush=True)
    about = {row["case"]: row.pop("about") for row in rows}
    record(
        "rllib",
        other_versions=about[CASES[1].name].pop("versions")
        | {f"rllib side: {name}": v for name, v in about[CASES[0].name].pop("versions").items()},
        pinned=PINNED,
        seeds=SEEDS,
        load_at_start=load,
        settings={"shared": SHARED, "gradweave": OURS, "rllib": THEIRS},
        parameters={CASES[i].side: about[CASES[i].name]["parameters"] for i in (0, 1)},
        fixed_steps=UPDATES * STEPS_OF_UPDATE,
        target=TARGET,
        parity=games,
        **result,
        rows=rows,
    )
    picture.redraw()


if __name__ == "__main__":
    main()
