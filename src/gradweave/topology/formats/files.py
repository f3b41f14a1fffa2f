"""Topology files: GraphML, JSON, YAML, CSV, edge lists, hosts; of NCCL, InfiniBand, SimAI."""

import functools
import io
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gradweave.atomic import atomic_write
from gradweave.errors import FileError, GradweaveError, InputWarning
from gradweave.topology.formats.attributes import reject_misspelt, shown
from gradweave.topology.formats.csv_links import parse_csv, write_csv
from gradweave.topology.formats.edge_list import parse_edge_list, write_edge_list
from gradweave.topology.formats.graph import from_networkx, to_networkx
from gradweave.topology.formats.host_lines import are_host_lines, parse_host_lines
from gradweave.topology.formats.host_tree import HostLinks, HostTree
from gradweave.topology.formats.ibnetdiscover import is_ibnetdiscover, parse_ibnetdiscover
from gradweave.topology.formats.launch_hosts import (
    are_launch_hosts,
    only_launch_hosts,
    parse_launch_hosts,
)
from gradweave.topology.formats.msccl_json import topology_from_msccl
from gradweave.topology.formats.nccl_xml import parse_xml, topology_from_nccl_xml
from gradweave.topology.formats.object import topology_from_object
from gradweave.topology.formats.simai import is_simai, parse_simai
from gradweave.topology.formats.slurm import is_slurm_yaml, parse_slurm_conf, slurm_tree
from gradweave.topology.formats.topograph import is_topograph, topograph_tree
from gradweave.topology.formats.yaml_data import parse_yaml, write_yaml
from gradweave.topology.topology import LINK_PROPERTIES, Topology

if TYPE_CHECKING:
    import networkx as nx

MAX_BYTES = 64 << 20
"""Largest topology file read: 64 MiB."""

SUFFIXES = {
    ".graphml": "graphml",
    ".json": "json",
    ".yaml": "yaml",
    ".yml": "yaml",
    ".csv": "csv",
    ".edges": "edges",
    ".edgelist": "edges",
    ".txt": "edges",
    ".xml": "xml",
    ".conf": "slurm",
    ".hosts": "hosts",
}
"""The format of a file by its suffix; for JSON, YAML, edge lists and XML, content decides
further."""
_HEAD_BYTES = 1 << 16
"""Bytes read from the start of a file to recognise its format."""
_NODE_LINK = ("directed", "multigraph", "graph", "nodes", "links", "edges", "name")


def read(
    path: str | Path, format: str | None = None, *, host_links: HostLinks | None = None
) -> Topology:
    """Reads a network from a file.

    Args:
        path: the file; the network's name is this path.
        format: ``"graphml"``, ``"json"`` (networkx node-link, a ``topology`` object, a schedule
            file, whose network it is, or msccl's), ``"yaml"`` (the same, written in YAML),
            ``"csv"``, ``"edges"``, ``"nccl_xml"`` (see
            `topology_from_nccl_xml`), ``"nccl_xml_with_network"`` (network cards too),
            ``"nccl_xml_nvlink_only"`` (no PCIe), ``"msccl_json"``, ``"simai"``,
            ``"ibnetdiscover"`` (either form), ``"slurm"`` (topology.conf) or ``"hosts"`` (lines
            such as ``rack1:node7``, or a launcher's list of hosts). JSON and YAML may also be
            topograph's and Slurm's topology.yaml. If not given, by suffix and content; hostfiles
            and the files of ibnetdiscover, SimAI and ns-3 may have any name.
        host_links: the links of hosts, which Slurm, topograph and lines of hosts do not tell; those
            of `HostLinks` if not given.

    Raises:
        FileError: the file cannot be read, is larger than 64 MiB or does not describe a network;
            one line.
    """
    path = Path(path)
    format = format_of(path, format)
    reader = _READERS[format]
    try:
        content = _read(path)
    except (OSError, ValueError) as error:
        raise FileError(f"{_shown(path)}: {getattr(error, 'strerror', None) or error}") from error
    try:
        # Bytes of a path that are no UTF-8 become escapes, since no schedule's file can hold them.
        name = str(path).encode(errors="backslashreplace").decode()
        read = reader(content, name)
        if isinstance(read, HostTree):
            return read.topology(name, host_links)
        if host_links is not None:
            raise FileError(
                "bandwidth and oversubscription are for lists of hosts; these links have their own"
            )
        return read
    except GradweaveError as error:
        raise FileError(f"{_shown(path)}: {error}") from error
    except InputWarning:  # where warnings are errors
        raise
    except Exception as error:
        # The libraries' parsers raise anything on a broken file: KeyError, TypeError, SyntaxError …
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise FileError(f"{_shown(path)}: not a readable topology file: {reason}") from error


