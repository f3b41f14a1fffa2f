"""Directives on nodes in files of one link per line, each in a separate comment line.

# switches: s0 s1      these nodes are switches; all others are servers
# nodes: a b s0 s1     the order in which nodes are numbered
# directed             every line is one direction of a link
"""

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from gradweave.errors import FileError
from gradweave.topology.formats.attributes import closest
from gradweave.topology.formats.graph import integer_named
from gradweave.topology.topology import Link, Topology
from gradweave.topology.units import exact_bandwidth, exact_latency

if TYPE_CHECKING:
    import networkx as nx

_LISTS = ("switches", "nodes")
_DIRECTIVE = re.compile(r"\s*#\s*(?:(switches|nodes)\s*:(.*)|(directed)\s*)")
_COMMENT = re.compile(r"\s*#\s*([^\s:#]+)\s*(:?)\s*(.*)")


class Directives:
    """The directives of a file, line by line."""

    def __init__(self) -> None:
        self._listed: dict[str, list[str]] = {kind: [] for kind in _LISTS}
        self._directed = False
        self._without_colon: list[tuple[int, str, list[str]]] = []

    def read(self, number: int, line: str) -> bool:
        """Reads a line if it is a comment, and returns whether it is.

        Args:
            number: of the line, for messages.
            line: the whole line.

        Raises:
            FileError: it is a misspelt directive, or one that follows a link.
        """
        content, mark, comment = line.partition("#")
        directive = _DIRECTIVE.fullmatch(mark + comment)
        if content.strip():
            if directive:
                raise FileError(
                    f"line {number}: #{comment!s:.60}: a directive needs a line of its own"
                )
            return False
        if directive and directive[3]:
            self._directed = True
        elif directive:
            self._listed[directive[1]] += directive[2].split()
        elif mark:
            self._check(number, mark + comment)
        return True

    def _check(self, number: int, comment: str) -> None:
        """Rejects a comment that is probably a misspelt directive."""
        match = _COMMENT.fullmatch(comment)
        if not match:
            return
        word, colon, rest = match.groups()
        known = (*_LISTS, "directed") if colon else ("directed",) if not rest else ()
        intended = closest(word, known)
        if intended and word.lower() != "undirected":
            write = f"# {intended}:" if intended in _LISTS else f"# {intended}"
            raise FileError(
                f"line {number}: unknown directive {f'# {word}{colon}'!r:.60}; did you mean "
                f"{write!r}?"
            )
        if not colon and word in _LISTS and rest:
            self._without_colon.append((number, word, rest.split()))

    def graph(self, rows: Iterable[tuple[str, str, dict[str, Any]]]) -> "nx.MultiGraph":
        """Makes a graph of the links.

        Args:
            rows: two nodes and the link's properties, in the file's order.

        Raises:
            FileError: a directive names an unknown node.
        """
        import networkx as nx

        graph = nx.MultiDiGraph() if self._directed else nx.MultiGraph()
        graph.add_nodes_from(self._listed["nodes"])
        graph.add_edges_from(rows)
        for switch in self._listed["switches"]:
            if switch not in graph:
                raise FileError(f"switches: no link leads to {switch!r:.60}")
            graph.nodes[switch]["kind"] = "switch"
        for number, word, names in self._without_colon:
            if all(name in graph for name in names):
                raise FileError(f"line {number}: # {word}: write '# {word}:', with a colon")
        return graph


def directive_lines(topology: Topology, directed: bool) -> list[str]:
    """The name of a network, and the directives that reading its links needs.

    Args:
        topology: the network.
        directed: whether each direction of a link is written.
    """
    names = node_names(topology)
    lines = [f"# {' '.join(topology.name.split())}"]
    if directed:
        lines.append("# directed")
    if topology.labels:
        lines.append(f"# nodes: {' '.join(names)}")
    if len(topology.switches):
        lines.append(f"# switches: {' '.join(names[node] for node in topology.switches)}")
    return lines


def link_fields(data: dict[str, Any]) -> dict[str, Any]:
    """A link's properties as written in such files; the overhead is omitted if it is the default.

    Args:
        data: the edge's attributes, as `to_networkx` gives them.
    """
    overhead = data["overhead_s"]
    return {
        "bandwidth": exact_bandwidth(data["bandwidth_bytes_per_s"]),
        "latency": exact_latency(data["latency_s"]),
        "capacity": data["capacity"],
        **({"overhead": exact_latency(overhead)} if overhead != Link().overhead_s else {}),
    }


def node_names(topology: Topology) -> tuple[str, ...]:
    """The nodes' names in such files.

    Raises:
        FileError: a label is not one word, or two are the same.
    """
    labels = topology.labels
    if not labels:
        return tuple(map(str, range(topology.num_nodes)))
    for label in labels:
        if not label or "#" in label or label.split() != [label]:
            raise FileError(
                f"label {label!r:.60}: a file of one link per line cannot hold it; save as .json "
                "instead"
            )
    ascending = sorted(labels, key=int) == list(labels) if integer_named(labels) else True
    if len(set(labels)) < len(labels) or not ascending:
        raise FileError(
            "labels: a file of one link per line holds them only where all differ and integers are "
            "ascending; save as .json instead"
        )
    return labels
