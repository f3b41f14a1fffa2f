"""``gradweave place --train`` in processes that a launcher started."""

import dataclasses
import json
import sys
from pathlib import Path

import numpy as np
import pytest

import gradweave as gw
from gradweave.errors import OptionError
from tests.execute.launch import run

pytest.importorskip("torch")
NETWORK = "cities:Oregon.Tokyo,each=2"
MODEL = (
    "transformer:layers=2,width=16,sequence=8,batch=8,microbatches=2,vocabulary=128,value_bytes=4"
)
COMMAND = ["place", NETWORK, "--train", "--model", MODEL, "--time-limit", "1"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Outputs and exit statuses of three jobs: one that trains, and two with bad input."""
    folder = tmp_path_factory.mktemp("launched")
    four, three = {"WORLD_SIZE": "4"}, {"WORLD_SIZE": "3"}
    trained = [
        *COMMAND,
        "--pipeline",
        "2",
        "--steps",
        "2",
        "--scheduler",
        "annealing,gloo",
        "--check",
    ]
    jobs = [
        [4, four, [*trained, "--json"]],
        [4, four, [*COMMAND, "--pipeline", "3"]],
        [1, three, [*COMMAND, "--pipeline", "2"]],
    ]
    module = [sys.executable, "-m", "tests.placement.launched_process", str(folder)]
    status, output = run([*module, json.dumps(jobs)], folder)
    assert status == 0, output
    return folder


def said(folder: Path, job: int, rank: int) -> str:
    return (folder / f"{job}-{rank}.err").read_text()


def statuses(folder: Path, job: int) -> list[int]:
    return json.loads((folder / "output").read_text().splitlines()[-1])[job]


def test_a_launchers_processes_train_as_one_process_does(folder: Path):
    assert statuses(folder, 0) == [0] * 4, said(folder, 0, 0)
    told = json.loads((folder / "0-0.out").read_text())
    alone = told["one_process_losses"]
    assert len(alone) == 2 and [one["averages"] for one in told["trainings"]] == [
        "schedule",
        "gloo",
    ]
    for one in told["trainings"]:
        assert one["losses"] == pytest.approx(alone, rel=1e-5)
        assert len(one["steps_s"]) == 2 and all(0 < step < 30 for step in one["steps_s"])
    assert all((folder / f"0-{rank}.out").read_text() == "" for rank in (1, 2, 3))


def test_bad_input_is_said_by_the_first_alone_and_ends_all(folder: Path):
    assert statuses(folder, 1) == [2, 0, 0, 0]
    (line,) = said(folder, 1, 0).splitlines()
    assert "4 devices cannot be balanced over 3 groups" in line
    assert all(said(folder, 1, rank) == "" for rank in (1, 2, 3))
    assert statuses(folder, 2) == [2]
    (line,) = said(folder, 2, 0).splitlines()
    assert "expected 4 processes of the launcher, one for each server of cities" in line
    assert line.endswith("got 3")


def test_what_a_launcher_leaves_out(monkeypatch: pytest.MonkeyPatch):
    from gradweave.placement.training.launched import LaunchedServers, check_size
    from gradweave.processes.launchers import launcher

    assert launcher() is None
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    assert launcher() == "mpi"
    check_size(gw.topology.ring(2))
    with pytest.raises(OptionError, match=r"passes on with -x.*there is no MASTER_PORT"):
        LaunchedServers()
    monkeypatch.setenv("RANK", "1")  # torchrun in a job of MPI
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert launcher() == "torch"
    with pytest.raises(OptionError, match=r"expected 2 processes.* got 3"):
        check_size(gw.topology.ring(2))


def test_a_lab_has_no_launcher_around_it(monkeypatch: pytest.MonkeyPatch):
    from gradweave.cli.placed_training import _trained_on

    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(OptionError, match="no launcher around it"):
        _trained_on(gw.topology.ring(2), True, "20Mbit/s", None)


def test_processes_are_the_servers_of_their_hosts_and_train_on_one_text():
    from gradweave.placement.training.launched import check_same, ordered_by_host

    rates = 1e6 * np.arange(1.0, 5.0)
    star = gw.topology.Topology.from_links(
        "star", servers=4, switches=1, links=[(s, 4) for s in range(4)], bandwidth_bytes_per_s=rates
    )
    measured = dataclasses.replace(star, labels=("b", "a:0", "c", "a:1", "shared"))
    found = ordered_by_host(measured, ["a", "b", "a", "c"])
    assert found.labels == ("a:0", "b", "a:1", "c", "shared")
    up = found.find_links(range(4), [4] * 4)
    assert found.bandwidth_bytes_per_s[up].tolist() == [2e6, 1e6, 4e6, 3e6]
    assert ordered_by_host(star, ["a", "b", "a", "c"]) is star

    alike = [{"host": "a", "text": "1"}, {"host": "b", "text": "1"}]
    check_same(alike)
    with pytest.raises(OptionError, match="rank 2 on c has other sources of gradweave"):
        check_same([*alike, {"host": "c", "text": "2"}])
