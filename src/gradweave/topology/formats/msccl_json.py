"""Topologies of msccl-tools: a matrix of links, and switches as limits on sums of links."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from gradweave.errors import FileError
from gradweave.topology.formats.graph import from_networkx
from gradweave.topology.topology import Link, Topology

MAX_COUNT = 10_000
"""Largest number of transfers per round in an entry."""


def topology_from_msccl(data: Mapping[str, Any], name: str) -> Topology:
    """Reads the JSON object that msccl-tools writes for a topology.

    ``links[dst][src]`` is the number of transfers per round from src to dst: the link's capacity,
    and its bandwidth in multiples of that of `Link`. In this format an entry of ``switches`` is not
    a node but a limit on the sum of some links. Two kinds are supported, others are rejected: a
    limit that never binds, which is dropped; and a **hub**, which limits each node's total to and
    from all others. A hub becomes a switch, instead of
    the direct links between its nodes.

    Args:
        data: the decoded object, not trusted.
        name: the network's name.

    Raises:
        FileError: naming the field at fault.
        TopologyError: the fields are well-formed, but such a network cannot exist.

    >>> ring = [[0, 1, 1], [1, 0, 1], [1, 1, 0]]
    >>> topology_from_msccl({"msccl_type": "topology", "name": "Ring", "links": ring}, "ring.json")
    Topology('ring.json': 3 servers, 0 switches, 3 links)
    """
    import networkx as nx

    kind = data.get("msccl_type", "topology")
    if kind != "topology":
        raise FileError(f"msccl_type: expected topology, got {kind!r:.40}")
    links = _links(data.get("links"))
    nodes = len(links)
    counts = np.array(links, np.int64).reshape(nodes, nodes)
    limits = [
        limit
        for limit in _limits(data.get("switches", []), nodes)
        if limit.most < int(counts[np.ix_([*limit.targets], [*limit.sources])].sum())
    ]
    graph = nx.DiGraph()
    graph.add_nodes_from(range(nodes), kind="server")
    for hub, (members, outward, inward) in enumerate(_hubs(limits, links), nodes):
        graph.add_node(hub, kind="switch")
        for node in members:
            _add(graph, node, hub, outward[node])
            _add(graph, hub, node, inward[node])
            for other in members:
                links[other][node] = 0
    for dst, row in enumerate(links):
        for src, count in enumerate(row):
            if count:
                _add(graph, src, dst, count)
    return from_networkx(graph, name)


class _Limit:
    """An entry of ``switches``: the most transfers per round from sources to targets together."""

    def __init__(self, place: int, entry: Any, nodes: int) -> None:
        where = f"switches[{place}]"
        if not isinstance(entry, list) or len(entry) != 4:
            raise FileError(f"{where}: expected [sources, targets, bandwidth, name]")
        self.sources = _node_set(f"{where}[0]", entry[0], nodes)
        self.targets = _node_set(f"{where}[1]", entry[1], nodes)
        self.most = _count(f"{where}[2]", entry[2], least=1)
        self.where = f"{where} ({entry[3]!r:.40})"

    def side(self) -> tuple[int, bool, frozenset[int]]:
        """The limited node, whether its sending is limited, and all nodes of the hub."""
        for alone, others, outward in (
            (self.sources, self.targets, True),
            (self.targets, self.sources, False),
        ):
            if len(alone) == 1 and not alone & others:
                return min(alone), outward, alone | others
        raise FileError(
            f"{self.where}: limits several nodes together, which is not supported; "
            "only hubs are, with one entry out of each node and one into it"
        )


def _hubs(
    limits: list[_Limit], links: list[list[int]]
) -> list[tuple[list[int], dict[int, int], dict[int, int]]]:
    """The nodes of each hub, and each node's limits on sending and receiving."""
    sides: dict[frozenset[int], tuple[dict[int, int], dict[int, int]]] = {}
    for limit in limits:
        node, outward, members = limit.side()
        side = sides.setdefault(members, ({}, {}))[0 if outward else 1]
        if node in side:
            raise FileError(f"{limit.where}: node {node} is limited twice; give one limit")
        side[node] = limit.most
    hubs = []
    taken: set[tuple[int, int]] = set()
    for members, (outward, inward) in sides.items():
        nodes = sorted(members)
        for node in nodes:  # without a limit, its links together are one
            outward.setdefault(node, sum(links[other][node] for other in nodes))
            inward.setdefault(node, sum(links[node][other] for other in nodes))
        for src, dst in ((src, dst) for src in nodes for dst in nodes if src != dst):
            least = min(outward[src], inward[dst])
            if (src, dst) in taken or links[dst][src] < least:
                raise FileError(
                    f"links[{dst}][{src}]: the switches make nodes {_listed(nodes)} a hub, within "
                    f"which it must be at least {least} and in no other hub; got {links[dst][src]}"
                )
            taken.add((src, dst))
        hubs.append((nodes, outward, inward))
    return hubs


def _links(value: Any) -> list[list[int]]:
    if not isinstance(value, list):
        raise FileError("links: expected a list of rows, links[target][source]")
    for dst, row in enumerate(value):
        if not isinstance(row, list) or len(row) != len(value):
            raise FileError(f"links[{dst}]: expected a row of {len(value)} numbers")
        for src, count in enumerate(row):
            _count(f"links[{dst}][{src}]", count, least=0)
        if row[dst]:
            raise FileError(f"links[{dst}][{dst}]: joins a node to itself; make it 0")
    return [[int(count) for count in row] for row in value]


def _limits(value: Any, nodes: int) -> list[_Limit]:
    if not isinstance(value, list):
        raise FileError("switches: expected a list")
    return [_Limit(place, entry, nodes) for place, entry in enumerate(value)]


def _node_set(where: str, value: Any, nodes: int) -> frozenset[int]:
    if not isinstance(value, list) or not value:
        raise FileError(f"{where}: expected a list of nodes")
    for node in value:
        if not isinstance(node, int) or isinstance(node, bool) or not 0 <= node < nodes:
            raise FileError(f"{where}: expected nodes from 0 to {nodes - 1}, got {node!r:.40}")
    return frozenset(value)


def _count(where: str, value: Any, least: int) -> int:
    whole = isinstance(value, int) and not isinstance(value, bool)
    if isinstance(value, float) and value.is_integer():
        whole = True
    if not whole or not least <= value <= MAX_COUNT:
        raise FileError(
            f"{where}: expected a whole number from {least} to {MAX_COUNT}, got {value!r:.40}"
        )
    return int(value)


def _add(graph: Any, source: int, target: int, count: int) -> None:
    bandwidth = count * Link().bandwidth_bytes_per_s
    graph.add_edge(source, target, capacity=count, bandwidth_bytes_per_s=bandwidth)


def _listed(nodes: list[int]) -> str:
    return ", ".join(map(str, nodes[:8])) + ", …" * (len(nodes) > 8)
