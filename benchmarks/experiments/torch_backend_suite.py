"""PyTorch's own tests of torch.distributed, under gloo and under the backend ``gradweave``.

    python benchmarks/experiments/torch_backend_suite.py [--processes 3 4] [--only PATTERN]

Runs `torch/testing/_internal/distributed/distributed_test.py` of the installed wheel on CPUs. Which
tests are meant for a backend, decorators of that file decide by its name when it is loaded: it is
loaded for gloo both times, and the second time ``gradweave`` is what makes the process groups. The
processes are forked from one that has imported PyTorch, instead of starting Python for each test.
Needs the package expecttest.
"""

import fnmatch
import json
import os
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from command_line import parser_of
from record import record

LIBRARIES = ("torch",)
PROCESSES = (3, 4)


def outcomes(processes: int, backend: str, only: str, report: Path) -> None:
    """Runs the tests in this process's children, and writes each one's outcome as it ends."""
    os.environ |= {"BACKEND": "gloo", "WORLD_SIZE": str(processes), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TEMP_DIR"] = folder
        import torch
        from torch.testing._internal.distributed import distributed_test as module

        import gradweave.torch  # noqa: F401  # registers the backend

        module.BACKEND = backend
        torch.set_num_threads(1)

        class Case(module.TestDistBackend, module.DistributedTest._DistTestBase):
            def setUp(self) -> None:
                super().setUp()
                self._start_processes(torch.multiprocessing.get_context("fork").Process)

        names = unittest.TestLoader().getTestCaseNames(Case)
        made: Any = Case
        with report.open("a") as written:
            for name in fnmatch.filter(names, only):
                began, result = time.monotonic(), unittest.TestResult()
                made(name).run(result)
                wrong = result.errors + result.failures + result.unexpectedSuccesses
                state = "fails" if wrong else "skipped" if result.skipped else "passes"
                why = str(wrong[0][-1])[-4000:] if wrong else ""
                took = round(time.monotonic() - began, 1)
                row = {"test": name, "state": state, "why": why, "s": took}
                written.write(json.dumps(row) + "\n")
                written.flush()


def measured(processes: int, backend: str, only: str) -> dict[str, dict[str, Any]]:
    """The outcome of each test, by its name."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report")
        job = ["--job", backend, str(report), "--processes", str(processes), "--only", only]
        subprocess.run([sys.executable, __file__, *job], check=True, stdout=subprocess.DEVNULL)
        rows = [json.loads(line) for line in report.read_text().splitlines()]
    return {row["test"]: row for row in rows}


def compared(processes: int, only: str) -> dict[str, Any]:
    """Counts of both backends, and the tests that gloo alone passes."""
    own, ours = (measured(processes, backend, only) for backend in ("gloo", "gradweave"))
    row: dict[str, Any] = {"processes": processes, "tests": len(own)}
    for name, of in (("gloo", own), ("gradweave", ours)):
        row[name] = {
            state: sum(test["state"] == state for test in of.values())
            for state in ("passes", "fails", "skipped")
        }
    row["only_gloo_passes"] = sorted(
        name for name in own if own[name]["state"] == "passes" != ours[name]["state"]
    )
    row["neither_passes"] = sorted(
        name for name in own if own[name]["state"] == ours[name]["state"] == "fails"
    )
    for name in row["only_gloo_passes"]:
        print(name, ours[name]["why"], sep="\n", file=sys.stderr)
    return row


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--processes", type=int, nargs="+", default=list(PROCESSES))
    parser.add_argument("--only", default="*", help="tests whose names match, recorded nowhere")
    parser.add_argument("--job", nargs=2, metavar=("BACKEND", "REPORT"), help="one part of it")
    asked = parser.parse_args()
    if asked.job:
        outcomes(asked.processes[0], asked.job[0], asked.only, Path(asked.job[1]))
        return
    rows = []
    for processes in asked.processes:
        rows.append(compared(processes, asked.only))
        print(json.dumps(rows[-1], indent=1), flush=True)
    if asked.only == "*":
        record("torch_backend_suite", libraries=LIBRARIES, rows=rows)


if __name__ == "__main__":
    main()
