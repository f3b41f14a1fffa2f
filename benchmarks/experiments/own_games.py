"""Trainings of the guide's own game, machine and networks, and of a game of PettingZoo's.

    python benchmarks/experiments/own_games.py --only ippo qmix

Files are those of docs/guides/own-games.md. Each case is one `gradweave train`, seeds side by side;
returns are means over agents, of 128 episodes a seed, beside agents that play at random. `speed`
plays steps of PettingZoo's simple_spread on the host and of JaxMARL's in compiled programs, with
random actions and sixteen games side by side, and counts processor time. `sweep` trains eight
combinations of settings with three seeds by one command, and one of these 24 alone by another.
`pettingzoo` and `speed` need `pip install pettingzoo mpe2`.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.experiment import Rows, grid, run
from tests.docs.blocks import blocks_of

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "guides" / "own-games.md"
OF_PETTINGZOO = "mpe2.simple_spread_v3:parallel_env:max_cycles=25"
GAME = ("--env", "harvest:Harvest")
SMALL = [
    *("--set", "learning_rate=3e-3", "--set", "environments=16", "--set", "rollout=32"),
    *("--steps", "50000", "--seeds", "3"),
]
CASES: dict[str, list[str]] = {
    "ippo": [*GAME, "--steps", "100000", "--seeds", "3"],
    "qmix": [
        *(*GAME, "--algorithm", "qmix", "--set", "learning_rate=3e-3", "--set", "discount=0.9"),
        *("--set", "epochs=8", "--steps", "60000", "--seeds", "2"),
    ],
    "fen": [
        *("--env", "harvest:Harvest:max_steps=50", "--algorithm", "fen", "--set", "rollout=50"),
        *("--set", "environments=16", "--steps", "80000", "--seeds", "2"),
    ],
    "machine": [
        *(*GAME, "--algorithm", "iql", "--machine", "relay.yaml", "--set", "learning_rate=3e-3"),
        *("--set", "discount=0.95", "--set", "epochs=8", "--steps", "60000", "--seeds", "2"),
    ],
    "cnn": [*GAME, "--network", "networks:CNN", *SMALL],
    "transformer": [*GAME, "--network", "networks:Transformer:width=8", *SMALL],
    "pettingzoo": ["--env", OF_PETTINGZOO, "--steps", "60000", "--seeds", "1"],
}
STEPS, GAMES = 50, 16


PATHS = [os.environ.get("PYTHONPATH", "")]


def command_of(
    options: list[str], folder: Path, output: str, *, episodes: str = "128"
) -> tuple[dict[str, Any], float]:
    """The result of a training, and the processor time of its command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    made = subprocess.run(
        [
            *(sys.executable, "-m", "gradweave", "train", *options),
            *("--episodes", episodes, "--output", output, "--json"),
        ],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([".", *filter(None, PATHS)])},
        capture_output=True,
        text=True,
        check=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return json.loads(made.stdout), spent


def trained(case: str, folder: Path) -> dict[str, Any]:
    """One training's returns, and the processor time of its command."""
    result, spent = command_of(CASES[case], folder, case)
    how = result["return"]
    fair = how["sampled"].get("fairness")
    return {
        "case": case,
        "command": "gradweave train " + " ".join(CASES[case]),
        "steps": result["steps"],
        "sampled": how["sampled"]["by_seed"],
        "greedy": how["greedy"]["by_seed"],
        "random": how["random"]["mean"],
        "variation": None if fair is None else [one["variation"] for one in fair],
        "cpu_s": spent,
    }


def speed() -> dict[str, Any]:
    """Steps of games a second of processor time, after compiling."""
    import jax

    from benchmarks.experiments.game_starts import random_play
    from gradweave.marl.games.environments import make

    def rate(spec: str) -> float:
        compiled = jax.jit(random_play(make(spec), GAMES, STEPS))
        jax.block_until_ready(compiled(jax.random.key(0)))
        begun, runs = time.process_time(), 0
        while time.process_time() - begun < 4.0:
            runs += 1
            jax.block_until_ready(compiled(jax.random.key(runs)))
        return runs * STEPS * GAMES / (time.process_time() - begun)

    return {
        "case": "speed",
        "games": GAMES,
        "pettingzoo_steps_per_cpu_s": rate(OF_PETTINGZOO),
        "jaxmarl_steps_per_cpu_s": rate("MPE_simple_spread_v3:max_steps=25"),
    }


SWEEP = [
    *(*GAME, "--set", "environments=16", "--steps", "24576", "--seeds", "3"),
    *("--sweep", "learning_rate=3e-4,1e-3,3e-3,1e-2", "--sweep", "entropy_coefficient=0.001,0.03"),
]
ALONE = [
    *(*GAME, "--set", "environments=16", "--steps", "24576", "--set", "learning_rate=3e-4"),
    *("--set", "entropy_coefficient=0.001"),
]


def swept(folder: Path) -> dict[str, Any]:
    """Processor time of 24 trainings by one command, and of one of them by its own."""
    seconds = []
    for number, options in enumerate((SWEEP, ALONE)):
        _, spent = command_of(options, folder, f"sweep{number}", episodes="32")
        seconds.append(spent)
    return {
        "case": "sweep",
        "command": "gradweave train " + " ".join([*SWEEP, "--episodes", "32"]),
        "runs": 24,
        "cpu_s": seconds[0],
        "one_alone_cpu_s": seconds[1],
        "times_less": 24 * seconds[1] / seconds[0],
    }


EACH = [*CASES, "speed", "sweep"]


def measure(case: str) -> dict[str, Any]:
    if case == "speed":
        return speed()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for block in blocks_of(GUIDE):
            if block.title:
                (folder / block.title).write_text(block.code)
        return swept(folder) if case == "sweep" else trained(case, folder)


if __name__ == "__main__":
    run(__doc__, Rows(grid(case=EACH), measure), libraries=["jax", "equinox", "jaxmarl"])
