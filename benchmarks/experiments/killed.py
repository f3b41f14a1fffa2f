"""`learn` and `train` killed by SIGKILL at random moments, beside uninterrupted runs.

    python benchmarks/experiments/killed.py [--kills 20] [--seed 0] [--verb learn|train]

One device; 120 updates of `learn`, 2,000 of `train`, a checkpoint after each. Each kill follows a
random update after a random delay, or comes during start-up. The bytes of the weights' file and the
arrays of the checkpoint are compared. All runs of a verb share JAX's compilation cache.
"""

import hashlib
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open

from benchmarks.command_line import parser_of
from benchmarks.processes import with_compilation_cache
from benchmarks.record import record

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
"""By verb: configuration, options, final file, and number of updates."""
WHILE_STARTING = 0.15
"""Share of kills during start-up."""


class Run:
    """A training in a folder of its own, which can be started repeatedly."""

    def __init__(self, verb: str, folder: Path) -> None:
        self.verb, self.folder = verb, folder
        config, self.options, self.final_file, self.updates = VERBS[verb]
        folder.mkdir()
        (folder / "config.toml").write_text(config)

    def start(self) -> subprocess.Popen:
        program = ("gradweave.learning",) if self.verb == "learn" else ("gradweave", self.verb)
        command = [sys.executable, "-m", *program, "--config", "config.toml"]
        return subprocess.Popen(
            [*command, "--output", "out", *self.options],
            cwd=self.folder,
            env=with_compilation_cache(self.folder.parent / "compiled"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def logged(self) -> int:
        """Updates in the log."""
        log = self.folder / "out" / "log.jsonl"
        return log.read_bytes().count(b"\n") if log.exists() else 0

    def finish(self) -> float:
        """Runs to the end; returns the seconds."""
        begin = time.monotonic()
        process = self.start()
        _, errors = process.communicate()
        if process.returncode:
            sys.exit(f"{self.verb} ended with {process.returncode}: {errors}")
        return time.monotonic() - begin

    def kill(self, rng: random.Random, update: int, starting_s: float) -> int:
        """Starts, kills after an update or during start-up; returns the updates logged."""
        process = self.start()
        before = self.logged()
        early = rng.random() < WHILE_STARTING
        limit = time.monotonic() + rng.uniform(0, starting_s) if early else float("inf")
        while process.poll() is None and time.monotonic() < limit:
            if not early and self.logged() >= max(update, before + 1):
                time.sleep(rng.uniform(0, 0.1))
                break
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        _, errors = process.communicate()
        if process.returncode != -signal.SIGKILL:
            sys.exit(f"{self.verb} ended with {process.returncode} before it was killed: {errors}")
        return self.logged()

    def digests(self) -> dict[str, str]:
        """Digests of the final file, its arrays and the checkpoint's."""
        out = self.folder / "out"
        return {
            "file": hashlib.sha256((out / self.final_file).read_bytes()).hexdigest()[:16],
            "weights": digest(out / self.final_file),
            "checkpoint": digest(out / "checkpoint.safetensors"),
        }


def digest(path: Path) -> str:
    """Digest of a file's arrays."""
    total = hashlib.sha256()
    with safe_open(path, framework="numpy") as file:
        for name in sorted(file.keys()):
            total.update(name.encode() + np.ascontiguousarray(file.get_tensor(name)).tobytes())
    return total.hexdigest()[:16]


def measure(verb: str, kills: int, seed: int, folder: Path) -> dict[str, Any]:
    rng = random.Random(f"{seed} {verb}")
    whole = Run(verb, folder / "whole")
    print(f"{verb}: uninterrupted in {whole.finish():.0f} s", flush=True)
    again = Run(verb, folder / "again")
    again_s = again.finish()
    broken = Run(verb, folder / "broken")
    kill_after = sorted(rng.randrange(1, round(0.9 * broken.updates)) for _ in range(kills))
    killed_at: list[int] = []
    for number, update in enumerate(kill_after, 1):
        killed_at.append(broken.kill(rng, update, again_s / 2))
        print(f"{verb}: kill {number} with {killed_at[-1]} updates logged", flush=True)
    broken.finish()
    ends = {run.folder.name: run.digests() for run in (whole, again, broken)}
    row = {"verb": verb, "updates": broken.updates, "kills": kills, "killed_at": killed_at, **ends}
    row["same"] = ends["whole"] == ends["again"] == ends["broken"]
    print(row, flush=True)
    return row


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--verb", choices=VERBS)
    arguments = parser.parse_args()
    rows = []
    for verb in [arguments.verb] if arguments.verb else VERBS:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(measure(verb, arguments.kills, arguments.seed, Path(folder)))
    if arguments.verb is None:
        command = f"python benchmarks/experiments/killed.py --kills {arguments.kills}"
        libraries = ("jax", "jaxmarl", "optax", "safetensors")
        record("killed", command, libraries, seed=arguments.seed, rows=rows)
    if not all(row["same"] for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
