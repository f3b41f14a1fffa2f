"""Which error of several is told when the processes of a measurement end."""

import os
import sys

import pytest

from gradweave.errors import RunError
from gradweave.probe import launch

SAY = (
    "import json, os, signal, sys, time\n"
    "def say(**what): print(json.dumps(what), flush=True)\n"
    "path = sys.argv[1]\n"
)
STOPS = "open(path, 'w').write(str(os.getpid()))\nos.kill(os.getpid(), signal.SIGSTOP)"
AFTER_IT = """
def stopped():
    try:
        return open(f"/proc/{open(path).read()}/stat").read().split(") ")[1][0] == "T"
    except (OSError, IndexError):
        return False
while not stopped():
    time.sleep(0.01)
say(error="lost server 0, which leads the measurement: its connection broke")
"""
WAITS = "time.sleep(6e4)"


def supervised(tmp_path, *programs: str, **options: float) -> None:
    starts = [
        ([sys.executable, "-c", SAY + program, str(tmp_path / "id")], os.environ)
        for program in programs
    ]
    launch.supervise(starts, tmp_path / "log", print, print, **options)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_server_that_is_stopped_is_named_whatever_others_say(tmp_path, monkeypatch):
    monkeypatch.setattr("gradweave.processes.children.STOP_S", 0.2)
    with pytest.raises(RunError, match=r"^lost server 1: its process is stopped$"):
        supervised(tmp_path, WAITS, STOPS, AFTER_IT)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_server_that_is_stopped_while_all_wait_for_it_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("gradweave.processes.children.STOP_S", 0.2)
    with pytest.raises(RunError, match=r"^lost server 0: its process is stopped$"):
        supervised(tmp_path, STOPS, WAITS, stopped_s=0.3)


def test_what_the_first_one_says_counts_more(tmp_path, monkeypatch):
    monkeypatch.setattr("gradweave.processes.children.STOP_S", 0.2)
    monkeypatch.setattr(launch, "_SHUTDOWN_GRACE_S", 600.0)
    first = "time.sleep(0.2)\nsay(error='lost server 2: silent for 8 s')"
    with pytest.raises(RunError, match=r"^lost server 2: silent for 8 s$"):
        supervised(tmp_path, first, "say(error='lost server 0')", WAITS)


def test_what_another_says_counts_where_the_first_one_says_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("gradweave.processes.children.STOP_S", 0.2)
    monkeypatch.setattr(launch, "_SHUTDOWN_GRACE_S", 0.2)
    with pytest.raises(RunError, match=r"^no network$"):
        supervised(tmp_path, WAITS, "say(error='no network')")
