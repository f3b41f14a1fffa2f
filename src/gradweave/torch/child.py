"""Verbs of Gradweave in a process of their own, so that they do not hold up the training's."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from gradweave.errors import OptionError
from gradweave.processes.children import Children, how_ended

_LOOK_S = 0.5
"""How often it is looked whether the verb is to be given up."""


def run_verb(
    arguments: Sequence[str],
    log: Path,
    given_up: Callable[[], str | None],
    environment: Mapping[str, str] = os.environ,
) -> None:
    """Runs one, and ends it where it is given up.

    Args:
        arguments: the verb, and what it is given.
        log: file for its standard error.
        given_up: why it is to be ended now; None while it is not.
        environment: of the process.

    Raises:
        OptionError: it was given up, or failed, in the last line that it said.
    """
    command = [sys.executable, "-m", "gradweave", *arguments, "--json"]
    with Children([(command, environment)], log) as child:
        while (told := child.receive(_LOOK_S)) is None or told[1] is not None:
            if (why := given_up()) is not None:
                raise OptionError(why)
        status = child.status(0)
    if status:
        lines = log.read_text(errors="replace").strip().splitlines()
        raise OptionError(lines[-1] if lines else how_ended(status))
