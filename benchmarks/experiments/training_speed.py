"""Training samples a second, of this checkout and of an earlier commit, update by update in turns.

    taskset -c 0 python benchmarks/experiments/training_speed.py [--before COMMIT]

Both train by the other commit's `shipped.toml`; then this one by `wider_exercises.toml`. A
sample is a workload that was drawn; the time is that of whole updates, learning included, without
the first of each program, which compiles.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.command_line import parser_of
from benchmarks.record import record, show

HERE = Path(__file__).parents[2]
SHIPPED, WIDER = Path("src/gradweave/learning/shipped.toml"), "benchmarks/wider_exercises.toml"
UPDATES = 24
BEFORE = "8337340"
"""Of the training that imitation and repair were added to."""


@contextlib.contextmanager
def checkout(commit: str) -> Iterator[Path]:
    """The tree of a commit, while it is used."""
    git = ["git", "-C", str(HERE), "worktree"]
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "before"
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), commit], check=True)
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def child(config: Path) -> None:
    """Trains; after each update prints what it came to and waits for a line."""
    from gradweave.learning.config import read_config
    from gradweave.learning.training import Report, train

    began = time.monotonic()

    def report(update: Report) -> None:
        nonlocal began
        row = {
            "program": [update.agent, update.group],
            "drawn": float(update.figures["decisions"].sum()),
            "seconds": time.monotonic() - began,
        }
        print(json.dumps(row), flush=True)
        sys.stdin.readline()
        began = time.monotonic()

    with tempfile.TemporaryDirectory() as folder:
        train(read_config(config), Path(folder), report=report, devices=1, stop_after=UPDATES)


def start(checkout: Path, config: Path) -> subprocess.Popen[str]:
    """A child that trains with a checkout's code."""
    return subprocess.Popen(
        [sys.executable, __file__, "--child", str(config.resolve())],
        env=os.environ | {"PYTHONPATH": str((checkout / "src").resolve())},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def in_turns(children: Sequence[subprocess.Popen[str]]) -> list[list[dict[str, Any]]]:
    """The updates of each child; only one of them runs at a time."""
    rows: list[list[dict[str, Any]]] = [[] for _ in children]
    for update in range(UPDATES):
        for mine, each in zip(rows, children, strict=True):
            assert each.stdin is not None and each.stdout is not None
            if update:
                each.stdin.write("go\n")
                each.stdin.flush()
            mine.append(json.loads(each.stdout.readline()))
            show(mine[-1])
    for each in children:
        each.kill()
    return rows


def per_second(rows: list[dict[str, Any]]) -> float:
    """Samples a second, without the first update of each program."""
    seen, counted = [], []
    for row in rows:
        if row["program"] in seen:
            counted.append(row)
        seen.append(row["program"])
    return sum(row["drawn"] for row in counted) / sum(row["seconds"] for row in counted)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--before", default=BEFORE, help="(default: %(default)s)")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        child(asked.child)
        return
    with checkout(asked.before) as other:
        config = other / SHIPPED
        before, after = in_turns([start(other, config), start(HERE, config)])
    (wider,) = in_turns([start(HERE, HERE / WIDER)])
    record(
        "training_speed",
        libraries=("jax", "optax"),
        before=asked.before,
        samples_per_second={
            "before": per_second(before),
            "the same exercises": per_second(after),
            "wider exercises": per_second(wider),
        },
        rows={"before": before, "after": after, "wider": wider},
    )


if __name__ == "__main__":
    main()
