"""Time to the first result after installation, and of importing.

Each command runs once without caches of compiled kernels and Python bytecode, as right after
``pip install --no-compile``, and once more with both; processor time is that of the command and its
child processes. The bytecode of dependencies is compiled again as well.
"""

import os
import resource
import subprocess
import sys
import tempfile
import time
from typing import Any

from benchmarks.experiment import Rows, grid, run

COMMANDS = {
    "import gradweave": ("-c", "import gradweave"),
    "gradweave solve bcube:n=4,k=1": ("-m", "gradweave", "solve", "bcube:n=4,k=1"),
}
RUNS = 2


def spent(command: list[str], environment: dict[str, str]) -> dict[str, float]:
    """Processor time and wall time of one run."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"cpu_s": round(cpu, 2), "wall_s": round(time.perf_counter() - begin, 2)}


def measure(command: str) -> dict[str, Any]:
    runs = []
    for _ in range(RUNS):
        with tempfile.TemporaryDirectory() as cache:
            environment = {
                **os.environ,
                "NUMBA_CACHE_DIR": f"{cache}/numba",
                "PYTHONPYCACHEPREFIX": f"{cache}/python",
                "PYTHONDONTWRITEBYTECODE": "",
            }
            states = ("cold", "warm")
            words = [sys.executable, *COMMANDS[command]]
            runs.append({state: spent(words, environment) for state in states})
    best = {state: min(run[state]["cpu_s"] for run in runs) for state in ("cold", "warm")}
    return {"least_cpu_s": best, "runs": runs}


if __name__ == "__main__":
    run(__doc__, Rows(grid(command=COMMANDS), measure))
