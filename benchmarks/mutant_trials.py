"""Tests run on a copy of the sources that has a fault.

A trial is a fork of a process that has imported the libraries, so that it begins at once. It works
on a copy of the tree: nothing here is changed. Kernels that numba compiled and programs that XLA
compiled are kept between trials; what a fault changes is compiled anew.

mutmut does not serve here, as its mutants are reached through a call that numba and JAX would have
to compile, nor cosmic-ray, which starts every trial as a new process: seconds of imports each.
"""

import contextlib
import importlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks.mutant_edits import Edit

COPIED = (
    "src",
    "tests",
    "pyproject.toml",
    "constraints.txt",
    "docs",
    "README.md",
    "examples",
    "benchmarks",
)
LIBRARIES = ("numpy", "numba", "networkx", "ortools.graph.python.max_flow", "msgspec", "hypothesis")
JAX_LIBRARIES = ("jax", "equinox", "optax")
"""Importing these starts no thread, which a fork would lose."""
OWN = ("gradweave", "gradweave_check", "gradweave_refute", "tests")
"""Modules that are imported from the copy, never inherited from the parent process."""
REWRITTEN = "pytest.PytestAssertRewriteWarning"  # of plugins imported before the fork
DAY_S = 86_400


@dataclass(frozen=True)
class Outcome:
    """What became of one run of the tests."""

    failed: str | None  # the first test that failed; None: all passed
    seconds: float
    durations: dict[str, float]  # of each test that ran
    wrong: str | None = None  # neither: the tests could not be collected, say


class Trials:
    """A copy of the tree, and the tests of one room."""

    def __init__(self, root: Path, tests: list[str], work: Path, least_timeout_s: float) -> None:
        """Args:
        root: of the repository.
        tests: folders and files, from there.
        work: a folder of its own, which holds the copy and what is compiled.
        least_timeout_s: tests that take longer than this, and thrice what they take without a
            fault, count as failed.
        """
        self.tests, self.work, self._timeout_s = tests, work, least_timeout_s
        self.tree, self._compiled = work / "tree", work / "compiled"
        self._compiled.mkdir(parents=True)
        ignored = shutil.ignore_patterns("__pycache__", "results", "images")
        for name in COPIED:
            if (root / name).is_dir():
                shutil.copytree(root / name, self.tree / name, ignore=ignored)
            else:
                shutil.copy2(root / name, self.tree / name)
        self._trials, self._order = 0, dict[str, float]()
        self.unsound: list[str] = []

    def without_fault(self) -> Outcome:
        """Runs all tests on the copy as it is: those that fail there are left out from then on."""
        unlimited = self._timeout_s
        self._timeout_s = 1800.0
        outcome = self._run(self._compiled, stop_at_first=False)
        self._order = outcome.durations
        self._timeout_s = max(unlimited, 3 * outcome.seconds)
        return outcome

    def with_fault(self, edit: Edit) -> Outcome:
        """Runs the tests, quick ones first, up to the first that fails."""
        file = self.tree / edit.path
        text, times = file.read_text(), file.stat()
        self._trials += 1
        compiled = self.work / f"compiled-{self._trials}"
        shutil.copytree(self._compiled, compiled, copy_function=os.link)  # files are replaced whole
        try:
            file.write_text(edit.applied(text))
            # Python and numba take a file of the same size and second for the one they know.
            later = times.st_mtime + DAY_S * self._trials
            os.utime(file, (later, later))
            return self._run(compiled, stop_at_first=True)
        finally:
            file.write_text(text)
            os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
            shutil.rmtree(compiled, ignore_errors=True)

    def log(self) -> str:
        """The end of what the last run printed."""
        return (self.work / "log.txt").read_text()[-3000:]

    def _run(self, compiled: Path, stop_at_first: bool) -> Outcome:
        report = self.work / "report.json"
        report.unlink(missing_ok=True)
        began = time.monotonic()
        child = os.fork()
        if child == 0:
            status = 70
            try:
                os.setsid()
                status = self._test(compiled, report, stop_at_first)
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                os._exit(status)
        status = _ended(child, began + self._timeout_s)
        seconds = time.monotonic() - began
        log = json.loads(report.read_text()) if report.exists() else {}
        durations = log.get("durations", {})
        if status is None:
            return Outcome("(too slow)", seconds, durations)
        if status == 0 or (status == 1 and log.get("failed")):
            self.unsound += [] if stop_at_first else log.get("failed", [])
            return Outcome(next(iter(log["failed"]), None), seconds, durations)
        return Outcome("(import)", seconds, durations, wrong=f"pytest ended with {status}")

    def _test(self, compiled: Path, report: Path, stop_at_first: bool) -> int:
        """Runs in the fork."""
        os.chdir(self.tree)
        log = os.open(self.work / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        _forget_packages()
        sys.path[:0] = [str(self.tree / "src"), str(self.tree)]
        where = importlib.import_module("gradweave").__file__ or ""
        if not Path(where).is_relative_to(self.tree):
            print(f"tests would run on {where}, not on the copy")
            return 70
        os.environ |= {"PYTHONPATH": str(self.tree / "src"), "NUMBA_CACHE_DIR": str(compiled)}
        with contextlib.suppress(KeyError):
            sys.modules["numba"].config.CACHE_DIR = str(compiled)
        arguments = [
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:benchmark",
            "--no-header",
            "-rN",
            "-W",
            f"ignore::{REWRITTEN}",
        ]
        arguments += ["--tb=line", "--show-capture=no", f"--basetemp={self.work / 'tmp'}"]
        arguments += ["-x"] if stop_at_first else []
        arguments += [f"--deselect={test}" for test in self.unsound]
        return pytest.main([*arguments, *self.tests], plugins=[_Recorder(report, self._order)])


class _Recorder:
    """A plugin of pytest: quick tests first, and a report of what failed and how long each took."""

    def __init__(self, report: Path, order: dict[str, float]) -> None:
        self._report, self._order = report, order
        self._failed, self._durations = list[str](), dict[str, float]()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: self._order.get(item.nodeid, 0.0))

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and report.nodeid not in self._failed:
            self._failed.append(report.nodeid)
        if not report.skipped:
            so_far = self._durations.get(report.nodeid, 0.0)
            self._durations[report.nodeid] = so_far + report.duration

    def pytest_sessionfinish(self) -> None:
        content = {"failed": self._failed, "durations": self._durations}
        self._report.write_text(json.dumps(content))


def _forget_packages() -> None:
    """Has this project's modules imported again, from the copy: the parent has some already."""
    for name in list(sys.modules):
        if name.partition(".")[0] in OWN:
            del sys.modules[name]


def _ended(child: int, deadline: float) -> int | None:
    """A forked process's exit status; None if it still ran. What it started is ended, too."""
    try:
        while time.monotonic() < deadline:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.02)
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)


@contextlib.contextmanager
def trials(
    root: Path, tests: list[str], with_jax: bool, least_timeout_s: float = 60.0
) -> Iterator[Trials]:
    """A copy of the tree for as long as the context lasts, with the libraries imported."""
    with tempfile.TemporaryDirectory(prefix="gradweave-mutants-") as folder:
        work = Path(folder).resolve()
        if with_jax:  # read when JAX is imported
            os.environ["JAX_COMPILATION_CACHE_DIR"] = str(work / "xla")
            os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.1"
            os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
        for name in LIBRARIES + (JAX_LIBRARIES if with_jax else ()):
            importlib.import_module(name)
        yield Trials(root, tests, work, least_timeout_s)
