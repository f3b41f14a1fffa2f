"""Agents that learn apart with reward machines: published figures, checks, rendezvous, gossip.

    python benchmarks/experiments/machines.py [--only PART] [--resume]

`published`: 50 trials of the generator and the laboratory, without and with causal knowledge, each
agent alone; the running median of the team's steps as the authors plot it, beside their code's,
quantiles of the trials, and steps to 90 % of the final speed. `central`: the same by one learner
for the team, 10 trials.
`checker`: 1,000 random machines of 3 to 5 states on 3 events, divided at random between two agents,
half of them with a causal automaton: the checker beside brute force over all traces of up to 8
events, and every counterexample replayed. `rendezvous`: steps until the median team meets and
reaches its goals in at most 200 steps, 2 to 10 agents, apart and as one, 5 trials. `gossip`: eight
teams that average the tables of agents of the same role on a network, five groups of them.
`deep_iql`, `deep_ippo`, `deep_qmix`: IQL, IPPO and QMIX on the generator with and without the
machine.

Each part is written as soon as it is measured; `--resume` measures those that are not there.
"""

import functools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.command_line import parser_of
from benchmarks.pictures import Picture, figure_with
from benchmarks.record import record, recorded

TRIALS = 50
PUBLISHED = {
    ("generator", False): {10_000: 778.0, 20_000: 22.5},
    ("generator", True): {10_000: 118.0, 20_000: 19.0},
    ("laboratory", False): {25_000: 849.0, 45_000: 50.0},
    ("laboratory", True): {25_000: 42.0, 45_000: 46.0},
}
"""The authors' code, 20 trials, as measured before: running medians after so many steps."""
STEPS = {"generator": 20_000, "laboratory": 50_000}
CENTRAL_STEPS = {"generator": 100_000, "laboratory": 200_000}
"""Of the generator the authors take 150,000, of the laboratory 1,500,000."""
MACHINES, LONGEST = 1000, 8
SOLVED = 200.0
"""Steps to all goals with which the rendezvous counts as solved."""
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Of trials, that are kept of each test."""
DEEP_STEPS, DEEP_EPISODE, SEEDS = 200_000, 200, 1


def published() -> list[dict[str, Any]]:
    return [_learned(name, causal, STEPS[name], central=False) for name, causal in PUBLISHED]


def central() -> list[dict[str, Any]]:
    return [
        _learned(name, causal, CENTRAL_STEPS[name], central=True, trials=10)
        for name, causal in PUBLISHED
    ]


def _learned(
    name: str, causal: bool, steps: int, *, central: bool, trials: int = TRIALS
) -> dict[str, Any]:
    from gradweave.marl.tabular.learning import learn
    from gradweave.marl.worlds.catalogue import world

    begun = time.perf_counter()
    curve, _ = learn(world(name), steps=steps, trials=trials, causal=causal, central=central)
    seconds = time.perf_counter() - begun
    medians = curve.medians()
    middle = np.median(curve.taken, 1)
    final = float(middle[-10:].mean())
    row = {
        "world": name,
        "causal": causal,
        "central": central,
        "trials": trials,
        "steps": steps,
        "seconds": seconds,
        "running_median": {str(s): float(m) for s, m in zip(curve.steps, medians, strict=True)},
        "taken": {
            str(s): [float(q) for q in np.quantile(each, QUANTILES)]
            for s, each in zip(curve.steps, curve.taken, strict=True)
        },
        "final_steps": final,
        "to_90_percent": _reached(curve.steps, middle, final / 0.9),
        "published": {str(k): v for k, v in PUBLISHED[name, causal].items()},
    }
    print({k: v for k, v in row.items() if k not in ("running_median", "taken")}, flush=True)
    return row


def curves(result: dict[str, Any], path: Path) -> None:
    """Steps of the team against training steps: median, middle half and middle 90 % of trials."""
    figure, panels = figure_with((8.4, 3.4), 1, 2, dpi=140)
    for world, panel in zip(STEPS, panels, strict=True):
        for row in [one for one in result["published"] if one["world"] == world]:
            steps = [int(step) for step in row["taken"]]
            low, lower, middle, upper, high = zip(*row["taken"].values(), strict=True)
            colour = "C1" if row["causal"] else "C0"
            label = "causal knowledge" if row["causal"] else "none"
            panel.plot(steps, middle, color=colour, label=label)
            panel.fill_between(steps, lower, upper, color=colour, alpha=0.3, linewidth=0)
            panel.fill_between(steps, low, high, color=colour, alpha=0.12, linewidth=0)
        panel.set(title=world, xlabel="training steps", yscale="log")
    panels[0].set_ylabel("steps of the team (1,000: not solved)")
    panels[0].legend(frameon=False)
    figure.savefig(path)


def _reached(steps: np.ndarray, median: np.ndarray, goal: float) -> int | None:
    """Training steps before the first test from which on the median of three tests is as good."""
    for place in range(len(median)):
        if np.median(median[place : place + 3]) <= goal:
            return int(steps[place])
    return None


def checker() -> dict[str, Any]:
    from gradweave.automata import check, projection, replay
    from tests.automata.machines import (
        brute_force,
        random_automaton,
        random_division,
        random_machine,
    )

    rng = np.random.default_rng(0)
    counts = {"valid": 0, "refuted": 0, "agree": 0, "replayed": 0, "beyond": 0}
    begun, ours = time.perf_counter(), 0.0
    for number in range(MACHINES):
        team = random_machine(rng, int(rng.integers(3, 6)), "abc", 0.6)
        division = random_division(rng, "abc")
        causal = random_automaton(rng, "abc") if number % 2 else None
        agents = [projection(team, events) for events in division]
        start = time.perf_counter()
        verdict = check(team, agents, causal)
        ours += time.perf_counter() - start
        found = verdict.counterexample
        if found is None or len(found) > LONGEST:
            counts["beyond"] += found is not None
            counts["agree"] += brute_force(team, division, causal, LONGEST) is None
        else:
            shortest = brute_force(team, division, causal, len(found))
            counts["agree"] += shortest is not None and len(shortest) == len(found)
        counts["valid" if verdict.valid else "refuted"] += 1
        if found is not None:
            ends = replay(agents, found)
            done = all(m.final[s] for m, s in zip(agents, ends, strict=True))
            team_done = bool(team.final[team.states.index(team.run(found)[0])])
            counts["replayed"] += done != team_done
    row = {"machines": MACHINES, "longest": LONGEST, **counts, "check_seconds": ours}
    row["seconds"] = time.perf_counter() - begun
    print(row, flush=True)
    return row


def rendezvous() -> list[dict[str, Any]]:
    from gradweave.errors import OptionError
    from gradweave.marl.tabular.learning import learn
    from gradweave.marl.worlds.catalogue import world

    rows = []
    for agents in (2, 3, 5, 10):
        for central in (False, True):
            row: dict[str, Any] = {"agents": agents, "central": central}
            steps = 150_000 if central else 20_000
            try:
                begun = time.perf_counter()
                curve, _ = learn(
                    world("rendezvous", agents=agents), steps=steps, trials=5, central=central
                )
                middle = np.median(curve.taken, 1)
                row |= {
                    "steps": steps,
                    "solved_after": _reached(curve.steps, middle, SOLVED),
                    "final_steps": float(middle[-5:].mean()),
                    "medians": middle.tolist(),
                    "seconds": time.perf_counter() - begun,
                }
            except OptionError as error:
                row["refused"] = str(error)
            print(row, flush=True)
            rows.append(row)
    return rows


def gossip() -> list[dict[str, Any]]:
    from gradweave.aggregate import MixingMatrix
    from gradweave.marl.tabular.learners import Learning
    from gradweave.marl.tabular.learning import learn
    from gradweave.marl.worlds.catalogue import world

    rows = []
    networks = {"none": None, "ring": MixingMatrix.ring(8), "all": MixingMatrix.complete(8)}
    for name in ("generator", "laboratory"):
        for network, mixing in networks.items():
            for every in (100, 1000) if mixing else (0,):
                curve, _ = learn(
                    world(name),
                    steps=STEPS[name],
                    trials=40,
                    causal=True,
                    settings=Learning(average_every=every),
                    weights=None if mixing is None else mixing.weights[0],
                )
                middle = np.median(curve.taken, 1)
                worst = np.quantile(curve.taken, 0.9, axis=1)
                row = {
                    "world": name,
                    "network": network,
                    "every": every,
                    "solved_after": _reached(curve.steps, middle, 60.0),
                    "solved_by_nine_tenths_after": _reached(curve.steps, worst, 60.0),
                    "final_steps": float(middle[-5:].mean()),
                    "sent_bytes_per_team": curve.sent_bytes // 40,
                }
                print(row, flush=True)
                rows.append(row)
    return rows


def deep(algorithm: str) -> list[dict[str, Any]]:
    rows = []
    for machine in ("own", None):
        with tempfile.TemporaryDirectory() as folder:
            command = [
                *("train", "--env", f"generator:max_steps={DEEP_EPISODE}"),
                *("--algorithm", algorithm, "--steps", str(DEEP_STEPS), "--seeds", str(SEEDS)),
                *("--episodes", "64", "--json", "--output", folder),
                *(("--machine", machine) if machine else ()),
            ]
            run = subprocess.run(
                [sys.executable, "-m", "gradweave", *command],
                capture_output=True,
                text=True,
                check=True,
            )
        said = json.loads(run.stdout)
        row = {
            "algorithm": algorithm,
            "machine": machine is not None,
            "steps": said["steps"],
            "seeds": SEEDS,
            "how": "sampled" if algorithm == "ippo" else "greedy",
            "seconds": said["wall_s"],
        }
        judged = said["return"][row["how"]]
        row |= {"return": judged["by_seed"], "length": judged["length"]}
        row["random"] = said["return"]["random"]["mean"]
        print(row, flush=True)
        rows.append(row)
    return rows


PARTS: dict[str, Callable[[], Any]] = {
    "published": published,
    "checker": checker,
    "rendezvous": rendezvous,
    "gossip": gossip,
    "deep_iql": functools.partial(deep, "iql"),
    "deep_ippo": functools.partial(deep, "ippo"),
    "deep_qmix": functools.partial(deep, "qmix"),
    "central": central,
}
BY_NAME_ALONE = ("central",)
"""Measured only where --only asks for it."""


def main() -> None:
    picture = Picture("machines", curves, ("published",))
    parser = parser_of(__doc__, picture, resumes=True)
    parser.add_argument("--only", choices=PARTS, help="the others stay as recorded")
    asked = parser.parse_args()
    done, kept = recorded("machines", PARTS)
    for part, measure in PARTS.items():
        wanted = part == asked.only if asked.only else part not in BY_NAME_ALONE
        if not wanted or (part in done and asked.resume):
            continue
        print(part, flush=True)
        done[part] = measure()
        kept.pop(part, None)
        record("machines", libraries=("jax",), kept=kept, seeds=[0], **done)
        if part == "published":
            picture.redraw()


if __name__ == "__main__":
    main()
