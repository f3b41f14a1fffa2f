"""A server is killed in the middle of a run: everybody says which, and nothing stays."""

import os
import signal
import time
from pathlib import Path

import pytest

import gradweave as gw
from tests.execute.bench_process import (
    MPIRUN,
    SHUTDOWN_GRACE_S,
    gone,
    left_behind,
    pid,
    said,
    started,
    wait_for,
)
from tests.patience import PATIENCE_S

pytest.importorskip("mpi4py")
pytest.importorskip("torch")
pytest.importorskip("jax")

ENDLESS = ("--size", "4e6", "--repetitions", 1_000_000)
SERVERS = 4


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run") / "ring.json"
    gw.schedulers.Ring().schedule(gw.topology.ring(SERVERS)).save(path)
    return path


CASES = [
    pytest.param("torch", [], list(range(SERVERS)), 3, 3, id="torch", marks=pytest.mark.slow),
    pytest.param("mpi", [], list(range(SERVERS)), 3, 3, id="mpi"),
    pytest.param("mpi", [], list(range(SERVERS)), 0, 0, id="mpi, the first"),
    # Process 0 has no servers, 1 has servers 0 and 1, 2 has 2 and 3.
    pytest.param("jax", ["--processes", 2], [1, 2], 2, 2, id="jax"),
]


@pytest.mark.parametrize(("backend", "options", "numbers", "victim", "server"), CASES)
def test_a_killed_server(file, tmp_path, backend, options, numbers, victim, server):
    verb = started([file, "--backend", backend, *ENDLESS, *options, "--logs", tmp_path])
    try:
        wait_for(verb, tmp_path, numbers, "run 1 ")
        pids = [pid(tmp_path, number) for number in numbers]
        time.sleep(0.5)
        os.kill(pids[numbers.index(victim)], signal.SIGKILL)
        out, err = verb.communicate(timeout=SHUTDOWN_GRACE_S)
    finally:
        verb.kill()
    assert (verb.returncode, out) == (1, "")
    (line,) = said(err)
    assert line.startswith(
        f"gradweave: lost server {server} (rank {server}): its process was ended by SIGKILL"
    )
    assert not gone(pids, PATIENCE_S)
    for number in numbers:
        last = (tmp_path / f"process-{number}.log").read_text().splitlines()[-1]
        named = f"lost server {server} (rank {server}): " in last
        assert named != (number == victim), last
        if named and backend != "jax":
            assert last.startswith(f"server {number}: ")
    assert not left_behind(verb.pid)


@pytest.mark.parametrize(
    ("backend", "number", "status"), [("mpi", signal.SIGINT, 130), ("jax", signal.SIGTERM, 143)]
)
def test_an_interrupted_run(file, tmp_path, backend, number, status):
    verb = started([file, "--backend", backend, *ENDLESS, "--logs", tmp_path])
    numbers = list(range(SERVERS)) if backend == "mpi" else [0]
    try:
        wait_for(verb, tmp_path, numbers, "checking")
        pids = [pid(tmp_path, number) for number in numbers]
        verb.send_signal(number)
        out, err = verb.communicate(timeout=SHUTDOWN_GRACE_S)
    finally:
        verb.kill()
    assert (verb.returncode, out) == (status, "")
    assert said(err) == ["gradweave: interrupted"] * (number == signal.SIGINT)
    assert not gone(pids, PATIENCE_S)
    assert not left_behind(verb.pid)


@pytest.mark.parametrize("backend", ["mpi", "jax"])
def test_servers_do_not_outlive_the_verb(file, tmp_path, backend):
    verb = started([file, "--backend", backend, *ENDLESS, "--logs", tmp_path])
    try:
        wait_for(verb, tmp_path, [0], "checking")
        everything = children(verb.pid)
        assert pid(tmp_path, 0) in everything
    finally:
        verb.kill()
    verb.communicate()
    assert not gone(everything, PATIENCE_S)
    assert not left_behind(verb.pid), "the last of them removes it"


@pytest.mark.slow
def test_a_server_killed_under_mpirun(file):
    job = started([file, "--backend", "mpi", *ENDLESS], before=[*MPIRUN, "-n", str(SERVERS)])
    try:
        assert job.stderr is not None
        line = next(line for line in job.stderr if " run " in line)
        assert " of 1000003" in line
        victim = next(child for child in children(job.pid) if rank(child) == 3)
        os.kill(victim, signal.SIGKILL)
        out, err = job.communicate(timeout=SHUTDOWN_GRACE_S)
    finally:
        job.kill()
    assert job.returncode != 0 and out == ""
    lost = "lost server 3 (rank 3): its process ended"
    named = {line.split(":")[1] for line in said(err) if lost in line}
    assert named == {f" rank {other}" for other in range(SERVERS) if other != 3}


def children(parent: int) -> list[int]:
    """All processes below one."""
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            above = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if above == parent:
            found += [int(path.parent.name), *children(int(path.parent.name))]
    return found


def rank(process: int) -> int | None:
    """What MPI told a process."""
    for entry in Path(f"/proc/{process}/environ").read_bytes().split(b"\0"):
        if entry.startswith(b"OMPI_COMM_WORLD_RANK="):
            return int(entry.split(b"=")[1])
    return None
