"""The state of another process of this machine."""

import os
import signal
import subprocess
import sys

import pytest

from gradweave.processes.children import is_stopped

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def test_stopped_and_ended():
    process = subprocess.Popen(["sleep", "1000"])
    try:
        assert not is_stopped(process.pid)
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        assert is_stopped(process.pid)
    finally:
        process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it stays as a zombie
    assert not is_stopped(process.pid)
    process.wait()
