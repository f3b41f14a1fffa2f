"""Output of all commands: results on standard output, progress and errors on standard error."""

import contextlib
import functools
import json
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from gradweave.common import clock
from gradweave.errors import CertificateWarning, FileError, InputWarning
from gradweave.printable import in_one_line, printable
from gradweave.topology.names import name_of
from gradweave.topology.topology import Topology

if TYPE_CHECKING:
    from rich.table import Table

PATIENCE_S = 2.0
"""Work that takes longer than this shows its progress."""
_WIDEST = 1 << 20
"""Columns of the widest table; a narrower one would have its names cut short."""
_MOST_RANKS = 16


def print_json(value: Mapping[str, Any]) -> None:
    """Writes one JSON object to standard output, on one line."""
    with standard_output():
        click.echo(json.dumps(value))


def print_lines(*lines: str) -> None:
    """Writes lines to standard output; see `printable`."""
    with standard_output():
        click.echo("\n".join(map(printable, lines)))


def table(heads: Sequence[str], rows: Sequence[Sequence[str]] = ()) -> "Table":
    """A table whose first column has names, to the left, and the others figures, to the right.

    Args:
        heads: of the columns.
        rows: a cell per column; more are added by `add_row`, with a style if need be.
    """
    from rich.table import Table

    result = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for number, head in enumerate(heads):
        result.add_column(printable(head), justify="right" if number else "left", no_wrap=True)
    for row in rows:
        result.add_row(*map(printable, row))
    return result


def print_table(table: "Table", *notes: str) -> None:
    """Writes a table, and faint lines below; as plain text where standard output is no terminal.

    No cell is cut short, however narrow the terminal is.
    """
    from rich.console import Console

    # Paths may have [brackets] and :colons:, which mean something else to Rich.
    plain = functools.partial(Console, markup=False, emoji=False, highlight=False)
    width = plain(width=_WIDEST).measure(table).maximum
    console = plain(width=max(100, Console().width, width))
    with standard_output():
        console.print(table)
        for line in notes:
            console.print(printable(line), style="dim")


def rank_map(topology: Topology) -> list[dict[str, Any]]:
    """Rank, server and name (or None) of each server, for JSON."""
    return [
        {"rank": rank, "server": server, "name": name_of(topology, server)}
        for rank, server in enumerate(topology.servers.tolist())
    ]


def rank_lines(topology: Topology) -> list[str]:
    """The same in one line, or none where ranks are ids and there are no names."""
    servers = topology.servers.tolist()
    if not topology.labels and servers == list(range(len(servers))):
        return []
    shown = [
        f"{rank} is {topology.node_name(server)}"
        for rank, server in enumerate(servers[:_MOST_RANKS])
    ]
    return [f"ranks: {', '.join(shown)}{', …' * (len(servers) > _MOST_RANKS)}"]


@contextlib.contextmanager
def standard_output() -> Iterator[None]:
    """Reports errors of standard output, such as a full disk, by its name."""
    try:
        yield
    except BrokenPipeError:  # its reader has seen enough
        raise
    except OSError as error:
        raise FileError(f"standard output cannot be written: {error.strerror}") from error


def note(line: str) -> None:
    """Writes a line to standard error, if possible."""
    with contextlib.suppress(OSError):
        click.echo(printable(line), err=True)


def complain(reason: str) -> None:
    """Says on standard error, in one line, why a command fails."""
    note(f"gradweave: {in_one_line(reason)}")


def warn(warning: str) -> None:
    """Warns on standard error, in one line."""
    complain(f"warning: {warning}")


@contextlib.contextmanager
def spoken_warnings() -> Iterator[None]:
    """Shows each of Gradweave's warnings once, in one line; those of others as Python does."""
    shown: set[str] = set()
    with warnings.catch_warnings():
        for kind in (InputWarning, CertificateWarning):
            warnings.simplefilter("always", kind)
        show = warnings.showwarning

        def speak(message: Warning | str, category: type[Warning], *rest: Any) -> None:
            if not category.__module__.startswith("gradweave."):
                show(message, category, *rest)
            elif str(message) not in shown:
                shown.add(str(message))
                warn(str(message))

        warnings.showwarning = speak
        yield


class Progress:
    """Shows the step under way on standard error, once the work takes longer than `PATIENCE_S`.

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
        self.hide()

    def __call__(self, doing: str) -> None:
        """Changes the text to that of the next step."""
        self._doing = doing

    def hide(self) -> None:
        """Shows nothing from here on."""
        self._stop.set()
        self._thread.join()

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
