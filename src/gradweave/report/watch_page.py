"""A page of a running job that reloads itself."""

import html
from collections.abc import Sequence
from pathlib import Path

from gradweave.common.atomic import atomic_write
from gradweave.printable import printable
from gradweave.report.document import static_page

_STYLE = """
.watch table { border-collapse: collapse; margin: 0 0 28px; font: 14px var(--sans); }
.watch th, .watch td { padding: 5px 14px 5px 0; text-align: right; white-space: nowrap; }
.watch th:first-child, .watch td:first-child { text-align: left; }
.watch th { color: var(--muted); font-weight: 600; border-bottom: 1px solid var(--line); }
.watch .holdup { padding: 12px 16px; border-radius: 10px; border: 1px solid var(--warn);
  background: var(--card); max-width: 80ch; }
"""

Table = tuple[str, Sequence[str], Sequence[Sequence[str]]]
"""Heading, heads of columns, and rows."""


def watch_page(title: str, summary: str, holdup: str, tables: Sequence[Table]) -> str:
    """A self-contained page that browsers reload every second.

    Args:
        title: title of the page.
        summary: a line below the title.
        holdup: the rank that holds up the job; empty if there is none.
        tables: tables below.
    """
    said = f'<p class="holdup">{_text(holdup)}</p>' if holdup else ""
    body = said + "".join(map(_table, tables))
    again = '<meta http-equiv="refresh" content="1">'
    line = f'{again}<p class="hint">{_text(summary)}</p>'
    return static_page("watch", "running job", title, line, body, _STYLE)


def write_watch_page(
    path: str | Path, title: str, summary: str, holdup: str, tables: Sequence[Table]
) -> None:
    """Writes `watch_page`.

    Raises:
        FileError: the file cannot be written.
    """
    atomic_write(path, watch_page(title, summary, holdup, tables).encode("ascii"))


def _table(table: Table) -> str:
    heading, heads, rows = table
    head = "".join(f"<th>{_text(each)}</th>" for each in heads)
    lines = "".join(
        f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    return f"<h2>{_text(heading)}</h2><table><tr>{head}</tr>{lines}</table>"


def _text(text: str) -> str:
    return html.escape(printable(text))
