"""Tables of algorithms on the command line."""

import csv
import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from gradweave.cli.console import note, print_json, print_lines, print_table, table, warn
from gradweave.cli.options import with_options
from gradweave.common.wording import counted
from gradweave.errors import FileError, OptionError
from gradweave.ranks.search import optimize
from gradweave.ranks.stock import Named
from gradweave.ranks.table_files import TABLE_FORMATS, save_table, to_table
from gradweave.ranks.tables import Entry, Point, Table, measured_table, predict_table
from gradweave.topology.topology import Topology
from gradweave.topology.units import format_size

NUMBERINGS = ("id", "name", "best")
_COLUMNS = ("collective", "bytes", "algorithm", "segment", "seconds")

_TABLE_OPTIONS = (
    click.option(
        "--table",
        "table_format",
        type=click.Choice([*TABLE_FORMATS]),
        help="Instead of an order, write a table of algorithms by size for this library.",
    ),
    click.option(
        "--numbered",
        type=click.Choice(NUMBERINGS),
        help="With --table, ranks in this order: of ids, of names, or the best.  [default: id]",
    ),
    click.option(
        "--measured",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help=f"With --table, choose by measurements: CSV with the columns {','.join(_COLUMNS)}, "
        "where 'default' is one algorithm.",
    ),
    click.option(
        "--base",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="With --table mpich, the libmpi.so of your MPICH, or a selection as JSON.",
    ),
    click.option(
        "--local-ranks",
        type=click.IntRange(min=1),
        help="With a table for NCCL, XLA or HAN, the number of ranks per server.  [default: 1]",
    ),
)


def table_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options of a table to a command; see `TableRequest`."""
    return with_options(command, _TABLE_OPTIONS)


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

    def build(self, topology: Topology, gradient_bytes: float, seed: int) -> Table:
        """The table, written if a file is given.

        Raises:
            OptionError: options do not fit.
            FileError: a file cannot be read or written.
        """
        library = TABLE_FORMATS[self.format].library
        ranks = self._ranks(topology, library, gradient_bytes, seed)
        if self.measured is not None:
            if self.runtime is not None:
                raise OptionError("--runtime: expected predictions, got --measured; give one")
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

    def show(self, found: Table, *, as_json: bool) -> None:
        """Prints the table, how to use it and what shows that it is used."""
        how = TABLE_FORMATS[self.format]
        if as_json:
            output = None if self.output is None else str(self.output)
            file = output or "FILE"
            use, proof = how.use.format(file=file), how.proof.format(file=file)
            told = {"use": use, "proof": proof, "bad_file": how.bad}
            print_json(found.as_object() | told | {"format": self.format, "output": output})
            return
        order = self.numbered or "id"
        print_lines(
            f"{found.topology.name}: {counted(found.num_ranks, 'rank')} in order of {order}, for "
            f"{found.library.name}"
        )
        rows = _rows(found) if how.by_size else []
        if not rows and how.by_size:
            print_lines("no algorithm is enough faster than the library's default")
        elif rows:
            when = "measured" if found.measured else "predicted"
            print_table(
                table(["collective", "sizes", "algorithm", "default", f"saves, {when}"], rows)
            )
        if self.output is None:
            note(f"nothing written: --output rules writes the table for {how.library}")
            return
        print_lines(
            f"written to {self.output}",
            f"use: {how.use.format(file=self.output)}",
            f"proof: {how.proof.format(file=self.output)}",
            f"a bad file: {how.bad}",
        )
        if order != "id":
            warn(f"the table holds for ranks in order of {order}; start the job in that order")


def _rows(found: Table) -> list[list[str]]:
    rows = []
    for collective, entries in found.named().items():
        ends = [*(entry.from_bytes for entry in entries[1:]), math.inf]
        for entry, end in zip(entries, ends, strict=True):
            if entry.algorithm is not None:
                rows.append(_row(found, collective, entry, end))
    return rows


def _row(found: Table, collective: Named, entry: Entry, end: float) -> list[str]:
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
