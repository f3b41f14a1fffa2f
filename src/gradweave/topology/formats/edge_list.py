"""Edge lists: one link per line, for networks written by hand.

    # switches: s0
    a s0 100Gbit/s 1us
    b s0 100Gbit/s 1us
    c s0 25Gbit/s  5us

A line names two nodes, then optionally bandwidth, latency, capacity and overhead, in this order.
Text after ``#`` is a comment, except the directives of `gradweave.topology.formats.directives`.
"""

from typing import TYPE_CHECKING, Any

from gradweave.errors import FileError
from gradweave.topology.formats.directives import (
    Directives,
    directive_lines,
    link_fields,
    node_names,
)
from gradweave.topology.topology import Topology

if TYPE_CHECKING:
    import networkx as nx

_PROPERTIES = ("bandwidth", "latency", "capacity", "overhead")


def parse_edge_list(text: str) -> "nx.MultiGraph":
    """Reads an edge list.

    Args:
        text: the file's text.

    Returns:
        A graph with ``kind`` on its switches and the properties, as text, on its edges.

    Raises:
        FileError: naming the line.
    """
    directives = Directives()
    rows: list[tuple[str, str, dict[str, Any]]] = []
    for number, line in enumerate(text.splitlines(), 1):
        if directives.read(number, line):
            continue
        fields = line.partition("#")[0].split()
        if not 2 <= len(fields) <= 2 + len(_PROPERTIES):
            raise FileError(
                f"line {number}: expected two nodes, then at most bandwidth, latency, "
                f"capacity and overhead; got {len(fields)} fields"
            )
        rows.append((fields[0], fields[1], dict(zip(_PROPERTIES, fields[2:], strict=False))))
    return directives.graph(rows)


def write_edge_list(topology: Topology, graph: "nx.Graph") -> str:
    """Writes an edge list.

    Args:
        topology: the network, for its labels.
        graph: the same network as `to_networkx` gives it, or undirected.

    Raises:
        FileError: a label cannot be written in this format.
    """
    import networkx as nx

    names = node_names(topology)
    properties: Any = list(_PROPERTIES)  # annotated as bool in networkx, which takes a list too
    named = nx.DiGraph() if graph.is_directed() else nx.Graph()
    named.add_nodes_from(names)  # or networkx would swap the ends of some links
    for source, target, data in graph.edges(data=True):
        named.add_edge(names[source], names[target], **link_fields(data))
    lines = directive_lines(topology, graph.is_directed())
    return "\n".join([*lines, *nx.generate_edgelist(named, data=properties)]) + "\n"
