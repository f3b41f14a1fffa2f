"""Trainings of the guide's own game, machine and networks, and of a game of PettingZoo's.

    python benchmarks/experiments/own_games.py --cases ippo qmix

Files are those of docs/guides/own-games.md. Each case is one `gradweave train`, two seeds side by
side where it does not say otherwise; returns are means over agents, of 128 episodes a seed, by
drawn actions, beside agents that play at random. `speed` plays steps of PettingZoo's simple_spread
on the host and of JaxMARL's in compiled programs, with random actions and sixteen games side by
side, and counts processor time. `pettingzoo` and `speed` need `pip install pettingzoo mpe2`.
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

sys.path.extend(str(Path(__file__).parents[up]) for up in (1, 2))

from command_line import parser_of
from record import record, recorded

from tests.docs.blocks import blocks_of

NAME = "own_games"
ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "guides" / "own-games.md"
OF_PETTINGZOO = "mpe2.simple_spread_v3:parallel_env:max_cycles=25"
CASES: dict[str, list[str]] = {
    "ippo": ["--env", "harvest:Harvest", "--steps", "100000", "--seeds", "3"],
    "qmix": ["--env", "harvest:Harvest", "--algorithm", "qmix", "--steps", "80000"],
    "fen": ["--env", "harvest:Harvest", "--algorithm", "fen", "--steps", "80000"],
    "machine": [
        *("--env", "harvest:Harvest", "--algorithm", "iql", "--machine", "relay.yaml"),
        *("--steps", "80000"),
    ],
    "cnn": [
        *("--env", "harvest:Harvest", "--network", "networks:CNN", "--steps", "60000"),
        *("--seeds", "1"),
    ],
    "transformer": [
        *("--env", "harvest:Harvest", "--network", "networks:Transformer", "--steps", "60000"),
        *("--seeds", "1"),
    ],
    "pettingzoo": ["--env", OF_PETTINGZOO, "--steps", "60000", "--seeds", "1"],
}
STEPS, GAMES = 50, 16


def trained(case: str, folder: Path) -> dict[str, Any]:
    """One training's returns, and the processor time of its command."""
    seeds = [] if "--seeds" in CASES[case] else ["--seeds", "2"]
    command = [sys.executable, "-m", "gradweave", "train", *CASES[case], *seeds]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    made = subprocess.run(
        [*command, "--output", case, "--json"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([".", *filter(None, PATHS)])},
        capture_output=True,
        text=True,
        check=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = json.loads(made.stdout)
    how = result["return"]
    fair = how["sampled"].get("fairness")
    return {
        "case": case,
        "command": "gradweave train " + " ".join([*CASES[case], *seeds]),
        "steps": result["steps"],
        "sampled": how["sampled"]["by_seed"],
        "greedy": how["greedy"]["by_seed"],
        "random": how["random"]["mean"],
        "variation": None if fair is None else [one["variation"] for one in fair],
        "cpu_s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
    }


PATHS = [os.environ.get("PYTHONPATH", "")]


def speed() -> dict[str, Any]:
    """Steps of games a second of processor time, after compiling."""
    import jax

    from gradweave.marl.evaluation import random_action
    from gradweave.marl.games.environments import make

    def rate(spec: str) -> float:
        environment = make(spec)

        def play(key: Any) -> Any:
            def step(carry: Any, key: Any) -> Any:
                keys = jax.random.split(key, GAMES)
                states, views = carry
                action = random_action(environment, views, keys)
                states, views, outcome = environment.steps(keys, states, action)
                return (states, views), outcome.reward

            begun = jax.vmap(environment.reset)(jax.random.split(key, GAMES))
            return jax.lax.scan(step, begun, jax.random.split(key, STEPS))[1]

        compiled = jax.jit(play)
        compiled(jax.random.key(0)).block_until_ready()
        begun, runs = time.process_time(), 0
        while time.process_time() - begun < 4.0:
            runs += 1
            compiled(jax.random.key(runs)).block_until_ready()
        return runs * STEPS * GAMES / (time.process_time() - begun)

    return {
        "case": "speed",
        "games": GAMES,
        "pettingzoo_steps_per_cpu_s": rate(OF_PETTINGZOO),
        "jaxmarl_steps_per_cpu_s": rate("MPE_simple_spread_v3:max_steps=25"),
    }


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--cases", nargs="+", choices=[*CASES, "speed"], default=[*CASES, "speed"])
    options = parser.parse_args()
    rows = {row["case"]: row for row in recorded(NAME, ["rows"])[0].get("rows", [])}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for block in blocks_of(GUIDE):
            if block.title:
                (folder / block.title).write_text(block.code)
        for case in options.cases:
            rows[case] = speed() if case == "speed" else trained(case, folder)
            print(json.dumps(rows[case]))
            ordered = [rows[name] for name in [*CASES, "speed"] if name in rows]
            record(NAME, libraries=["jax", "equinox", "jaxmarl"], rows=ordered)


if __name__ == "__main__":
    main()
