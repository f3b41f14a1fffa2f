"""A child's side of the pipe to its parent."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

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


@contextmanager
def child_of(program: str) -> Iterator[subprocess.Popen[str]]:
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as child:
        try:
            yield child
        finally:
            child.kill()


def test_an_interruption_ends_the_process_as_other_signals_do():
    with child_of(PROGRAM) as child:
        assert child.stdout is not None
        assert child.stdout.readline()
        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=PATIENCE_S)
    assert (child.returncode, said) == (-signal.SIGINT, "")


LISTENS = """
import time
from gradweave.processes.parent import Parent
parent = Parent()
parent.listen(lambda message: parent.send(heard=message))
time.sleep(6e4)
"""
SENDS = "from gradweave.processes.parent import Parent; Parent().send(heard=input())"


def test_messages_are_heard_while_it_works_and_the_end_of_the_pipe_ends_it():
    with child_of(LISTENS) as child:
        assert child.stdin is not None and child.stdout is not None
        child.stdin.write('{"do": "stop"}\n')
        child.stdin.flush()
        assert json.loads(child.stdout.readline()) == {"heard": {"do": "stop"}}
        _, said = child.communicate(timeout=PATIENCE_S)
    assert (child.returncode, said) == (0, "")


def test_a_message_to_a_parent_that_is_gone_ends_the_process():
    with child_of(SENDS) as child:
        assert child.stdin is not None and child.stdout is not None
        child.stdout.close()
        child.stdin.write("\n")
        child.stdin.close()
        assert child.wait(PATIENCE_S) == 1
