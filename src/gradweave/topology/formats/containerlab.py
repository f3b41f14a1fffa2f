"""Labs of containerlab: ``*.clab.yml``, nodes by name and links between their interfaces.

    name: clos01
    topology:
      nodes: {leaf1: {kind: nokia_srlinux}, client1: {kind: linux}}
      links: [{endpoints: ["client1:eth1", "leaf1:e1-1"]}]

Source: containerlab.dev, "Topology definition" and "Nodes".
"""

from collections.abc import Mapping
from typing import Any

from gradweave.errors import FileError
from gradweave.topology.formats.cables import Cable, Cables

_HOSTS = ("linux", "ext-container")
_OUTSIDE = ("host", "mgmt-net", "macvlan")
"""Nodes of endpoints that stand for something outside the lab."""


def is_containerlab(data: Any) -> bool:
    """Whether the content of a YAML file is a lab."""
    topology = data.get("topology") if isinstance(data, dict) else None
    return (
        isinstance(topology, dict)
        and isinstance(topology.get("nodes"), dict)
        and "name" in data
        and isinstance(topology.get("links", []), list)
    )


def containerlab_cables(data: Any) -> Cables:
    """Reads a lab: nodes of kind linux and containers of others are hosts, all others switches.

    Links have no speeds. Those to the machine that runs the lab, and to dummies, are left out.

    Args:
        data: the decoded file, not trusted.

    Raises:
        FileError: naming the node or link.
    """
    topology, lab = data["topology"], Cables()
    for name, node in topology["nodes"].items():
        where = f"nodes: {name!s:.60}"
        if not isinstance(node, dict | None) or not isinstance(name, str):
            raise FileError(f"{where}: expected keys and values, such as kind: linux")
        kind = _kind(topology, node or {})
        (lab.hosts if kind in _HOSTS else lab.switches)[name] = None
    if not lab.hosts:
        raise FileError("no hosts; nodes of kind linux are hosts")
    for number, link in enumerate(topology.get("links", [])):
        where = f"links[{number}]"
        if not isinstance(link, dict):
            raise FileError(f"{where}: {_EXPECTED}")
        if link.get("type") not in (None, "veth", "link"):
            continue  # to the machine that runs the lab, or to nowhere
        given = link.get("endpoints")
        ends = [_end(where, each) for each in given] if isinstance(given, list) else []
        if len(ends) != 2:
            raise FileError(f"{where}: {_EXPECTED}")
        if any(node in _OUTSIDE for node, _ in ends):
            continue
        for node, _ in ends:
            if node not in lab.hosts and node not in lab.switches:
                raise FileError(f"{where}: no node is called {node!r:.60}")
        (one, one_port), (other, other_port) = ends
        lab.add(Cable((one, other), (one_port, other_port)))
    return lab


_END = ("node", "interface")
_EXPECTED = 'expected endpoints: ["leaf1:e1-1", "client1:eth1"]'


def _kind(topology: Mapping[str, Any], node: Mapping[str, Any]) -> Any:
    """The kind of a node; if it has none, that of its group, or else of all nodes."""
    groups = topology.get("groups")
    group = groups.get(node.get("group")) if isinstance(groups, dict) else None
    for inside in (node, group, topology.get("defaults")):
        if isinstance(inside, dict) and "kind" in inside:
            return inside["kind"]
    return None


def _end(where: str, end: Any) -> tuple[str, str]:
    """Node and interface of an endpoint, in either form."""
    if isinstance(end, dict) and all(isinstance(end.get(key), str) for key in _END):
        end = ":".join(end[key] for key in _END)
    node, _, port = end.partition(":") if isinstance(end, str) else ("", "", "")
    if not node or not port:
        raise FileError(f"{where}: {_EXPECTED}, got {end!r:.60}")
    return node, port
