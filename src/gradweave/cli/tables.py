"""Tables of algorithms on the command line."""

import csv
import dataclasses
import math
from pathlib import Path
from typing import Any

import click

from gradweave.cli.answers import Answer
from gradweave.cli.combinations import excludes, needs
from gradweave.cli.console import Table
from gradweave.cli.options import FILE, grouped, option
from gradweave.common.wording import counted
from gradweave.errors import FileError, OptionError
from gradweave.ranks.search import optimize
from gradweave.ranks.stock import Named
from gradweave.ranks.table_files import TABLE_FORMATS, save_table, to_table
from gradweave.ranks.tables import Entry, Point, measured_table, predict_table
from gradweave.ranks.tables import Table as Algorithms
from gradweave.topology.topology import Topology
from gradweave.topology.units import format_size

NUMBERINGS = ("id", "name", "best")
_COLUMNS = ("collective", "bytes", "algorithm", "segment", "seconds")

table_options = grouped(
    option(
        "--table table_format",
        "Instead of an order, write a table of algorithms by size for this library.",
        click.Choice([*TABLE_FORMATS]),
    ),
    option(
        "--numbered",
        "With --table, ranks in this order: of ids, of names, or the best.  [default: id]",
        click.Choice(NUMBERINGS),
    ),
    option(
        "--measured",
        f"With --table, choose by measurements: CSV with the columns {','.join(_COLUMNS)}, "
        "where 'default' is one algorithm.",
        FILE,
        metavar="FILE",
    ),
    option(
        "--base",
        "With --table mpich, the libmpi.so of your MPICH, or a selection as JSON.",
        FILE,
        metavar="FILE",
    ),
    option(
        "--local-ranks",
        "With a table for NCCL, XLA or HAN, the number of ranks per server.  [default: 1]",
        click.IntRange(min=1),
    ),
    needs("--table", "--numbered", "--measured", "--base", "--local-ranks"),
    excludes("--table", "--format", "--mesh", "--addresses"),
    excludes("--measured", "--runtime"),
)
"""The options of a table; see `TableRequest`."""


@dataclasses.dataclass(frozen=True)
class TableRequest:
    """The options of a table."""

    format: str
    numbered: str | None
    measured: Path | None
    base: Path | None
    local_ranks: int | None
    runtime: str | None
    output: Path | None

    def build(self, topology: Topology, gradient_bytes: float, seed: int) -> Algorithms:
        """The table, written if a file is given.

        Raises:
            OptionError: options do not fit.
            FileError: a file cannot be read or written.
        """
        library = TABLE_FORMATS[self.format].library
        ranks = self._ranks(topology, library, gradient_bytes, seed)
        if self.measured is not None:
            found = measured_table(topology, library, read_measurements(self.measured), ranks)
        else:
            found = predict_table(topology, library, ranks, runtime=self.runtime)
        if self.output is not None:
            save_table(found, self.output, self.format, self.base, self.local_ranks or 1)
        else:
            # Refuses what a file would be refused for.
            to_table(found, self.format, self.base, self.local_ranks or 1)
        return found

    def _ranks(
        self, topology: Topology, library: str, gradient_bytes: float, seed: int
    ) -> tuple[int, ...] | None:
        if self.numbered in (None, "id"):
            return None
        if self.numbered == "best":
            like = "nccl" if library == "nccl" else "openmpi"
            return optimize(topology, like, gradient_bytes, seed=seed).ranks
        if not topology.labels:
            raise OptionError(
                "--numbered name: expected servers with names, got none; give --hosts"
            )
        servers = topology.servers.tolist()
        return tuple(sorted(servers, key=lambda server: topology.labels[server]))

    def answer(self, found: Algorithms) -> Answer:
        """The table, how to use it and what shows that it is used."""
        how = TABLE_FORMATS[self.format]
        output = None if self.output is None else str(self.output)
        file = output or "FILE"
        use, proof = how.use.format(file=file), how.proof.format(file=file)
        about = {"use": use, "proof": proof, "bad_file": how.bad, "format": self.format}
        order = self.numbered or "id"
        lines: list[str | Table] = [
            f"{found.topology.name}: {counted(found.num_ranks, 'rank')} in order of {order}, for "
            f"{found.library.name}"
        ]
        rows = _rows(found) if how.by_size else []
        if rows:
            when = "measured" if found.measured else "predicted"
            lines.append(
                Table(["collective", "sizes", "algorithm", "default", f"saves, {when}"], rows)
            )
        elif how.by_size:
            lines.append("no algorithm is enough faster than the library's default")
        if output is None:
            asides = [f"nothing written: --output rules writes the table for {how.library}"]
        else:
            lines += [f"written to {output}", f"use: {use}", f"proof: {proof}"]
            lines.append(f"a bad file: {how.bad}")
            asides = [
                f"gradweave: warning: the table holds for ranks in order of {order}; start the "
                "job in that order"
            ] * (order != "id")
        return Answer(found.as_object() | about | {"output": output}, lines, asides)


def _rows(found: Algorithms) -> list[list[str]]:
    rows = []
    for collective, entries in found.named().items():
        ends = [*(entry.from_bytes for entry in entries[1:]), math.inf]
        for entry, end in zip(entries, ends, strict=True):
            if entry.algorithm is not None:
                rows.append(_row(found, collective, entry, end))
    return rows


def _row(found: Algorithms, collective: Named, entry: Entry, end: float) -> list[str]:
    inside = [
        one
        for one in found.points
        if one.collective == collective and entry.from_bytes <= one.bytes < end
    ]
    segment = f", {format_size(entry.segment_bytes)} segments" if entry.segment_bytes else ""
    until = "up" if end == math.inf else f"below {format_size(end)}"
    return [
        collective,
        f"{format_size(entry.from_bytes)} and {until}",
        f"{entry.algorithm}{segment}",
        ", ".join(dict.fromkeys(one.default or "unknown" for one in inside)),
        _gains(inside),
    ]


def _gains(points: list[Point]) -> str:
    gains = [one.gain for one in points if one.default_s is not None]
    return f"{min(gains):.0%} to {max(gains):.0%}" if gains else "–"


def read_measurements(path: Path) -> list[tuple[str, int, str, int, float]]:
    """Rows of measured times: collective, total bytes, algorithm, bytes per segment, seconds.

    Args:
        path: a CSV file with these columns, by name; the segment may be missing.

    Raises:
        FileError: the file cannot be read, or a line lacks a value.
    """
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"{path}: {getattr(error, 'strerror', None) or 'not text'}") from error
    rows = csv.DictReader(line for line in text.splitlines() if line.strip())
    missing = {*_COLUMNS} - {"segment"} - {*(rows.fieldnames or ())}
    if missing:
        raise FileError(f"{path}: line 1: expected the column {min(missing)}, got none")
    return [_measurement(path, rows.line_num, row) for row in rows]


def _measurement(path: Path, line: int, row: dict[str, Any]) -> tuple[str, int, str, int, float]:
    try:
        size, segment = int(row["bytes"]), int(row.get("segment") or 0)
        return row["collective"], size, row["algorithm"], segment, float(row["seconds"])
    except (TypeError, ValueError):
        raise FileError(
            f"{path}: line {line}: expected numbers of bytes and seconds, got "
            f"{row['bytes']!r:.40} and {row['seconds']!r:.40}"
        ) from None
