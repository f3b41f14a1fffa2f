"""CSV files: one link a row, as spreadsheets and measurements have them.

    # switches: s0
    source,target,bandwidth,latency,capacity
    a,s0,100Gbit/s,1us,
    b,s0,97.3Gbit/s,,

The header is required; ``source`` and ``target`` are all that it must have, in any order. An empty
cell says nothing. Lines that begin with ``#`` are comments, except the directives of
`gradweave.topology.formats.directives`.
"""

import csv
import io
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gradweave.errors import FileError
from gradweave.topology.formats.attributes import refuse_misspelt, shown
from gradweave.topology.formats.directives import Directives, directives, node_names, written
from gradweave.topology.topology import Topology

if TYPE_CHECKING:
    import networkx as nx

_ENDS = ("source", "target")
_COLUMNS: tuple[str, ...] = (*_ENDS, "bandwidth", "latency", "capacity")


def parse_csv(text: str) -> "nx.MultiGraph":
    """Reads a CSV file.

    Args:
        text: the file's text.

    Returns:
        A graph with ``kind`` on its switches and the other columns, as they are written, on its
        edges.

    Raises:
        FileError: naming the line.
    """
    said = Directives()
    reader = csv.reader(_content(text, said), strict=True)
    rows: list[tuple[str, str, dict[str, Any]]] = []
    header: list[str] = []
    try:
        for cells in reader:
            values = [cell.strip() for cell in cells]
            if not any(values):
                continue
            if not header:
                header = _header(values)
                continue
            if len(values) != len(header):
                raise FileError(
                    f"line {reader.line_num}: expected {len(header)} cells, as the header has; "
                    f"got {len(values)}"
                )
            data: dict[str, Any] = {
                column: value for column, value in zip(header, values, strict=True) if value
            }
            if not data.keys() >= {*_ENDS}:
                raise FileError(f"line {reader.line_num}: expected a source and a target")
            rows.append((data.pop("source"), data.pop("target"), data))
    except csv.Error as error:
        raise FileError(f"line {reader.line_num}: {error}") from None
    if not header:
        raise FileError(f"expected a header such as {','.join(_COLUMNS)}, then a link a row")
    return said.graph(rows)


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
    text.write("\n".join(directives(topology, graph.is_directed())) + "\n")
    writer = csv.DictWriter(text, _COLUMNS, lineterminator="\n")
    writer.writeheader()
    for source, target, data in graph.edges(data=True):
        ends = {"source": names[source], "target": names[target]}
        writer.writerow(ends | written(data))
    return text.getvalue()


def _content(text: str, said: Directives) -> Iterator[str]:
    """All lines, comments emptied: the reader counts lines for the messages."""
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        comment = line.lstrip().startswith(("#", '"#'))
        if comment:
            # A spreadsheet fills the line up with commas, and quotes one that has any.
            said.take(number, line.strip().rstrip(",").strip('"'))
        yield "\n" if comment else line


def _header(values: list[str]) -> list[str]:
    """The columns' names, in small letters."""
    header = [value.lower() for value in values]
    known = {column: None for column in header}
    refuse_misspelt(known, _COLUMNS, FileError)
    if not known.keys() >= {*_ENDS}:
        raise FileError(
            f"expected a header with source and target, such as {','.join(_COLUMNS)}; got "
            f"{shown(','.join(values))}"
        )
    repeated = next((name for name in header if header.count(name) > 1), None)
    if repeated is not None:
        raise FileError(f"the header has {shown(repeated)} twice")
    return header
