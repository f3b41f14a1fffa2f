"""Ray's processes that hide the mark by which they are found, when Ray's parts are not known."""

import subprocess
import sys

import pytest

pytest.importorskip("psutil", reason="comes with the extra ray")

from tests.patience import PATIENCE_S
from tests.processes.test_processes_ray_keeper import MARK, started

RAYLET = """
import subprocess, sys, time
agent = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(6e4)"], env={})
print(agent.pid, flush=True)
time.sleep(6e4)
"""


def test_children_of_the_marked_are_killed_with_them():
    import psutil

    raylet = subprocess.Popen(
        [sys.executable, "-c", RAYLET], env={MARK[0]: MARK[1]}, stdout=subprocess.PIPE, text=True
    )
    try:
        assert raylet.stdout is not None
        agent = psutil.Process(int(raylet.stdout.readline()))
        # It ends without having told the parts, as where Ray's start is interrupted.
        subprocess.run(started(mark=MARK), stdin=subprocess.DEVNULL, timeout=PATIENCE_S)
        raylet.wait(PATIENCE_S)
        psutil.wait_procs([agent], PATIENCE_S)
        assert not agent.is_running()
    finally:
        raylet.kill()
        raylet.communicate()
