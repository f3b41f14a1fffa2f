"""Output of all commands: results on standard output, progress and errors on standard error."""

import contextlib
import functools
import json
import sys
import threading
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import click

from gradweave.common import clock
from gradweave.common.wording import counted
from gradweave.errors import CertificateWarning, FileError, InputWarning
from gradweave.printable import in_one_line, printable
from gradweave.topology.names import name_of
from gradweave.topology.topology import Topology

PATIENCE_S = 2.0
"""Work that takes longer than this shows its progress."""
_WIDEST = 1 << 20
"""Columns of the widest table; a narrower one would have its names cut short."""
_MOST_RANKS = 16


def print_json(value: Mapping[str, Any]) -> None:
    """Writes one JSON object to standard output, on one line; arrays as lists, paths as text."""
    with standard_output():
        click.echo(json.dumps(value, default=_plain))


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else str(value)


def fields_of(held: object, *names: str) -> dict[str, Any]:
    """Attributes as fields of a JSON object, under the same names."""
    return {name: getattr(held, name) for name in names}


def network_fields(topology: Topology) -> dict[str, Any]:
    """A network's name and its numbers of servers and links, for JSON."""
    return {
        "topology": topology.name,
        "servers": topology.num_servers,
        "links": topology.num_links,
    }


def link_fields(topology: Topology) -> dict[str, Any]:
    """The columns of a network's links, for JSON."""
    names = ("source", "target", "bandwidth_bytes_per_s", "latency_s", "overhead_s")
    return {name: getattr(topology, name).tolist() for name in names}


def print_lines(*lines: str) -> None:
    """Writes lines to standard output; see `printable`."""
    with standard_output():
        click.echo("\n".join(map(printable, lines)))


class Table:
    """A table whose first column has names, to the left, and the others figures, to the right."""

    def __init__(
        self, heads: Sequence[str], rows: Iterable[Sequence[str]] = (), notes: Iterable[str] = ()
    ) -> None:
        """A table.

        Args:
            heads: of the columns.
            rows: a cell per column; `add_row` adds more.
            notes: lines below the table.
        """
        self.heads, self.notes = heads, notes
        self.rows = [(row, "") for row in rows]

    def add_row(self, *cells: str, style: str = "") -> None:
        """Adds a row, in a style such as "bold"."""
        self.rows.append((cells, style))


def print_table(table: Table) -> None:
    """Writes a table, and its notes faintly; as plain text where standard output is no terminal.

    No cell is cut short, however narrow the terminal is.
    """
    from rich import table as rich
    from rich.console import Console

    shown = rich.Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for number, head in enumerate(table.heads):
        shown.add_column(printable(head), justify="right" if number else "left", no_wrap=True)
    for cells, style in table.rows:
        shown.add_row(*map(printable, cells), style=style or None)
    # Paths may have [brackets] and :colons:, which mean something else to Rich.
    plain = functools.partial(Console, markup=False, emoji=False, highlight=False)
    width = plain(width=_WIDEST).measure(shown).maximum
    console = plain(width=max(100, Console().width, width))
    with standard_output():
        console.print(shown)
        for line in table.notes:
            console.print(printable(line), style="dim")


def network_line(topology: Topology) -> str:
    """A network's name and its numbers of servers, switches and links."""
    return (
        f"{topology.name}: {counted(topology.num_servers, 'server')}, "
        f"{counted(len(topology.switches), 'switch', 'switches')}, "
        f"{counted(topology.num_links, 'link')}"
    )


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
