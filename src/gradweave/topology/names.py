"""Nodes and links by name."""

import re

from gradweave.errors import TopologyError
from gradweave.topology.families.family import integer
from gradweave.topology.topology import Topology

Node = int | str
"""A node's id, or its name: its label, or its id in digits if it has no label."""
_HYPHEN = re.compile(r"\s*-\s*")


def find_node(topology: Topology, node: Node, role: str = "node") -> int:
    """Looks up a node.

    Args:
        topology: the network.
        node: an id, or a name. Where labels are numbers, a name is always a label.
        role: of the node, for the message.

    Returns:
        Its id.

    Raises:
        TopologyError: no node has that name, or several have.

    >>> import gradweave as gw
    >>> less = gw.topology.without_servers(gw.topology.complete(4), [1]).topology
    >>> find_node(less, "3"), find_node(less, 2)
    (2, 2)
    """
    if not isinstance(node, str):
        return integer(role, "node", node, least=0, most=topology.num_nodes - 1)
    matches = _named(topology, node.strip())
    if len(matches) != 1:
        wrong = f"{len(matches)} nodes are" if matches else "no node is"
        raise TopologyError(
            f"{role}: {wrong} named {node!r:.60} in {topology.name!r:.60}; "
            f"expected {_expected(topology)}"
        )
    return matches[0]


def find_link(topology: Topology, link: str, role: str = "link") -> tuple[int, int]:
    """Looks up the two nodes of a link.

    Args:
        topology: the network.
        link: two names joined by a hyphen, as in ``0-16`` or ``gpu0-leaf-1``; the names may contain
            hyphens.
        role: of the link, for the message.

    Returns:
        Their ids, whether a link joins them or not.

    Raises:
        TopologyError: no pair of nodes matches, or several do.
    """
    matches = _pairs(_nodes_by_name(topology), link.strip())
    if len(matches) > 1:  # ambiguous: only pairs that a link joins
        matches = [(a, b) for a, b in matches if int(topology.find_links([a], [b])[0]) >= 0]
    if len(matches) != 1:
        raise TopologyError(
            f"{role} {link!r:.60}: expected two nodes of {topology.name!r:.60} joined by a hyphen; "
            f"a node is {_expected(topology)}"
        )
    return matches[0]


def name_of(topology: Topology, node: int) -> str | None:
    """A node's plain label, for JSON that also gives ids, or None if it has no label."""
    return topology.labels[node] or None if topology.labels else None


def _named(topology: Topology, name: str) -> list[int]:
    return _nodes_by_name(topology).get(name, [])


def _nodes_by_name(topology: Topology) -> dict[str, list[int]]:
    """Nodes by their labels; by their ids too, unless labels are numbers."""
    nodes: dict[str, list[int]] = {}
    for node, label in enumerate(topology.labels):
        nodes.setdefault(label, []).append(node)
    if not any(re.fullmatch(r"[0-9]+", label) for label in nodes):
        nodes |= {str(node): [node] for node in range(topology.num_nodes)}
    return nodes


def _pairs(nodes: dict[str, list[int]], link: str) -> list[tuple[int, int]]:
    """The pair of nodes for each way to split a link's text at a hyphen into two names.

    Each name is tried as the start of the link, instead of each hyphen as the separator, so the
    time is proportional to the link and the names together, however many hyphens there are.
    """
    longest = max(map(len, nodes))
    matches = []
    for first, ends in nodes.items():
        hyphen = _HYPHEN.match(link, len(first)) if link.startswith(first) else None
        if hyphen and first == first.strip() and len(link) - hyphen.end() <= longest:
            others = nodes.get(link[hyphen.end() :], [])
            matches += [(a, b) for a in ends for b in others]
    return matches


def _expected(topology: Topology) -> str:
    last = topology.num_nodes - 1
    if not topology.labels:
        return f"an id from 0 to {last}"
    shown = ", ".join(repr(label) for label in topology.labels[:3])
    return f"a name such as {shown[:100]}"
