"""What all verbs share: results on standard output, progress and errors on standard error."""

import contextlib
import json
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import click

from gradweave import clock
from gradweave.errors import FileError, InputWarning

PATIENCE_S = 2.0
"""Work that takes longer than this shows its progress."""


def print_json(value: Mapping[str, Any]) -> None:
    """Writes one JSON object to standard output, on one line."""
    with standard_output():
        click.echo(json.dumps(value))


def print_lines(*lines: str) -> None:
    """Writes lines to standard output; see `printable`."""
    with standard_output():
        click.echo("\n".join(map(printable, lines)))


@contextlib.contextmanager
def standard_output() -> Iterator[None]:
    """Names standard output where it cannot be written, as on a full disk."""
    try:
        yield
    except BrokenPipeError:  # its reader has seen enough
        raise
    except OSError as error:
        raise FileError(f"standard output cannot be written: {error.strerror}") from error


def printable(text: str) -> str:
    """The text with every character that a terminal might act on written as an escape.

    Names come from files, and files from anyone.
    """
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
        for character in text
    )


def note(line: str) -> None:
    """Says on standard error what is to be known at once, if that can be written."""
    with contextlib.suppress(OSError):
        click.echo(printable(line), err=True)


def warn(warning: str) -> None:
    """Warns on standard error, in one line."""
    note(f"gradweave: warning: {' '.join(warning.split())}")


@contextlib.contextmanager
def spoken_warnings() -> Iterator[None]:
    """Says each of Gradweave's own warnings in one line, and once; others appear as ever."""
    said: set[str] = set()
    with warnings.catch_warnings():
        warnings.simplefilter("always", InputWarning)
        show = warnings.showwarning

        def speak(message: Warning | str, category: type[Warning], *rest: Any) -> None:
            if not category.__module__.startswith("gradweave."):
                show(message, category, *rest)
            elif str(message) not in said:
                said.add(str(message))
                warn(str(message))

        warnings.showwarning = speak
        yield


def duration(seconds: float) -> str:
    """Seconds in words, in a unit that suits them."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


class Progress:
    """Says on standard error what is being done, once the work takes longer than `PATIENCE_S`.

    On a terminal one line is rewritten; elsewhere a line is written at most every five seconds.
    """

    def __init__(self, doing: str) -> None:
        self._doing = doing
        self._started = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Progress":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def __call__(self, doing: str) -> None:
        """Changes what is said to be done."""
        self._doing = doing

    def _run(self) -> None:
        with contextlib.suppress(OSError):  # nobody can see it
            self._show()

    def _show(self) -> None:
        on_terminal = sys.stderr.isatty()
        wait = PATIENCE_S
        shown = False
        while not self._stop.wait(wait):
            waiting = clock.waiting_for()
            doing = printable(f"{self._doing} ({waiting})" if waiting else self._doing)
            line = f"{time.monotonic() - self._started:4.0f} s  {doing}"
            sys.stderr.write(f"\r\x1b[K{line}" if on_terminal else f"{line}\n")
            sys.stderr.flush()
            shown, wait = True, 0.2 if on_terminal else 5.0
        if shown and on_terminal:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
