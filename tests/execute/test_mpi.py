"""Schedules over MPI, with a process a server.

Every strategy runs on two small networks of the conformance table, on one of them also every type,
reduction and collective, against the oracle's bits. Networks of more than nine servers
`test_program` plays without processes.
"""

import importlib.util
import json
import shutil
import sys
from pathlib import Path

import pytest

from tests.execute.cases import FLOATS, INTEGERS, Case
from tests.execute.launch import (
    SMALL_NETWORKS,
    all_with_all,
    cases,
    check_all_name,
    check_reports,
    of_two,
    run,
    write_job,
    write_schedules,
)

MPIRUN = shutil.which("mpirun", path=str(Path(sys.executable).parent)) or shutil.which("mpirun")
DTYPES = (*INTEGERS, *(dtype for dtype in FLOATS if dtype != "bfloat16"))

pytestmark = pytest.mark.skipif(
    MPIRUN is None or importlib.util.find_spec("mpi4py") is None, reason="needs mpirun and mpi4py"
)


def job(folder: Path, processes: int, *arguments: object) -> str:
    """Runs `mpi_cases`; returns what was written to its outputs."""
    assert MPIRUN
    options = ("--allow-run-as-root", "--oversubscribe", "--with-ft", "ulfm", "-n", str(processes))
    module = (sys.executable, "-m", "mpi4py", "-m", "tests.execute.mpi_cases", str(folder))
    status, output = run([MPIRUN, *options, *module, *map(str, arguments)], folder)
    assert status == 0, output
    return output


@pytest.mark.parametrize("name", SMALL_NETWORKS)
def test_every_strategy_ends_with_the_bits_of_the_oracle(name: str, tmp_path: Path):
    wanted = cases(name, DTYPES)
    schedules = write_job(tmp_path, name, wanted)
    job(tmp_path, next(iter(schedules.values())).topology.num_servers, "conformance")
    check_reports(tmp_path, schedules, wanted)


def test_servers_that_all_exchange_at_once(tmp_path: Path):
    wanted = all_with_all(DTYPES)
    schedules = write_job(tmp_path, "complete:4", wanted)
    job(tmp_path, 4, "conformance")
    check_reports(tmp_path, schedules, wanted)


@pytest.mark.quick
def test_two_processes(tmp_path: Path):
    wanted = of_two(DTYPES)
    schedules = write_job(tmp_path, "complete:2", wanted)
    job(tmp_path, 2, "conformance")
    check_reports(tmp_path, schedules, wanted)


def test_what_all_processes_check(tmp_path: Path):
    """Sizes, strides, buffers, disagreement, groups, plans, bytes: the functions of `mpi_cases`."""
    write_schedules(tmp_path)
    output = job(tmp_path, 6, "checks")
    for rank in range(6):
        report = json.loads((tmp_path / f"{rank}.json").read_text())
        assert not report["wrong"], f"rank {rank}: {'; '.join(report['wrong'].values())} {output}"


@pytest.mark.parametrize(
    ("rank", "when"), [(0, "between"), (3, "between"), (0, "during"), (7, "during"), (3, "idle")]
)
def test_a_lost_process_is_named_by_all(rank: int, when: str, tmp_path: Path):
    # In a ring only two others exchange messages with it.
    write_job(tmp_path, "ring:8", [Case("ring", "all_reduce", "float64", "sum", 1)])
    job(tmp_path, 8, "lost", rank, when)
    check_all_name(tmp_path, 8, rank)
