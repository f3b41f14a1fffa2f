"""How long the first result takes after installation, and how long importing takes.

Each command runs once with no compiled loops and no compiled Python kept, as right after
``pip install --no-compile``, and once more with both; processor time is that of the command and
all that it starts. The packages that Gradweave needs are compiled anew as well.
"""

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from record import record

COMMANDS = (
    ("import gradweave", [sys.executable, "-c", "import gradweave"]),
    (
        "gradweave schedule bcube:n=4,k=1",
        [sys.executable, "-m", "gradweave", "schedule", "bcube:n=4,k=1"],
    ),
)
RUNS = 2


def measured(command: list[str], environment: dict[str, str]) -> dict[str, float]:
    """Processor time and time of one run."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"cpu_s": round(cpu, 2), "wall_s": round(time.perf_counter() - begun, 2)}


def main() -> None:
    rows = []
    for name, command in COMMANDS:
        runs = []
        for _ in range(RUNS):
            with tempfile.TemporaryDirectory() as kept:
                environment = {
                    **os.environ,
                    "NUMBA_CACHE_DIR": f"{kept}/numba",
                    "PYTHONPYCACHEPREFIX": f"{kept}/python",
                    "PYTHONDONTWRITEBYTECODE": "",
                }
                cold = measured(command, environment)
                runs.append({"cold": cold, "warm": measured(command, environment)})
        best = {state: min(run[state]["cpu_s"] for run in runs) for state in ("cold", "warm")}
        rows.append({"command": name, "least_cpu_s": best, "runs": runs})
        print(name, best)
    record("first_result", "python benchmarks/experiments/first_result.py", rows=rows)


if __name__ == "__main__":
    main()
