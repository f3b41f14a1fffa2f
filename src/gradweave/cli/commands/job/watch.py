"""``gradweave job watch``: a running job's collectives, ranks and links."""

import dataclasses
import functools
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gradweave.cli.answers import Answer
from gradweave.cli.console import Progress, Table, fields_of, note
from gradweave.cli.groups import command
from gradweave.cli.jobs import address_of, quiet_torch
from gradweave.cli.options import SECONDS, option, written_option
from gradweave.common.lazy import require
from gradweave.common.wording import counted
from gradweave.errors import RunError
from gradweave.report.watch_page import Table as OnPage
from gradweave.report.watch_page import write_watch_page
from gradweave.topology.units import format_rate

if TYPE_CHECKING:
    from gradweave.torch.view import JobView

_CLEAR = "\x1b[H\x1b[J"
MOST_LINKS = 12
"""Number of links in the table, the busiest first."""
_RANK_HEADS = ("rank", "host", "is", "call or line", "for", "calls", "behind", "sends", "receives")
_LINK_HEADS = ("link", "rate", "busy")


@command(examples=["node1:29500 --output job.html"])
@click.argument("address", metavar="[HOST:PORT]", required=False)
@option("--once", "Show the job once and end.", bool)
@option("--every", "Refresh after this time.", SECONDS, default=1.0)
@option(
    "--slow-after", "Report who holds up a call that takes longer than this.", SECONDS, default=2.0
)
@written_option(
    "--output", "Keep this page up to date; it reloads itself.", (".html",), metavar="FILE.html"
)
def watch(
    address: str | None, once: bool, every: float, slow_after: float, output: Path | None
) -> Iterator[Answer]:
    """Watch the ranks, stragglers and links of a running job.

    HOST:PORT is the address of the job's store, by default MASTER_ADDR and MASTER_PORT. The ranks
    must run with GRADWEAVE_WATCH=1 or GRADWEAVE_SLOW_AFTER. With --json each refresh prints a line.
    """
    require("gradweave job watch", "torch", extra="torch")
    quiet_torch()
    host, port = address_of(address)
    name = f"{host}:{port}"
    for view in _views(host, port, every, slow_after):
        if output is not None:
            title = f"job at {name}"
            write_watch_page(output, title, _summary(view), _holdup(view), _tables(view))
        on_terminal = sys.stdout.isatty()
        shown = once or output is None or on_terminal
        yield Answer(
            functools.partial(_described, view),
            _text(name, view, again=on_terminal and not once) if shown else [],
        )
        if once:
            return


def _views(host: str, port: int, every: float, slow_after: float) -> Iterator["JobView"]:
    """Views of the job until it ends or Ctrl-C comes."""
    with Progress(f"looking for a job at {host}:{port}"):
        from gradweave.torch.job import Job, heard_lately
        from gradweave.torch.view import JobView

        job = Job(host, port)
    before = None
    try:
        while True:
            job.ask()
            time.sleep(every)
            now = job.statuses()
            if before is not None:
                yield JobView.of(before, now, heard_lately(before, now), slow_after)
            before = now
    except KeyboardInterrupt:
        return
    except RunError:
        if before is None:
            raise
        note("the job has ended")


def _text(name: str, view: "JobView", *, again: bool) -> Iterator[str | Table]:
    """The job; again, from the top of the terminal."""
    if again:
        print(_CLEAR, end="")
    yield f"{name}: {_summary(view)}"
    if view.holdup is not None:
        yield _holdup(view)
    for _, heads, rows in _tables(view):
        yield ""
        yield Table(heads, rows)


def _summary(view: "JobView") -> str:
    inside = sum(rank.state == "in a collective" for rank in view.ranks)
    return f"{counted(len(view.ranks), 'rank')}, of which {inside} in a collective"


def _holdup(view: "JobView") -> str:
    return view.holdup.text if view.holdup is not None else ""


def _tables(view: "JobView") -> list[OnPage]:
    ranks = [
        [
            str(rank.rank),
            rank.host,
            rank.state,
            rank.where or rank.call,
            f"{rank.seconds:.1f} s",
            f"{rank.calls:,}",
            str(rank.behind),
            format_rate(rank.sent_bytes_per_s),
            format_rate(rank.received_bytes_per_s),
        ]
        for rank in view.ranks
    ]
    links = [
        [f"{link.source} → {link.target}", format_rate(link.bytes_per_s), f"{link.busy:.0%}"]
        for link in view.links[:MOST_LINKS]
    ]
    tables: list[OnPage] = [("Ranks", _RANK_HEADS, ranks)]
    return [*tables, ("Links", _LINK_HEADS, links)] if links else tables


def _described(view: "JobView") -> dict[str, Any]:
    holdup = view.holdup
    said = {"kind": holdup.kind.value, **fields_of(holdup, "ranks", "text")} if holdup else None
    links = [fields_of(x, "source", "target", "bytes_per_s", "busy") for x in view.links]
    return {
        "ranks": [dataclasses.asdict(rank) for rank in view.ranks],
        "links": links,
        "holdup": said,
    }
