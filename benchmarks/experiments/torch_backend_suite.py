"""PyTorch's own tests of torch.distributed, under gloo and under the backend ``gradweave``.

    python benchmarks/experiments/torch_backend_suite.py [--processes 3 4] [--only PATTERN]

Runs `torch/testing/_internal/distributed/distributed_test.py` of the installed wheel on CPUs. Which
tests are meant for a backend, that file decides by its name: it is told gloo's every time, and
``gradweave`` is what makes the process groups then: without plans, and with rings that run all that
a plan can run in the default group, from the first call on and without a trial. The processes are
forked from one that has imported PyTorch, instead of starting Python for each test. Needs the
package expecttest.
"""

import fnmatch
import json
import os
import subprocess
import sys
import tempfile
import time
import unittest
from collections import Counter
from pathlib import Path
from typing import Any, get_args

import gradweave as gw
from benchmarks.command_line import parser_of
from benchmarks.record import record
from gradweave.schedulers import Ring
from gradweave.schedules.schedule import Collective

LIBRARIES = ("torch",)
GLOO, BARE, PLANS = "gloo", "gradweave", "gradweave with plans"
PROCESSES = (3, 4)
Outcomes = dict[str, dict[str, Any]]
"""Of each test, by its name, its state and why."""


class Ours(str):
    """Our backend's name, which tests that ask for gloo's by name take for that."""

    def __eq__(self, other: object) -> bool:
        return other == GLOO or super().__eq__(other)

    __hash__ = str.__hash__


def outcomes(processes: int, backend: str, only: str, report: Path) -> None:
    """Runs the tests in this process's children, and writes each one's outcome as it ends."""
    os.environ |= {"BACKEND": "gloo", "WORLD_SIZE": str(processes), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TEMP_DIR"] = tempfile.tempdir = folder  # the tests leave files behind
        import torch
        from torch.testing._internal.distributed import distributed_test as module

        module.BACKEND = backend if backend == GLOO else Ours("gradweave")
        if backend == PLANS:
            all_by_plan(processes, Path(folder))
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


def all_by_plan(processes: int, folder: Path) -> None:
    """Has rings run all that a plan can run, from the first call on."""
    from tests.execute.torch_backend_cases import all_by_plan as taken_at_once

    taken_at_once()
    network = gw.topology.complete(processes)
    for collective in get_args(Collective):
        Ring().schedule(network, collective=collective).save(folder / f"plan-{collective}.json")
    os.environ["GRADWEAVE_PLAN"] = os.pathsep.join(map(str, folder.glob("plan-*.json")))


def measured(processes: int, backend: str, only: str) -> Outcomes:
    """The outcome of each test, by its name."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report")
        job = ["--job", backend, str(report), "--processes", str(processes), "--only", only]
        subprocess.run([sys.executable, __file__, *job], check=True, stdout=subprocess.DEVNULL)
        rows = [json.loads(line) for line in report.read_text().splitlines()]
    return {row["test"]: row for row in rows}


def compared(processes: int, only: str) -> list[dict[str, Any]]:
    """A row for each backend: how many tests end how, and which pass under gloo alone."""
    found = {name: measured(processes, name, only) for name in (GLOO, BARE, PLANS)}
    return [row(processes, name, found[name], found[GLOO]) for name in found]


def row(processes: int, name: str, tests: Outcomes, own: Outcomes) -> dict[str, Any]:
    """Of one backend; the tests that only gloo passes are told with their errors."""
    ends = Counter(test["state"] for test in tests.values())
    only = sorted(t for t in own if own[t]["state"] == "passes" != tests[t]["state"])
    for test in only:
        print(f"{test} under {name}:", tests[test]["why"], sep="\n", file=sys.stderr)
    return {
        "processes": processes,
        "backend": name,
        "tests": len(tests),
        **{state: ends[state] for state in ("passes", "fails", "skipped")},
        "failing": sorted(t for t in tests if tests[t]["state"] == "fails"),
        "only_under_gloo": only,
    }


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
        rows += compared(processes, asked.only)
        print(json.dumps(rows, indent=1), flush=True)
    if asked.only == "*":
        record("torch_backend_suite", libraries=LIBRARIES, rows=rows)


if __name__ == "__main__":
    main()
