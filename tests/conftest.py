"""What all tests share: how Hypothesis searches, and what a report says about the machine."""

import contextlib
import ctypes
import fcntl
import functools
import gc
import os
import platform
import resource
import signal
import sys
from collections.abc import Generator, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests import costs
from tests.kept import keep_all_meanwhile, kept_programs, of_a_run

with contextlib.suppress(ImportError):
    import mpi4py

    # Importing a module that uses MPI must not make this process a job of MPI's: what it starts
    # would inherit that.
    mpi4py.rc.initialize = False

# The same examples on every run, so that a failure is the change's and not the day's; locally,
# HYPOTHESIS_PROFILE=search looks for new ones.
hypothesis.settings.register_profile(
    "steady", deadline=None, derandomize=True, print_blob=True, database=None
)
hypothesis.settings.register_profile("search", deadline=None, max_examples=1000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))


COMPILED = {
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    "JAX_COMPILATION_CACHE_MAX_SIZE": str(2**30),  # with a limit, entries are written under a lock
}
QUICKLY = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
"""XLA writes loops by its older emitters, which takes a fifth off the time that a test of learning
needs, and each program in one part, a tenth: most of that time is compilation. The experiments run
with XLA's own choices."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--turn", type=int, metavar="N", help="dear tests take turns: the N-th run (tests/costs.py)"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Lets workers, and the processes that tests start, share programs that JAX compiles, and
    schedules."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # Started in the background by a shell without job control. What tests start inherits that,
        # and would not end, nor ever rest, where a test presses Ctrl-C.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Else each of the hundreds of processes that tests start compiles the package's sources.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    worker = hasattr(config, "workerinput")
    if "COSTS" in os.environ and (worker or not config.getoption("numprocesses", None)):
        # Not for those that tests start.
        config.pluginmanager.register(costs.Recorder(Path(os.environ.pop("COSTS")).resolve()))
    if not worker:
        folders = contextlib.ExitStack()
        config.add_cleanup(folders.close)
        if "JAX_COMPILATION_CACHE_DIR" not in os.environ:  # benchmarks/mutant_trials.py has its own
            os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folders.enter_context(kept_programs()))
        os.environ |= COMPILED
        made = folders.enter_context(of_a_run())
        os.environ["GRADWEAVE_TESTS_MADE"] = str(made)  # see tests/conformance/made.py
        os.environ["RAY_worker_niceness"] = "0"  # else other tests leave Ray's actors hardly a core
        os.environ["XLA_FLAGS"] = f"{QUICKLY} {os.environ.get('XLA_FLAGS', '')}".strip()


MANY_PROCESSES = (
    "lab/test_lab.py",
    "execute/test_mpi",
    "execute/test_torch",
    "execute/test_run",
    "execute/test_jax_mesh_devices.py",
    "cli/test_cli_run.py",
    "aggregate/asynchronous/test_asynchronous_ray",
    "aggregate/test_devices.py",
    "marl/test_marl_asynchronous.py",
    "marl/test_marl_devices.py",
    "marl/test_marl_processes.py",
    "cli/test_cli_train.py",
)
"""Files of tests that start a process per server. They come first, to one worker, and one at a
time: ten processes are enough for two cores."""

SEVERAL_PROCESSES = (
    "lab/test_lab_program.py",
    "lab/test_lab_training.py",
    "placement/test_placement_launched.py",
    "placement/test_placement_training.py",
)
"""Others that start several; of none is anything quick, unless a test is marked so."""

TESTS = Path(__file__).parent


@functools.cache  # asked thrice of each test
def starts_many_processes(path: Path, files: tuple[str, ...] = MANY_PROCESSES) -> bool:
    return str(path).startswith(tuple(str(TESTS / start) for start in files))


def never_quick(path: Path) -> bool:
    return starts_many_processes(path, MANY_PROCESSES + SEVERAL_PROCESSES)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    costs.mark_quick(items, never=never_quick)  # before -m chooses by it
    if (turn := config.getoption("turn")) is not None:
        left_out = costs.out_of_turn(items, turn)
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    items.sort(key=lambda item: not starts_many_processes(item.path))  # stable


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """That of `--dist loadfile`, with the dearest files first."""
    if config.getvalue("dist") != "loadfile":
        return None
    from tests.by_file import ByFile

    return ByFile(config, log, starts_many_processes)


@pytest.fixture(autouse=True, scope="module")
def many_processes_one_file_at_a_time(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Holds a lock that all workers of a run share."""
    if not starts_many_processes(request.path):
        yield
        return
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with (shared / "many-processes.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.hookimpl(wrapper=True)
def pytest_collect_file() -> Generator[None, list[Any], list[Any]]:
    """Tests alone are looked for here: doctests are in src, and to look for them takes a while."""
    found = yield
    return [one for one in found if type(one) is pytest.Module]


def pytest_collection_finish() -> None:
    """Spares the garbage collector what stays to the end: modules, and thousands of tests."""
    if "jax" in sys.modules:
        keep_all_meanwhile()
    gc.collect()
    gc.freeze()


GROWN = 2**29
"""Bytes by which a worker may grow before it seeks memory that nobody uses: that takes a second."""
_kept = 0


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Lets go of a file's compiled programs: a worker that held them all would need gigabytes.

    Files that share some read them again from the compilation cache.
    """
    global _kept
    if "jax" in sys.modules and (nextitem is None or nextitem.path != item.path):
        sys.modules["jax"].clear_caches()
        if resident() > _kept + GROWN:
            gc.collect()
            with contextlib.suppress(AttributeError):  # glibc alone keeps what is free
                ctypes.CDLL(None).malloc_trim(0)
            _kept = resident()


def resident() -> int:
    """Bytes of memory that this process has."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:  # not Linux: the most that it ever had
        return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return pages * resource.getpagesize()


def pytest_report_header() -> str:
    libraries = ("numpy", "numba", "networkx", "ortools", "msgspec", "jax", "torch")
    versions = ", ".join(f"{library} {version(library)}" for library in libraries)
    return f"machine: {platform.machine()}, {os.cpu_count()} cores; {versions}"
