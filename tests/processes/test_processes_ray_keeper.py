"""The process beside one that uses Ray, beside other processes."""

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("psutil", reason="comes with the extra ray")

import psutil

from gradweave.processes import ray_keeper as keeper
from gradweave.processes.children import Children
from tests.patience import PATIENCE_S

MARK = ("GRADWEAVE_RAY", "of-this-test")
SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


@contextlib.contextmanager
def sleeping(**variables: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(SLEEP, env={**os.environ, **variables})
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def started(**watched: Any) -> list[str]:
    given = json.dumps({"psutil": str(Path(psutil.__file__).parents[1]), **watched})
    return [sys.executable, "-I", "-S", keeper.__file__, given]


def kept(log: Path, **watched: Any) -> Children:
    return Children([(started(**watched), os.environ)], log)


def test_a_part_that_ends_is_named_and_the_marked_are_killed(tmp_path):
    folder = tmp_path / "ray"
    folder.mkdir()
    log = tmp_path / "log"
    marked, others = {MARK[0]: MARK[1]}, {MARK[0]: "of-another"}
    with sleeping() as raylet, sleeping(**marked) as ours, sleeping(**others) as theirs:
        with kept(log, mark=MARK, folder=str(folder)) as beside:
            beside.send(0, {"parts": {"raylet": raylet.pid, "GCS": theirs.pid}})
            raylet.kill()  # nobody waits for it: it stays as a zombie
            heard = beside.receive(PATIENCE_S)
            assert heard == (0, {"lost": f"Ray's raylet (process {raylet.pid}) ended"})
            assert ours.wait(PATIENCE_S) == -9
            beside.send(0, {"end": True})
        assert theirs.poll() is None, "others' processes stay"
    assert not folder.exists()
    assert log.read_text() == "", "who was told says it"


def test_it_speaks_where_the_process_that_it_is_beside_cannot():
    with sleeping() as raylet, sleeping(**{MARK[0]: MARK[1]}) as ours:
        command = started(mark=MARK, parts={"raylet": raylet.pid})
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        with subprocess.Popen(command, text=True, **pipes) as beside:
            assert beside.stdin is not None and beside.stdout is not None
            beside.stdin.write('{"resume": "updates up to 10 are kept"}\n')
            beside.stdin.flush()
            beside.stdout.close()
            raylet.kill()
            assert ours.wait(PATIENCE_S) == -9
            _, told = beside.communicate(timeout=PATIENCE_S)
    how = f"Ray's raylet (process {raylet.pid}) ended"
    assert told == f"gradweave: {how}; updates up to 10 are kept\n"


def test_it_tidies_up_after_a_process_that_was_killed(tmp_path):
    log, folder = tmp_path / "log", tmp_path / "ray"
    folder.mkdir()
    with sleeping(**{MARK[0]: MARK[1]}) as ours:
        with kept(log, mark=MARK, folder=str(folder), parts={"raylet": ours.pid}) as beside:
            beside.dismiss()
            assert beside.receive(PATIENCE_S) == (0, None)
        assert ours.wait(PATIENCE_S) == -9
    assert log.read_text() == "gradweave: the process that used Ray ended\n"
    assert not folder.exists()


def test_logs_that_an_error_names_stay(tmp_path):
    with kept(tmp_path / "log", folder=str(tmp_path / "ray")) as beside:
        (tmp_path / "ray").mkdir()
        beside.send(0, {"folder": None})
        beside.send(0, {"end": True})
    assert (tmp_path / "ray").exists()


def test_an_address_that_does_not_answer(monkeypatch):
    monkeypatch.setattr(keeper, "KNOCK_EVERY_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        watching = keeper.Keeper(keeper.Watched(psutil="", address=address))
        monkeypatch.setattr(keeper, "PATIENCE_S", -1.0)
        assert watching._ended() == ""
    monkeypatch.setattr(keeper, "PATIENCE_S", 30.0)
    assert watching._ended() == "", "it may come back"
    monkeypatch.setattr(keeper, "PATIENCE_S", -1.0)
    assert watching._ended() == f"Ray's GCS at {address} has not answered for 0 s"


def test_only_a_cluster_elsewhere_is_asked_whether_it_is_there_and_now_and_then(monkeypatch):
    now, asked = [100.0], []

    def connected(place: tuple[str, int], _timeout: float) -> Any:
        asked.append((now[0], *place))
        return SimpleNamespace(close=lambda: None)

    monkeypatch.setattr(keeper, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(keeper.socket, "create_connection", connected)
    here, elsewhere = (keeper.Keeper(keeper.Watched("", address=a)) for a in (None, "[::1]:6379"))
    for now[0] in (101.0, 105.0, 106.0, 109.9, 110.0):
        assert here._unanswered() == elsewhere._unanswered() == ""
    assert asked == [(105.0, "::1", 6379), (110.0, "::1", 6379)]
