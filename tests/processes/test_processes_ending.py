"""What ends a process, and is heard."""

import os
import signal
import time

import pytest

from gradweave.processes.ending import heard_again, termination
from tests.patience import PATIENCE_S


class Deaf:
    """Whose exceptions Python ignores, as those of what is called at the end of a collection."""

    def __del__(self) -> None:
        self.wait()

    def wait(self) -> None:
        os.kill(os.getpid(), self.number)
        time.sleep(PATIENCE_S)

    def __init__(self, number: int) -> None:
        self.number = number


def lose(number: int) -> None:
    Deaf(number)
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        time.sleep(0.01)
    pytest.fail("nothing was heard")


def test_an_interruption_that_was_lost_is_heard_again():
    with pytest.raises(KeyboardInterrupt), heard_again():
        lose(signal.SIGINT)


def test_so_is_a_termination():
    with pytest.raises(SystemExit, match="143"), heard_again(), termination():
        lose(signal.SIGTERM)


def test_other_exceptions_are_told_as_before(monkeypatch):
    told: list[object] = []
    monkeypatch.setattr("sys.unraisablehook", lambda one: told.append(one.exc_type))

    class Fails:
        def __del__(self) -> None:
            raise ZeroDivisionError

    with heard_again():
        Fails()
    assert told == [ZeroDivisionError]
