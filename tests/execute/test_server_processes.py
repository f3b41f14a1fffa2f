"""Processes that carry out tasks, when they have none."""

import os
import shutil

import pytest

import gradweave as gw
from gradweave.errors import LostServerError
from gradweave.execute.running.server_processes import ServerProcesses


@pytest.mark.skipif(shutil.which("sleep") is None, reason="needs sleep")
def test_a_process_that_ends_without_a_task_is_named(tmp_path):
    topology = gw.topology.ring(3)
    starts = [(["sleep", "60000"], os.environ)] * 3
    with ServerProcesses(topology, starts, tmp_path / "log") as servers:
        servers.check_alive()
        servers.processes[1].kill()
        servers.processes[1].wait()
        with pytest.raises(LostServerError, match=r"lost server 1 \(rank 1\): .* by SIGKILL"):
            servers.check_alive()
