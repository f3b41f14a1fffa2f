"""Processes that carry out tasks, of which one ends."""

import os
import shutil

import pytest

import gradweave as gw
from gradweave.errors import LostServerError
from gradweave.execute.running import server_processes
from gradweave.execute.running.server_processes import ServerProcesses
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.skipif(shutil.which("sleep") is None, reason="needs sleep")
LOST = r"lost server 1 \(rank 1\): .* by SIGKILL"


@pytest.fixture
def servers(tmp_path):
    starts = [(["sleep", "60000"], os.environ)] * 3
    with ServerProcesses(gw.topology.ring(3), starts, tmp_path / "log") as servers:
        yield servers


def test_a_process_that_ends_without_a_task_is_named(servers):
    servers.check_alive()
    servers.processes[1].kill()
    servers.processes[1].wait()
    with pytest.raises(LostServerError, match=LOST):
        servers.check_alive()


def test_others_that_notice_nothing_are_not_waited_for(servers, monkeypatch):
    monkeypatch.setattr(server_processes, "SHUTDOWN_GRACE_S", PATIENCE_S)
    monkeypatch.setattr(server_processes, "DEATH_S", 0.1)
    servers.processes[1].kill()
    with pytest.raises(LostServerError, match=LOST):
        servers.ask(lambda rank: {"do": "run"})