def format_of(path: Path, format: str | None = None) -> str:
    """The format in which `load` reads a file: the given one, or by content and suffix.

    Raises:
        FileError: it is not known.
    """
    return _format(path, format or _by_content(path), _READERS)


def save(topology: Topology, path: str | Path, format: str | None = None) -> None:
    """Writes a network to a file, whole or not at all.

    If all links are symmetric, each is written once. GraphML, JSON and YAML keep drawing positions.

    Args:
        topology: the network.
        path: the file.
        format: ``"graphml"``, ``"json"`` (networkx node-link), ``"yaml"`` (the same), ``"csv"`` or
            ``"edges"``; by the path's suffix if not given.

    Raises:
        FileError: the file cannot be written, or the format cannot hold a label.
    """
    graph = to_networkx(topology)
    save_graph(graph.to_undirected() if _is_symmetric(topology) else graph, topology, path, format)


def save_graph(
    graph: "nx.Graph", topology: Topology, path: str | Path, format: str | None = None
) -> None:
    """Writes a network with additional attributes, which JSON and YAML preserve.

    Args:
        graph: the network as `to_networkx` gives it, with more attributes.
        topology: the network.
        path: the file.
        format: as for `save`.

    Raises:
        FileError: as for `save`.
    """
    path = Path(path)
    writer = _WRITERS[_format(path, format, _WRITERS)]
    try:
        content = writer(topology, graph).encode()
    except FileError as error:
        raise FileError(f"{_shown(path)}: {error}") from error
    except UnicodeEncodeError as error:
        raise FileError(f"{_shown(path)}: a label is not valid text: {error.reason}") from error
    atomic_write(path, content)


def _shown(path: Path) -> str:
    return str(path) if str(path).isprintable() else repr(str(path))


def _format(path: Path, format: str | None, known: Iterable[str]) -> str:
    if format is None:
        suffixes = {suffix: kind for suffix, kind in SUFFIXES.items() if kind in known}
        format = suffixes.get(path.suffix.lower())
        if format is None:
            raise FileError(
                f"{_shown(path)}: unknown kind of file; known are {', '.join(suffixes)}, "
                "or name the format"
            )
    if format not in known:
        raise FileError(
            f"{_shown(path)}: unknown format {format!r:.40}; known are {', '.join(known)}"
        )
    return format


def _by_content(path: Path) -> str | None:
    """The format of files of any name, by their first lines: SimAI, ibnetdiscover, hostfiles."""
    if path.suffix.lower() in SUFFIXES or not path.is_file():
        return None
    try:
        with path.open("rb") as file:
            text = file.read(_HEAD_BYTES).decode("utf-8-sig", errors="replace")
    except OSError:
        return None
    if is_simai(text):
        return "simai"
    if is_ibnetdiscover(text):
        return "ibnetdiscover"
    whole_lines = text if len(text) < _HEAD_BYTES else text.rpartition("\n")[0]
    return "hosts" if only_launch_hosts(whole_lines) else None


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        # One byte beyond the limit: the size of a device or a growing file is not known beforehand.
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise FileError(f"larger than {MAX_BYTES >> 20} MiB, the most that is read")
    return content


def _is_symmetric(topology: Topology) -> bool:
    columns = [getattr(topology, field) for field in LINK_PROPERTIES]
    return all(np.array_equal(column, column[topology.opposite]) for column in columns)


def _read_graphml(content: bytes, name: str) -> Topology:
    import networkx as nx

    parse_xml(content)  # rejects document types and entities, which networkx does not
    return from_networkx(nx.read_graphml(io.BytesIO(content)), name)


def _read_xml(content: bytes, name: str) -> Topology:
    tag = str(parse_xml(content).tag)
    if tag.endswith("}network") and "sndlib" in tag:
        raise FileError(
            "is a network of SNDlib, whose capacities have no unit; write its links as an edge "
            "list with bandwidths, such as 155Mbit/s"
        )
    is_graphml = tag.endswith("}graphml")
    return (_read_graphml if is_graphml else topology_from_nccl_xml)(content, name)


def _read_json(content: bytes, name: str) -> Topology | HostTree:
    return _from_data(_decoded(content), name)


def _read_yaml(content: bytes, name: str) -> Topology | HostTree:
    return _from_data(parse_yaml(content), name)


