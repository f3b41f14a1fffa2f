"""A child's side of the pipe to its parent."""

import signal
import subprocess
import sys

from tests.patience import PATIENCE_S

PROGRAM = """
import sys, time
from gradweave.processes.parent import Parent
parent = Parent()
try:
    parent.send(ready=True)
    time.sleep(6e4)
except BaseException:
    sys.exit(7)
"""


def test_an_interruption_ends_the_process_as_other_signals_do():
    child = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline()
        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=PATIENCE_S)
    finally:
        child.kill()
    assert (child.returncode, said) == (-signal.SIGINT, "")
