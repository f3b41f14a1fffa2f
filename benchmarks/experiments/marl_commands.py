"""How long a whole training takes: `gradweave train` beside JaxMARL's script, as commands.

    taskset -c 0 python benchmarks/experiments/marl_commands.py [--turns 3]

IPPO on simple_spread, a million steps, one core: `jaxmarl_ppo.py`, written after JaxMARL's own
script, and the command with its defaults, which also judges the policy and keeps it, a checkpoint,
a log and TensorBoard's figures. All processor time of the process and its children counts: imports,
tracing and compiling too. The command runs twice in a turn: with nothing kept of what was compiled,
and with what the first one kept. A ratio is taken within each turn, and medians count.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from record import record, versions

STEPS = 8 * 16 * 64 * 128
"""8 calls of the script, of 16 updates each."""
SCRIPT = [sys.executable, str(Path(__file__).with_name("jaxmarl_ppo.py")), "7"]
"""One call more is made before those that it times."""
COMMAND = [
    *(sys.executable, "-m", "gradweave", "train", "--env", "MPE_simple_spread_v3"),
    *("--algorithm", "ippo", "--steps", str(STEPS), "--output"),
]


def spent(command: list[str], kept: Path) -> dict[str, float]:
    """Seconds of a command whose compiled programs are kept in a folder."""
    began = time.perf_counter()
    with tempfile.TemporaryFile() as said:
        environment = os.environ | {"XDG_CACHE_HOME": str(kept)}
        process = subprocess.Popen(command, stdout=said, stderr=said, env=environment)
        _, status, used = os.wait4(process.pid, 0)
        if status:
            said.seek(0)
            raise SystemExit(said.read().decode())
    wall = time.perf_counter() - began
    return {"processor_s": used.ru_utime + used.ru_stime, "wall_s": wall}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=3)
    turns = parser.parse_args().turns
    load = os.getloadavg()[0]
    taken: dict[str, list[dict[str, float]]] = {"jaxmarl": [], "first run": [], "later run": []}
    for turn in range(turns):
        with tempfile.TemporaryDirectory() as folder:
            taken["jaxmarl"].append(spent(SCRIPT, Path(folder)))
            for name in ("first run", "later run"):
                output = str(Path(folder) / name)
                taken[name].append(spent([*COMMAND, output], Path(folder)))
        print(turn, {name: times[-1] for name, times in taken.items()}, flush=True)

    def row(name: str) -> dict[str, Any]:
        found: dict[str, Any] = {"program": name}
        for what in ("processor_s", "wall_s"):
            mine = [times[what] for times in taken[name]]
            theirs = [times[what] for times in taken["jaxmarl"]]
            ratios = [their / my for my, their in zip(mine, theirs, strict=True)]
            found[what] = {
                "median": statistics.median(mine),
                "each": mine,
                "times_as_quick_as_jaxmarl": statistics.median(ratios),
            }
        return found

    libraries = {name: version(name) for name in ("jax", "jaxmarl", "equinox", "flax", "optax")}
    record(
        "marl_commands",
        f"taskset -c 0 python benchmarks/experiments/marl_commands.py --turns {turns}",
        versions=versions() | libraries,
        seeds=[0],
        steps=STEPS,
        turns=turns,
        load_at_start=load,
        cores=len(os.sched_getaffinity(0)),
        rows=[row(name) for name in taken],
    )


if __name__ == "__main__":
    main()
