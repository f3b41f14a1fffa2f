"""Tables as data: what the files `tables/*.toml` say, and its rendering.

    [mutations]
    rows = "mutations:rows"
    head = "mutation | tried | rejected"
    line = "{mutation} | {tried:,} | {100 * rejected / tried:.1f}%"

A table is named as the marker whose text it is. `rows` is a query of `claims/query.py`, or several,
and `line` is filled for each row. In braces stands an expression of the same language, whose paths
begin at the row, and after a colon how its value is shown: as Python's format has it, by a name of
`SHOWN`, or by `?yes/no`, one text or the other. Before these, `each` joins several values, and
`range` shows the least and the greatest. Null, and what is not there, is shown as –; an expression
that finds nothing in any row is an error. `head`, `text` and `after` are filled with the whole
result. Other keys are the fields of `Table`; two tables of one marker are an array, `[[marker]]`.
"""

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.claims.query import QueryError, values
from benchmarks.markdown_table import NETWORKS, before_planned, duration, number, source, table, two
from benchmarks.record import load
from gradweave.topology.units import format_size

SHOWN: dict[str, Callable[[Any], str]] = {
    "number": number,
    "duration": duration,
    "size": format_size,
    "binary": lambda size: f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB",
    "network": lambda label: NETWORKS[label],
    "words": lambda name: name.replace("_", " "),
    "hyphens": lambda name: name.replace("_", "-"),
    "prefix": lambda name: name.split(":")[0],
    "thousands": lambda x: f"{x / 1e6:.1f} M" if x >= 1e6 else f"{x / 1e3:.0f} k",
    "percent": lambda x: f"{max(0.0, x):.1%}",
    "figure": lambda x: f"{x:,.0f}" if abs(x) >= 1e4 else f"{x:.4g}",
    "two": two,
    "short": lambda x: f"{x:,.3g}" if x < 1000 else f"{x:,.0f}",
}
"""Ways to show a value, besides those of Python's format."""
NOTHING = "–"
_FIELD = re.compile(r"\{((?:'[^']*'|[^{}:'])+)(?::([^{}]*))?\}")


@dataclass(frozen=True)
class Table:
    """A table as its file has it."""

    rows: str | list[str]
    head: str
    """The first cell is aligned left, the others right."""
    line: str
    by: list[str] = field(default_factory=list)
    """Keys by which rows are grouped: a line is then filled with the rows of a group."""
    across: str = ""
    """A key, of whose values each has a column like the last one, in the head and in the lines."""
    last: str = ""
    """The last line, filled with all rows, or with those of a column."""
    named: dict[str, str] = field(default_factory=dict)
    """Texts in place of values that are shown as `named`."""
    source: bool = True
    """Whether the command, machines and versions follow."""
    measured: str = ""
    """A query for the rows whose source it is; none: of the whole result."""
    falling: str = ""
    """A key by which rows are sorted, the greatest first."""
    before_planned: bool = False
    """Whether it is said which rows are older than the strategy `planned`."""
    after: str = ""
    """What follows the source."""

    def rendered(self) -> str:
        """The text of the table and of what follows it."""
        queries = [self.rows] if isinstance(self.rows, str) else self.rows
        rows = [row for query in queries for row in values(query)]
        if self.falling:
            rows.sort(key=lambda row: -row[self.falling])
        result = load(queries[0].partition(":")[0])
        measured = values(self.measured) if self.measured else None
        head, lines = self._columns(rows) if self.across else (self.head, self._lines(rows))
        text = table(filled(head, [result], self.named)[0], lines)
        if self.source:
            text += f"\n\n{source(result, measured)}"
        if self.before_planned:
            text += before_planned(result, measured)
        return text + filled(self.after, [result])[0]

    def _lines(self, rows: list) -> list[str]:
        lines = filled(self.line, grouped(rows, self.by) if self.by else rows, self.named)
        return lines + (filled(self.last, [rows]) if self.last else [])

    def _columns(self, rows: list) -> tuple[str, list[str]]:
        """The head and the lines of a table with a column for each value of `across`."""
        columns = grouped(rows, [self.across])
        place = {rows[0][self.across]: at for at, rows in enumerate(columns)}

        def repeated(template: str, column: Iterable[Any]) -> str:
            *first, cell = template.split(" | ")
            cells = filled(cell, column, self.named)
            return " | ".join([*first, *cells])

        lines = []
        for group in grouped(rows, self.by):
            cells: list[Any] = [{}] * len(columns)
            for row in group:
                cells[place[row[self.across]]] = row
            line = repeated(self.line, cells)
            lines += filled(line, group[:1], self.named)
        if self.last:
            lines.append(repeated(self.last, (rows[0] for rows in columns)))
        return repeated(self.head, (rows[0] for rows in columns)), lines


@dataclass(frozen=True)
class Sentence:
    """Text in place of a table, filled with a result."""

    of: str
    text: str

    def rendered(self) -> str:
        """The text, and its source."""
        result = load(self.of)
        return f"{filled(self.text, [result])[0]}\n\n{source(result)}"


def read(path: Path) -> dict[str, Callable[[], str]]:
    """The tables of a file, by marker."""

    def text_of(entries: list[dict[str, Any]]) -> Callable[[], str]:
        kinds = [(Sentence if "text" in one else Table)(**one) for one in entries]
        return lambda: "\n\n".join(one.rendered() for one in kinds)

    try:
        content = tomllib.loads(path.read_text())
        return {
            marker: text_of(entry if isinstance(entry, list) else [entry])
            for marker, entry in content.items()
        }
    except (tomllib.TOMLDecodeError, TypeError) as error:
        raise QueryError(f"{path.name}: {error}") from error


def grouped(rows: Iterable[dict[str, Any]], by: Iterable[str]) -> list[list[dict[str, Any]]]:
    """Rows that have the same values of some keys, in the order of the first of each."""
    groups: dict[tuple, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(key_of(row, by), []).append(row)
    return list(groups.values())


def key_of(row: Mapping[str, Any], by: Iterable[str]) -> tuple:
    """A row's values of some keys."""
    return tuple(row[key] for key in by)


def filled(template: str, rows: Iterable[Any], named: Mapping[str, str] | None = None) -> list[str]:
    """The template for each row.

    Raises:
        QueryError: if an expression cannot be read, finds nothing in any row, or finds several
            values where one is shown.
    """
    rows, found = list(rows), set()

    def text(row: Any) -> str:
        def one(match: re.Match[str]) -> str:
            if there := [x for x in values(match[1], row) if x is not None]:
                found.add(match[0])
            return shown(there, match[2] or "", named or {})

        return _FIELD.sub(one, template)

    lines = [text(row) for row in rows]
    for match in _FIELD.finditer(template):
        if rows and match[0] not in found:
            raise QueryError(f"no row has anything for {match[0]} of {template!r}")
    return lines


def shown(found: list, how: str, named: Mapping[str, str]) -> str:
    """Values as a template says it."""
    several, _, rest = how.partition(" ")
    if several == "each":
        return ", ".join(shown([x], rest, named) for x in found)
    if several == "range" and found:
        return " to ".join(shown([x], rest, named) for x in (min(found), max(found)))
    if not found:
        return NOTHING
    if len(found) > 1:
        raise QueryError(f"{len(found)} values where one is shown as {how!r}")
    (value,) = found
    if how.startswith("?"):
        return how[1:].split("/")[not value]
    if how == "named":
        return named[str(value)]
    return SHOWN[how](value) if how in SHOWN else format(value, how)
