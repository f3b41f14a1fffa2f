"""`learn` and `train` killed by SIGKILL at random moments, beside the same unkilled.

    python benchmarks/experiments/killed.py [--kills 20] [--seed 0] [--verb learn|train]

One device; 120 updates of `learn`, 2,000 of `train`, a checkpoint after each. A kill comes at a
random moment after an update that is random, too, or while the program still starts. Compared are
the bytes of the weights' file, and the arrays of the checkpoint. JAX keeps what it compiled, in a
folder that all runs of a verb share.
"""

import argparse
import hashlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from record import record, versions
from safetensors import safe_open

LEARN = """
seed = 3
iterations = 24
tree_updates = 2
workload_updates = 3
draws = 3
checkpoint_minutes = 0.0

[[groups]]
at_once = 2
episodes = 8
exercises = [
    { topology = "bcube:n=2,k=1" },
    { topology = "ring:n=5" },
    { topology = "star:n=4", collective = "reduce_scatter", trees = "fixed" },
]
"""
TRAIN = """
env = "switch_riddle"
algorithm = "mappo"
steps = 160000
seed = 3

[settings]
environments = 8
rollout = 10
hidden = [16]
"""
VERBS: dict[str, tuple[str, list[str], str, int]] = {
    "learn": (LEARN, ["--devices", "1"], "weights.safetensors", 120),
    "train": (
        TRAIN,
        ["--checkpoint-minutes", "1e-6", "--episodes", "8"],
        "policy.safetensors",
        2000,
    ),
}
"""Of each verb its config, its options, the file that it ends with, and the updates that it is."""
WHILE_STARTING = 0.15
"""Share of kills that come before the first update."""


class Run:
    """A training in a folder of its own, started as often as need be."""

    def __init__(self, verb: str, folder: Path) -> None:
        self.verb, self.folder = verb, folder
        self.config, self.options, self.ends_with, self.updates = VERBS[verb]
        folder.mkdir()
        (folder / "config.toml").write_text(self.config)

    def start(self) -> subprocess.Popen:
        command = [sys.executable, "-m", "gradweave", self.verb, "--config", "config.toml"]
        return subprocess.Popen(
            [*command, "--output", "out", *self.options],
            cwd=self.folder,
            env=os.environ
            | {
                "JAX_COMPILATION_CACHE_DIR": str(self.folder.parent / "compiled"),
                "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            },
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def logged(self) -> int:
        """Updates in the log."""
        log = self.folder / "out" / "log.jsonl"
        return log.read_bytes().count(b"\n") if log.exists() else 0

    def finish(self) -> float:
        """Lets it come to its end; the seconds that took."""
        begun = time.monotonic()
        process = self.start()
        _, said = process.communicate()
        if process.returncode:
            sys.exit(f"{self.verb} ended with {process.returncode}: {said}")
        return time.monotonic() - begun

    def kill(self, draw: random.Random, update: int, starting_s: float) -> int:
        """Starts it, kills it once so many updates are logged or while it starts; those logged."""
        process = self.start()
        before = self.logged()
        early = draw.random() < WHILE_STARTING
        limit = time.monotonic() + draw.uniform(0, starting_s) if early else float("inf")
        while process.poll() is None and time.monotonic() < limit:
            if not early and self.logged() >= max(update, before + 1):
                time.sleep(draw.uniform(0, 0.1))
                break
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        _, said = process.communicate()
        if process.returncode != -signal.SIGKILL:
            sys.exit(f"{self.verb} ended with {process.returncode} before it was killed: {said}")
        return self.logged()

    def end(self) -> dict[str, str]:
        """Digests of what it came to."""
        out = self.folder / "out"
        return {
            "file": hashlib.sha256((out / self.ends_with).read_bytes()).hexdigest()[:16],
            "weights": digest(out / self.ends_with),
            "checkpoint": digest(out / "checkpoint.safetensors"),
        }


def digest(path: Path) -> str:
    """Of the arrays alone."""
    summed = hashlib.sha256()
    with safe_open(path, framework="numpy") as file:
        for name in sorted(file.keys()):
            summed.update(name.encode() + np.ascontiguousarray(file.get_tensor(name)).tobytes())
    return summed.hexdigest()[:16]


def measured(verb: str, kills: int, seed: int, folder: Path) -> dict[str, Any]:
    draw = random.Random(f"{seed} {verb}")
    whole = Run(verb, folder / "whole")
    print(f"{verb}: unkilled in {whole.finish():.0f} s", flush=True)
    again = Run(verb, folder / "again")
    again_s = again.finish()
    broken = Run(verb, folder / "broken")
    moments = sorted(draw.randrange(1, round(0.9 * broken.updates)) for _ in range(kills))
    made: list[int] = []
    while len(made) < kills:
        made.append(broken.kill(draw, moments[len(made)], again_s / 2))
        print(f"{verb}: kill {len(made)} with {made[-1]} updates logged", flush=True)
    broken.finish()
    ends = {run.folder.name: run.end() for run in (whole, again, broken)}
    row = {"verb": verb, "updates": broken.updates, "kills": kills, "killed_at": made, **ends}
    row["same"] = whole.end() == broken.end() == again.end()
    print(row, flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--verb", choices=VERBS)
    asked = parser.parse_args()
    rows = []
    for verb in [asked.verb] if asked.verb else VERBS:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(measured(verb, asked.kills, asked.seed, Path(folder)))
    if asked.verb is None:
        command = f"python benchmarks/experiments/killed.py --kills {asked.kills}"
        libraries = {name: version(name) for name in ("jax", "jaxmarl", "optax", "safetensors")}
        record("killed", command, versions=versions() | libraries, seed=asked.seed, rows=rows)
    if not all(row["same"] for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
