"""Topology files: read, alone or several together, and written."""

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gradweave.common.atomic import atomic_write
from gradweave.errors import FileError, GradweaveError, InputWarning
from gradweave.topology.formats.box import Box
from gradweave.topology.formats.cables import Cables
from gradweave.topology.formats.csv_links import write_csv
from gradweave.topology.formats.edge_list import write_edge_list
from gradweave.topology.formats.graph import to_networkx
from gradweave.topology.formats.host_tree import HostLinks, HostTree
from gradweave.topology.formats.joined import joined
from gradweave.topology.formats.readers import READERS, SUFFIXES, Found, format_by_content
from gradweave.topology.formats.yaml_data import write_yaml
from gradweave.topology.topology import LINK_PROPERTIES, Topology

if TYPE_CHECKING:
    import networkx as nx

MAX_BYTES = 64 << 20
"""Largest topology file read: 64 MiB."""


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
            ``"nccl_xml_nvlink_only"`` (no PCIe), ``"msccl_json"``, ``"simai"``, ``"slurm"``
            (topology.conf), ``"hosts"`` (lines such as ``rack1:node7``, or a launcher's list of
            hosts), or a name in `gradweave.topology.formats.readers.TEXTS`. JSON and YAML may also
            be of the formats in ``DATA`` there. If not given, by content and else by suffix.
        host_links: the links of hosts, which lists of hosts do not tell, and the bandwidth of
            cables without a speed; those of `HostLinks` if not given.

    Raises:
        FileError: the file cannot be read, is larger than 64 MiB or does not describe a network;
            one line.
    """
    with one_line(path):
        return network_of(find(path, format), name_of(path), host_links)


def read_together(paths: Sequence[str | Path], host_links: HostLinks | None = None) -> Topology:
    """Reads one network from the files of hosts' insides and of fabrics; see `joined`.

    Args:
        paths: the files; the network's name is their paths, joined by ``+``.
        host_links: as for `read`.

    Raises:
        FileError: as for `read` and `joined`.
    """
    return together(find_all(paths), host_links)


def find_all(paths: Sequence[str | Path]) -> dict[str, Found]:
    """The content of each file, by its name.

    Args:
        paths: the files, each once.

    Raises:
        FileError: as for `read`.
    """
    files: dict[str, Found] = {}
    for path in paths:
        if name_of(path) in files:
            raise FileError(f"{_shown(Path(path))}: is given twice")
        files[name_of(path)] = find(path)
    return files


def together(files: Mapping[str, Found], host_links: HostLinks | None = None) -> Topology:
    """The network of the files' content.

    Args:
        files: as `find_all` gives it.
        host_links: as for `read`.

    Raises:
        FileError: as for `joined`.
    """
    name = "+".join(files)
    with one_line(name):
        if len(files) > 1:
            return joined(files, name, host_links)
        [found] = files.values()
        return network_of(found, name, host_links)


def parts_of(name: str) -> list[str]:
    """The files that a name such as ``node.txt+fabric.out`` stands for; none if it is no such name.

    A file whose name contains ``+`` is one file.
    """
    parts = name.split("+")
    several = len(parts) > 1 and not Path(name).is_file()
    return parts if several and any(Path(part).is_file() for part in parts) else []


def find(path: str | Path, format: str | None = None) -> Found:
    """Reads the content of a file, before it becomes a network.

    Args:
        path: the file.
        format: as for `read`.

    Raises:
        FileError: as for `read`.
    """
    path = Path(path)
    if format is not None:
        _format(path, format, READERS, SUFFIXES)
    try:
        content = _read(path)
    except (OSError, ValueError) as error:
        raise FileError(f"{_shown(path)}: {getattr(error, 'strerror', None) or error}") from error
    suffix = path.suffix.lower()
    if format is None:
        with one_line(path):
            format = format_by_content(content, suffix)
    format = _format(path, format, READERS, SUFFIXES)
    with one_line(path):
        found = READERS[format](content, name_of(path))
        return found if isinstance(found, Found) else Found(format, found)


def network_of(found: Found, name: str, host_links: HostLinks | None = None) -> Topology:
    """The network of a file's content.

    Args:
        found: the content.
        name: the network's name.
        host_links: as for `read`.

    Raises:
        FileError: the links have their own properties, and others were given.
        TopologyError: such a network cannot exist.
    """
    content = found.content
    if isinstance(content, HostTree | Cables):
        return content.topology(name, host_links)
    if host_links is not None:
        raise FileError(
            "bandwidth and oversubscription are for lists of hosts; these links have their own"
        )
    return content.topology(name) if isinstance(content, Box) else content


def name_of(path: str | Path) -> str:
    """The name of a file's network: its path.

    Bytes of a path that are no UTF-8 become escapes, since no schedule's file can hold them.
    """
    return str(path).encode(errors="backslashreplace").decode()


@contextlib.contextmanager
def one_line(path: str | Path) -> Iterator[None]:
    """Makes one line of whatever goes wrong with a file."""
    path = Path(path)
    try:
        yield
    except GradweaveError as error:
        begun = str(error).startswith(f"{_shown(path)}: ")
        raise error if begun else FileError(f"{_shown(path)}: {error}") from error
    except InputWarning:  # where warnings are errors
        raise
    except Exception as error:
        # The libraries' parsers raise anything on a broken file: KeyError, TypeError, SyntaxError …
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise FileError(f"{_shown(path)}: not a readable topology file: {reason}") from error


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
    writer = _WRITERS[_format(path, format, _WRITERS, SUFFIXES)]
    try:
        content = writer(topology, graph).encode()
    except FileError as error:
        raise FileError(f"{_shown(path)}: {error}") from error
    except UnicodeEncodeError as error:
        raise FileError(f"{_shown(path)}: a label is not valid text: {error.reason}") from error
    atomic_write(path, content)


def _shown(path: Path) -> str:
    return str(path) if str(path).isprintable() else repr(str(path))


def _format(
    path: Path, format: str | None, known: Iterable[str], by_suffix: Mapping[str, str]
) -> str:
    if format is None:
        suffixes = {suffix: kind for suffix, kind in by_suffix.items() if kind in known}
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


_WRITERS: dict[str, Callable[[Topology, "nx.Graph"], str]] = {
    "graphml": _write_graphml,
    "json": _write_json,
    "yaml": _write_yaml,
    "csv": write_csv,
    "edges": write_edge_list,
}
