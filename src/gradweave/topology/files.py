"""Topology files: GraphML, JSON and edge lists."""

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gradweave.atomic import atomic_write
from gradweave.errors import FileError, GradweaveError
from gradweave.topology.edge_list import parse_edge_list, write_edge_list
from gradweave.topology.graph import from_networkx, to_networkx
from gradweave.topology.object import topology_from_object
from gradweave.topology.topology import Topology

if TYPE_CHECKING:
    import networkx as nx

MAX_BYTES = 64 << 20
"""Largest topology file read: 64 MiB."""

SUFFIXES = {
    ".graphml": "graphml",
    ".json": "json",
    ".edges": "edges",
    ".edgelist": "edges",
    ".txt": "edges",
}
"""The format of a file by the end of its name."""


def load(path: str | Path, format: str | None = None) -> Topology:
    """Reads a network from a file.

    Args:
        path: the file; the network's name is this path.
        format: ``"graphml"``, ``"json"`` (networkx node-link, a ``topology`` object, or a schedule
            file, whose network it is) or ``"edges"``; by the end of the path's name if not given.

    Raises:
        FileError: the file cannot be read, is larger than 64 MiB or does not describe a network;
            one line.
    """
    path = Path(path)
    reader = _READERS[_format(path, format)]
    try:
        content = _read(path)
    except (OSError, ValueError) as error:
        raise FileError(f"{_shown(path)}: {getattr(error, 'strerror', None) or error}") from error
    try:
        return reader(content, str(path))
    except GradweaveError as error:
        raise FileError(f"{_shown(path)}: {error}") from error
    except Exception as error:
        # The parsers below us raise whatever a broken file makes them trip over: KeyError,
        # TypeError, SyntaxError …
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise FileError(f"{_shown(path)}: not a readable topology file: {reason}") from error


def save(topology: Topology, path: str | Path, format: str | None = None) -> None:
    """Writes a network to a file, whole or not at all.

    Links that are alike in both directions are written once. Drawing positions are kept in GraphML
    and JSON.

    Args:
        topology: the network.
        path: the file.
        format: as for `load`; JSON is written as networkx node-link.

    Raises:
        FileError: the file cannot be written, or the format cannot hold a label.
    """
    path = Path(path)
    writer = _WRITERS[_format(path, format)]
    graph = to_networkx(topology)
    if _is_symmetric(topology):
        graph = graph.to_undirected()
    try:
        content = writer(topology, graph)
    except FileError as error:
        raise FileError(f"{_shown(path)}: {error}") from error
    except UnicodeEncodeError as error:
        raise FileError(f"{_shown(path)}: a label is no valid text: {error.reason}") from error
    atomic_write(path, content)


def _shown(path: Path) -> str:
    return str(path) if str(path).isprintable() else repr(str(path))


def _format(path: Path, format: str | None) -> str:
    if format is None:
        format = SUFFIXES.get(path.suffix.lower())
        if format is None:
            raise FileError(
                f"{_shown(path)}: unknown kind of file; known are {', '.join(SUFFIXES)}, "
                "or name the format"
            )
    if format not in _READERS:
        raise FileError(
            f"{_shown(path)}: unknown format {format!r:.40}; known are {', '.join(_READERS)}"
        )
    return format


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        # Read to one byte beyond: a device or a growing file does not tell its size.
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise FileError(f"larger than {MAX_BYTES >> 20} MiB, the most that is read")
    return content


def _is_symmetric(topology: Topology) -> bool:
    fields = ("bandwidth_bytes_per_s", "latency_s", "capacity")
    columns = [getattr(topology, field) for field in fields]
    return all(np.array_equal(column, column[topology.opposite]) for column in columns)


def _read_graphml(content: bytes, name: str) -> Topology:
    import networkx as nx
    from defusedxml import ElementTree
    from defusedxml.common import DefusedXmlException

    try:
        ElementTree.fromstring(content, forbid_dtd=True)
    except DefusedXmlException:
        raise FileError("has a document type or entities, which are refused; remove them") from None
    except ElementTree.ParseError as error:
        raise FileError(f"not well-formed XML: {error}") from None
    return from_networkx(nx.read_graphml(io.BytesIO(content)), name)


def _write_graphml(topology: Topology, graph: "nx.Graph") -> bytes:
    import networkx as nx

    for text in (topology.name, *topology.labels):
        if re.search(r"[\x00-\x1f\ufffe\uffff]", text):
            raise FileError(f"{text!r:.60}: GraphML cannot hold control characters; save as .json")
    header = '<?xml version="1.0" encoding="utf-8"?>\n'
    return (header + "\n".join(nx.generate_graphml(graph)) + "\n").encode()


def _read_json(content: bytes, name: str) -> Topology:
    import msgspec
    import networkx as nx

    try:
        data = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise FileError(f"not valid JSON: {error}") from None
    except RecursionError:
        raise FileError("not valid JSON: nested too deeply") from None
    if isinstance(data, dict) and isinstance(data.get("topology"), dict):
        data = data["topology"]
    if not isinstance(data, dict) or not data.keys() & {"nodes", "servers"}:
        raise FileError(
            "expected nodes and links as networkx writes them (node-link), or servers, switches "
            "and links"
        )
    if "servers" in data:
        return topology_from_object({**data, "name": name})
    edges = "edges" if "edges" in data else "links"
    for key in ("nodes", edges):
        if not isinstance(data.get(key), list):
            raise FileError(f"{key}: expected a list")
    return from_networkx(nx.node_link_graph(data, edges=edges), name)


def _write_json(topology: Topology, graph: "nx.Graph") -> bytes:
    import msgspec
    import networkx as nx

    return msgspec.json.encode(nx.node_link_data(graph, edges="links")) + b"\n"


def _read_edges(content: bytes, name: str) -> Topology:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileError(f"not UTF-8 text: {error.reason} at byte {error.start}") from None
    return from_networkx(parse_edge_list(text), name)


def _write_edges(topology: Topology, graph: "nx.Graph") -> bytes:
    return write_edge_list(topology, graph).encode()


_READERS: dict[str, Callable[[bytes, str], Topology]] = {
    "graphml": _read_graphml,
    "json": _read_json,
    "edges": _read_edges,
}
_WRITERS: dict[str, Callable[[Topology, "nx.Graph"], bytes]] = {
    "graphml": _write_graphml,
    "json": _write_json,
    "edges": _write_edges,
}
