"""What all tests share: how Hypothesis searches, and what a report says about the machine."""

import contextlib
import os
import platform
from importlib.metadata import version
from typing import Any

import hypothesis
import pytest
from xdist.scheduler import LoadScopeScheduling

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


MANY_PROCESSES = (
    "lab/test_lab.py",
    "execute/test_mpi",
    "execute/test_torch",
    "execute/test_run",
    "execute/test_jax_mesh_devices.py",
    "cli/test_cli_run.py",
    "aggregate/asynchronous/test_asynchronous_ray",
    "aggregate/test_devices.py",
    "marl/test_marl_devices.py",
    "marl/test_marl_processes.py",
    "cli/test_cli_train.py",
)
"""Tests that start a process a server run one after the other: ten processes are enough for two
cores."""


class OneAfterTheOther(LoadScopeScheduling):
    """Divides tests among workers one by one, those that start many processes all to one.

    Not by ``--dist loadgroup``, which divides these as well: pytest-xdist 3.8 writes groups where
    pytest 9.2 no longer looks for them.
    """

    def _split_scope(self, nodeid: str) -> str:
        heavy = any(nodeid.startswith(f"tests/{start}") for start in MANY_PROCESSES)
        return "many processes" if heavy else nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> OneAfterTheOther:
    return OneAfterTheOther(config, log)


def pytest_report_header() -> str:
    libraries = ("numpy", "numba", "networkx", "ortools", "msgspec", "jax", "torch")
    versions = ", ".join(f"{library} {version(library)}" for library in libraries)
    return f"machine: {platform.machine()}, {os.cpu_count()} cores; {versions}"
