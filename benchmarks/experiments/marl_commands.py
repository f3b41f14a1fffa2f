"""Time of a whole training: `gradweave train` beside JaxMARL's script, as commands.

    taskset -c 0 python benchmarks/experiments/marl_commands.py [--turns 3]

IPPO on simple_spread, a million steps, one core: `jaxmarl_ppo.py`, written after JaxMARL's own
script, and the command with its defaults, which also evaluates the policy and writes it, a
checkpoint, a log and TensorBoard's figures. Processor time is that of the process and its children,
with imports, tracing and compilation. The command runs twice in a turn: with an empty compilation
cache, and with the cache of the first run. Ratios are taken within each turn, and medians count.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.command_line import parser_of
from benchmarks.record import record

STEPS = 8 * 16 * 64 * 128
"""8 calls of the script, of 16 updates each."""
SCRIPT = [sys.executable, "-m", "benchmarks.peers.jaxmarl_ppo", "7"]
"""One call more is made before the timed ones."""
COMMAND = [
    *(sys.executable, "-m", "gradweave", "train", "--env", "MPE_simple_spread_v3"),
    *("--algorithm", "ippo", "--steps", str(STEPS), "--output"),
]


def spent(command: list[str], cache: Path) -> dict[str, float]:
    """Processor and wall seconds of a command with a folder of compiled programs."""
    begin = time.perf_counter()
    with tempfile.TemporaryFile() as output:
        environment = os.environ | {"XDG_CACHE_HOME": str(cache)}
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
        _, status, used = os.wait4(process.pid, 0)
        if status:
            output.seek(0)
            raise SystemExit(output.read().decode())
    wall = time.perf_counter() - begin
    return {"processor_s": used.ru_utime + used.ru_stime, "wall_s": wall}


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--turns", type=int, default=3)
    turns = parser.parse_args().turns
    load = os.getloadavg()[0]
    runs: dict[str, list[dict[str, float]]] = {"jaxmarl": [], "first run": [], "later run": []}
    for turn in range(turns):
        with tempfile.TemporaryDirectory() as folder:
            runs["jaxmarl"].append(spent(SCRIPT, Path(folder)))
            for name in ("first run", "later run"):
                trained = str(Path(folder) / name)
                runs[name].append(spent([*COMMAND, trained], Path(folder)))
        print(turn, {name: times[-1] for name, times in runs.items()}, flush=True)

    def row(name: str) -> dict[str, Any]:
        result: dict[str, Any] = {"program": name}
        for kind in ("processor_s", "wall_s"):
            ours = [times[kind] for times in runs[name]]
            theirs = [times[kind] for times in runs["jaxmarl"]]
            ratios = [their / our for our, their in zip(ours, theirs, strict=True)]
            result[kind] = {
                "median": statistics.median(ours),
                "each": ours,
                "times_as_quick_as_jaxmarl": statistics.median(ratios),
            }
        return result

    record(
        "marl_commands",
        f"taskset -c 0 python benchmarks/experiments/marl_commands.py --turns {turns}",
        libraries=("jax", "jaxmarl", "equinox", "flax", "optax"),
        seeds=[0],
        steps=STEPS,
        turns=turns,
        load_at_start=load,
        cores=len(os.sched_getaffinity(0)),
        rows=[row(name) for name in runs],
    )


if __name__ == "__main__":
    main()
