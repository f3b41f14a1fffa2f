"""Runs a search or a measurement in a separate process, so that it does not delay the training."""

import contextlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from gradweave.errors import OptionError
from gradweave.processes.children import Children, how_ended

_NICE = 10
_LOOK_S = 0.5
"""Time between two checks whether to stop the program."""


def run_command(
    arguments: Sequence[str],
    log: Path,
    given_up: Callable[[], str | None],
    environment: Mapping[str, str] = os.environ,
    *,
    patient: bool = False,
) -> None:
    """Runs a module as a program, and stops it once it is given up.

    Args:
        arguments: the module, such as ``gradweave.probe``, and its arguments.
        log: file for its standard error.
        given_up: returns the reason to stop the program, or None to continue.
        environment: environment variables of the process.
        patient: whether the program leaves the processor to the training.

    Raises:
        OptionError: the program was given up, or failed; the message is then its last line of
            output.
    """
    command = [sys.executable, "-m", *arguments]
    with Children([(command, environment)], log) as child:
        if patient:
            with contextlib.suppress(OSError):  # it has ended already
                os.setpriority(os.PRIO_PROCESS, child.processes[0].pid, _NICE)
        while (told := child.receive(_LOOK_S)) is None or told[1] is not None:
            if (why := given_up()) is not None:
                raise OptionError(why)
        status = child.status(0)
    if status:
        lines = log.read_text(errors="replace").strip().splitlines()
        raise OptionError(lines[-1] if lines else how_ended(status))
