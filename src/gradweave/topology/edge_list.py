"""Edge lists: one link a line, for networks written by hand.

    # switches: s0
    a s0 100Gbit/s 1us
    b s0 100Gbit/s 1us
    c s0 25Gbit/s  5us

A line names two nodes, then as much as there is to say of bandwidth, latency and capacity. Text
after ``#`` is a comment, except these directives, each in a line of its own: ``# switches: …``
names the switches, ``# nodes: …`` the nodes in the order in which they are numbered, and ``#
directed`` says that every line is one direction of a link.
"""

import re
from typing import TYPE_CHECKING, Any

from gradweave.errors import FileError
from gradweave.topology.graph import integer_named
from gradweave.topology.topology import Topology
from gradweave.topology.units import exact_bandwidth, exact_latency

if TYPE_CHECKING:
    import networkx as nx

_DIRECTIVE = re.compile(r"\s*#\s*(?:(switches|nodes)\s*:(.*)|(directed)\s*)")
_PROPERTIES = ("bandwidth", "latency", "capacity")


def parse_edge_list(text: str) -> "nx.MultiGraph":
    """Reads an edge list.

    Args:
        text: the file's text.

    Returns:
        A graph with ``kind`` on its switches and the properties, as they are written, on its edges.

    Raises:
        FileError: naming the line.
    """
    import networkx as nx

    named: dict[str, list[str]] = {"switches": [], "nodes": []}
    directed = False
    rows: list[tuple[str, str, dict[str, str]]] = []
    for number, line in enumerate(text.splitlines(), 1):
        directive = _DIRECTIVE.fullmatch(line)
        if directive and directive[3]:
            directed = True
        elif directive:
            named[directive[1]] += directive[2].split()
        elif fields := line.partition("#")[0].split():
            if not 2 <= len(fields) <= 2 + len(_PROPERTIES):
                raise FileError(
                    f"line {number}: expected two nodes, then at most bandwidth, latency and "
                    f"capacity; got {len(fields)} fields"
                )
            rows.append((fields[0], fields[1], dict(zip(_PROPERTIES, fields[2:], strict=False))))
    graph = nx.MultiDiGraph() if directed else nx.MultiGraph()
    graph.add_nodes_from(named["nodes"])
    graph.add_edges_from(rows)
    for switch in named["switches"]:
        if switch not in graph:
            raise FileError(f"switches: no link leads to {switch!r:.60}")
        graph.nodes[switch]["kind"] = "switch"
    return graph


def write_edge_list(topology: Topology, graph: "nx.Graph") -> str:
    """Writes an edge list.

    Args:
        topology: the network, for its labels.
        graph: the same network as `to_networkx` gives it, or undirected.

    Raises:
        FileError: a label cannot be written in this format.
    """
    import networkx as nx

    names = _names(topology)
    lines = [f"# {' '.join(topology.name.split())}"]
    if graph.is_directed():
        lines.append("# directed")
    if topology.labels:
        lines.append(f"# nodes: {' '.join(names)}")
    if len(topology.switches):
        lines.append(f"# switches: {' '.join(names[node] for node in topology.switches)}")
    properties: Any = list(_PROPERTIES)  # networkx says bool and takes a list as well
    written = nx.Graph() if not graph.is_directed() else nx.DiGraph()
    written.add_nodes_from(names)  # or networkx would turn some links round
    for source, target, data in graph.edges(data=True):
        written.add_edge(names[source], names[target], **_written(data))
    return "\n".join([*lines, *nx.generate_edgelist(written, data=properties)]) + "\n"


def _written(data: dict[str, Any]) -> dict[str, Any]:
    return {
        "bandwidth": exact_bandwidth(data["bandwidth_bytes_per_s"]),
        "latency": exact_latency(data["latency_s"]),
        "capacity": data["capacity"],
    }


def _names(topology: Topology) -> tuple[str, ...]:
    labels = topology.labels
    if not labels:
        return tuple(map(str, range(topology.num_nodes)))
    for label in labels:
        if not label or "#" in label or label.split() != [label]:
            raise FileError(
                f"label {label!r:.60}: an edge list cannot hold it; save as .json instead"
            )
    ascending = sorted(labels, key=int) == list(labels) if integer_named(labels) else True
    if len(set(labels)) < len(labels) or not ascending:
        raise FileError(
            "labels: an edge list holds them only where all differ and integers are ascending; "
            "save as .json instead"
        )
    return labels
