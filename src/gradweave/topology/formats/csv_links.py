"""CSV files: one link per row, as in spreadsheets and measurements.

    # switches: s0
    source,target,bandwidth,latency,capacity
    a,s0,100Gbit/s,1us,
    b,s0,97.3Gbit/s,,

The header is required, with at least ``source`` and ``target``; there may be ``overhead``, too, and
columns may be in any order. An
empty cell stands for the default. Lines that begin with ``#`` are comments, except the directives
of `gradweave.topology.formats.directives`.
"""

import csv
import io
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gradweave.errors import FileError
from gradweave.topology.formats.attributes import SPEED_KEYS, reject_misspelt, shown
from gradweave.topology.formats.directives import (
    Directives,
    directive_lines,
    link_fields,
    node_names,
)
from gradweave.topology.topology import Topology

if TYPE_CHECKING:
    import networkx as nx

_ENDS = ("source", "target")
_USUAL: tuple[str, ...] = (*_ENDS, "bandwidth", "latency", "capacity")
_COLUMNS = (*_USUAL, "overhead")


def parse_csv(text: str) -> "nx.MultiGraph":
    """Reads a CSV file.

    Args:
        text: the file's text.

    Returns:
        A graph with ``kind`` on its switches and the other columns, as text, on its edges.

    Raises:
        FileError: naming the line.
    """
    directives = Directives()
    reader = csv.reader(_without_comments(text, directives), strict=True)
    header: list[str] = []
    rows: list[tuple[str, str, dict[str, Any]]] = []
    try:
        for cells in reader:
            values = [cell.strip() for cell in cells]
            if not any(values):
                continue
            if header:
                rows.append(_link(header, values, f"line {reader.line_num}"))
            else:
                header = _header(values)
    except csv.Error as error:
        raise FileError(f"line {reader.line_num}: {error}") from None
    if not header:
        raise FileError(f"expected a header such as {','.join(_USUAL)}, then one link per row")
    return directives.graph(rows)


def write_csv(topology: Topology, graph: "nx.Graph") -> str:
    """Writes a CSV file.

    Args:
        topology: the network, for its labels.
        graph: the same network as `to_networkx` gives it, or undirected.

    Raises:
        FileError: a label cannot be written in this format.
    """
    names = node_names(topology)
    text = io.StringIO()
    text.write("\n".join(directive_lines(topology, graph.is_directed())) + "\n")
    rows: list[dict[str, Any]] = [
        {"source": names[source], "target": names[target], **link_fields(data)}
        for source, target, data in graph.edges(data=True)
    ]
    columns = _COLUMNS if any("overhead" in row for row in rows) else _USUAL
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _without_comments(text: str, directives: Directives) -> Iterator[str]:
    """All lines, comments emptied: the reader counts lines for the messages."""
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        comment = line.lstrip().startswith(("#", '"#'))
        if comment:
            # A spreadsheet pads the line with commas, and quotes a comment that contains any.
            directives.read(number, line.strip().rstrip(",").strip('"'))
        yield "\n" if comment else line


def _header(values: list[str]) -> list[str]:
    """The columns' names, in lower case, except those of the Topology Zoo."""
    speeds = {key.lower(): key for key in SPEED_KEYS}
    header = [speeds.get(value.lower(), value.lower()) for value in values]
    reject_misspelt(header, _COLUMNS)
    if not {*_ENDS} <= {*header}:
        raise FileError(
            f"expected a header with source and target, such as {','.join(_USUAL)}; got "
            f"{shown(','.join(values))}"
        )
    times = Counter(header)
    repeated = next((name for name in header if times[name] > 1), None)
    if repeated is not None:
        raise FileError(f"the header has {shown(repeated)} twice")
    return header


def _link(header: list[str], values: list[str], where: str) -> tuple[str, str, dict[str, Any]]:
    """The ends of a row's link, and its other cells by column; empty ones are left out."""
    if len(values) != len(header):
        raise FileError(
            f"{where}: expected {len(header)} cells, as the header has; got {len(values)}"
        )
    cells = {column: value for column, value in zip(header, values, strict=True) if value}
    if not cells.keys() >= {*_ENDS}:
        raise FileError(f"{where}: expected a source and a target")
    return cells.pop("source"), cells.pop("target"), cells