def _from_data(data: Any, name: str) -> Topology | HostTree:
    import networkx as nx

    if is_slurm_yaml(data):
        return slurm_tree(data)
    if is_topograph(data):
        return topograph_tree(data)
    if isinstance(data, dict) and isinstance(data.get("topology"), dict):
        data = data["topology"]
    if isinstance(data, dict) and "msccl_type" in data:
        return topology_from_msccl(data, name)
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
    reject_misspelt(data, _NODE_LINK)
    graph = nx.node_link_graph(data, edges=edges)
    if graph.number_of_edges() < len(data[edges]):
        _refuse_lost_links(graph, nx.node_link_graph({**data, "multigraph": True}, edges=edges))
    return from_networkx(graph, name)


def _refuse_lost_links(graph: "nx.Graph", every: "nx.MultiGraph") -> None:
    """Refuses parallel links in a file that declares none, since only the last would count."""
    for source, target, data in every.edges(data=True):
        if data != graph.edges[source, target]:
            raise FileError(
                f"link {shown(source)}→{shown(target)} is given twice with different properties; "
                "parallel links need multigraph: true"
            )


def _read_msccl(content: bytes, name: str) -> Topology:
    data = _decoded(content)
    if not isinstance(data, dict):
        raise FileError("expected an object with links, as msccl-tools writes it")
    return topology_from_msccl(data, name)


def _decoded(content: bytes) -> Any:
    import msgspec

    try:
        return msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise FileError(f"not valid JSON: {error}") from None
    except RecursionError:
        raise FileError("not valid JSON: nested too deeply") from None


def _read_csv(content: bytes, name: str) -> Topology:
    return from_networkx(parse_csv(_text(content)), name)


def _read_slurm(content: bytes, name: str) -> HostTree:
    return parse_slurm_conf(_text(content))


def _read_hosts(content: bytes, name: str) -> HostTree:
    text = _text(content)
    return parse_launch_hosts(text) if are_launch_hosts(text) else parse_host_lines(text)


def _read_edges(content: bytes, name: str) -> Topology | HostTree:
    text = _text(content)
    if is_simai(text, whole=True):
        return parse_simai(text, name)
    if is_ibnetdiscover(text[:_HEAD_BYTES]):
        return parse_ibnetdiscover(text, name)
    if name.lower().endswith(".txt") and are_launch_hosts(text):
        return parse_launch_hosts(text)
    if are_host_lines(text):
        return parse_host_lines(text)
    return from_networkx(parse_edge_list(text), name)


def _read_ibnetdiscover(content: bytes, name: str) -> Topology:
    return parse_ibnetdiscover(_text(content), name)


def _read_simai(content: bytes, name: str) -> Topology:
    return parse_simai(_text(content), name)


def _text(content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileError(f"not UTF-8 text: {error.reason} at byte {error.start}") from None


def _write_graphml(topology: Topology, graph: "nx.Graph") -> str:
    import networkx as nx

    for text in (topology.name, *topology.labels):
        if re.search(r"[\x00-\x1f\ufffe\uffff]", text):
            raise FileError(f"{text!r:.60}: GraphML cannot hold control characters; save as .json")
    header = '<?xml version="1.0" encoding="utf-8"?>'
    return "\n".join([header, *nx.generate_graphml(graph)]) + "\n"


def _write_json(topology: Topology, graph: "nx.Graph") -> str:
    import msgspec

    return msgspec.json.encode(_node_link(graph)).decode() + "\n"


def _write_yaml(topology: Topology, graph: "nx.Graph") -> str:
    return write_yaml(_node_link(graph))


def _node_link(graph: "nx.Graph") -> dict[str, Any]:
    import networkx as nx

    return nx.node_link_data(graph, edges="links")


_READERS: dict[str, Callable[[bytes, str], Topology | HostTree]] = {
    "graphml": _read_graphml,
    "json": _read_json,
    "yaml": _read_yaml,
    "csv": _read_csv,
    "edges": _read_edges,
    "xml": _read_xml,
    "nccl_xml": topology_from_nccl_xml,
    "nccl_xml_with_network": functools.partial(topology_from_nccl_xml, network=True),
    "nccl_xml_nvlink_only": functools.partial(topology_from_nccl_xml, pcie=False),
    "msccl_json": _read_msccl,
    "simai": _read_simai,
    "ibnetdiscover": _read_ibnetdiscover,
    "slurm": _read_slurm,
    "hosts": _read_hosts,
}
_WRITERS: dict[str, Callable[[Topology, "nx.Graph"], str]] = {
    "graphml": _write_graphml,
    "json": _write_json,
    "yaml": _write_yaml,
    "csv": write_csv,
    "edges": write_edge_list,
}
