"""Speed of `gradweave train` on a GPU, beside the processor of the same machine.

    python benchmarks/experiments/marl_gpu.py

Needs a GPU that JAX finds. The command is run as users run it, once on each, one device; what
counts are the steps a second that it reports, without compilation, and how long it took in all.
The processor's device uses all cores that XLA finds use for.
"""

import json
import os
import subprocess
import sys
import tempfile
from typing import Any

from benchmarks.experiment import Rows, run

CASES: list[tuple[str, str, int, int]] = [
    ("MPE_simple_spread_v3", "ippo", 1, 1_000_000),
    ("MPE_simple_spread_v3", "ippo", 16, 300_000),
    ("MPE_simple_spread_v3", "qmix", 1, 500_000),
    ("overcooked", "ippo", 1, 500_000),
]
"""Game, algorithm, learners side by side, steps of each."""


PLATFORMS = {"GPU": "cuda", "processor": "cpu"}


def trained(game: str, algorithm: str, seeds: int, steps: int, on: str) -> dict[str, Any]:
    """A training by the command."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "gradweave", "train", "--env", game, "--json"]
        command += ["--algorithm", algorithm, "--seeds", str(seeds), "--steps", str(steps)]
        command += ["--output", folder]
        environment = os.environ | {"JAX_PLATFORMS": PLATFORMS[on]}
        result = json.loads(subprocess.check_output(command, env=environment))
    return {
        "steps_per_s": seeds * result["steps_per_s"],
        "wall_s": result["wall_s"],
        "return": result["return"]["greedy"]["mean"],
    }


if __name__ == "__main__":
    names = ("game", "algorithm", "seeds", "steps")
    cases = [
        dict(zip(names, case, strict=True)) | {"on": where} for case in CASES for where in PLATFORMS
    ]
    run(__doc__, Rows(cases, trained), libraries=("jax", "jaxmarl", "optax"), seeds=[0])
