"""SimAI's topology text, and that of the ns-3 simulators that it is based on.

    34 8 2 16 96 H100             nodes, GPUs per server, NVSwitches, switches, links, GPU type
    16 17 18 … 33                 ids of the switches, NVSwitches first
    0 16 900Gbps 0.000025ms 0     source, target, bandwidth, latency, error rate
    …

The simulators of ns-3 have three numbers in the first line: nodes, switches, links. Such a line
could be an edge list's, but matching numbers of switch ids on the next line and of link lines are
unlikely in an edge list.
"""

import re
from typing import Any

from gradweave.common.wording import counted
from gradweave.errors import FileError
from gradweave.topology.formats.graph import from_networkx
from gradweave.topology.topology import MAX_NODES, Topology

_NUMBER = "[0-9]{1,9}"
_HEADER = re.compile(rf"({_NUMBER})(?:\s+{_NUMBER}\s+({_NUMBER}))?\s+({_NUMBER})\s+({_NUMBER})")
_GPU = re.compile(rf"\s+[A-Za-z]\S*(?:\s+{_NUMBER})?")


def is_simai(text: str, *, whole: bool = False) -> bool:
    r"""Whether a text begins like a SimAI topology, or like one of the ns-3 simulators.

    No edge list begins like the first: its lines have at most six fields.

    Args:
        text: the file's text, or its beginning.
        whole: whether the text is the whole file, so that the lines of links can be counted.

    >>> is_simai("34 8 2 16 96 H100"), is_simai("a b 100Gbit/s 1us 2")
    (True, False)
    >>> is_simai("3 1 2\n2\n0 2 100Gbps 1us 0\n1 2 100Gbps 1us 0"), is_simai("3 1 2\n2 1\n")
    (True, False)
    """
    rows = [line.strip() for line in text.lstrip("\ufeff").splitlines() if line.strip()]
    first = rows[0][:200] if rows else ""
    match = _HEADER.match(first)
    if match and match[2]:
        return bool(_GPU.fullmatch(first[match.end() :]))
    if not match or match.end() < len(first) or len(rows) < 2:
        return False
    nodes, switches, links = int(match[1]), int(match[3]), int(match[4])
    ids = rows[1].split()
    counted = not whole or len(rows) == 2 + links
    return counted and len(ids) == switches and all(_is_node(each, nodes) for each in ids)


def parse_simai(text: str, name: str) -> Topology:
    """Reads a SimAI topology, or one of the ns-3 simulators with three numbers in its first line.

    GPUs are servers; NVSwitches and switches are switches; node ids are kept. The number of GPUs
    per server, their type and the links' error rates are not used. Links between the same two nodes
    become one link with their bandwidths added.

    Args:
        text: the file's text.
        name: the network's name.

    Raises:
        FileError: naming the line.
        TopologyError: the lines are well-formed, but such a network cannot exist.
    """
    import networkx as nx

    rows = [(i, line.split()) for i, line in enumerate(text.splitlines(), 1) if line.strip()]
    nodes, switches, links = _sizes(" ".join(rows[0][1]) if rows else "")
    ids, used = _switch_ids(rows[1:], switches, nodes)
    remaining = len(rows) - 1 - used
    if remaining != links:
        announced, follow = counted(links, "link"), counted(remaining, "line")
        raise FileError(f"line 1: announces {announced}, but {follow} of links follow")
    graph: Any = nx.MultiGraph()
    graph.add_nodes_from(range(nodes), kind="server")
    graph.add_nodes_from(ids, kind="switch")
    for number, fields in rows[1 + used :]:
        if len(fields) not in (4, 5):
            raise FileError(
                f"line {number}: expected source, target, bandwidth, latency and error rate; "
                f"got {len(fields)} fields"
            )
        ends = [_node(number, field, nodes) for field in fields[:2]]
        graph.add_edge(*ends, bandwidth=fields[2], latency=fields[3])
    return from_networkx(graph, name)


def _sizes(first: str) -> tuple[int, int, int]:
    """Nodes, switches of both kinds, and links."""
    match = _HEADER.match(first[:200])
    rest = first[match.end() :] if match else ""
    if not match or (not _GPU.fullmatch(rest) if match[2] else rest):
        raise FileError(
            "line 1: expected nodes, GPUs per server, NVSwitches, switches, links and GPU type "
            f"(or nodes, switches and links), got {first!r:.60}"
        )
    nodes, links = int(match[1]), int(match[4])
    if nodes > MAX_NODES:
        raise FileError(f"line 1: {nodes} nodes; at most {MAX_NODES} are supported")
    return nodes, int(match[2] or 0) + int(match[3]), links


def _switch_ids(
    rows: list[tuple[int, list[str]]], switches: int, nodes: int
) -> tuple[list[int], int]:
    """The ids of the switches, and how many lines they take."""
    ids: list[int] = []
    used = 0
    while len(ids) < switches and used < len(rows):
        number, fields = rows[used]
        ids += [_node(number, field, nodes) for field in fields]
        used += 1
    if len(ids) != switches or len(set(ids)) != switches:
        repeated = "" if len(set(ids)) == len(ids) else ", some of them twice"
        wanted = counted(switches, "switch", "switches")
        raise FileError(f"line 2: expected the ids of {wanted}, got {len(ids)}{repeated}")
    return ids, used


def _node(line: int, field: str, nodes: int) -> int:
    if not _is_node(field, nodes):
        raise FileError(f"line {line}: expected a node id from 0 to {nodes - 1}, got {field!r:.40}")
    return int(field)


def _is_node(field: str, nodes: int) -> bool:
    return bool(re.fullmatch(_NUMBER, field)) and int(field) < nodes
