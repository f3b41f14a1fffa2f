"""The topology graph of NetQ, NVIDIA's monitor of Ethernet fabrics (Spectrum-X), as JSON.

    [{"nodes": [{"compounded_nodes": [{"id": "node0", "name": "leaf1", "tier": 1}, …]}, …],
      "links": [{"compounded_links": [{"interfaces": [{"node": "node0", "interface": "swp1"},
                                                      {"node": "node9", "interface": "eth0"}]}]}]}]

Source: the answer to ``topologygraph`` that topograph reads (``pkg/providers/netq/netq.go``).
"""

from typing import Any

from gradweave.errors import FileError
from gradweave.topology.formats.cables import Cable, Cables

_HOST_TIER = -1
"""The tier of nodes that NetQ knows by LLDP alone: hosts."""


def is_netq(data: Any) -> bool:
    """Whether decoded JSON is such a graph."""
    if not isinstance(data, list) or len(data) != 1 or not isinstance(data[0], dict):
        return False
    nodes = data[0].get("nodes")
    return (
        isinstance(nodes, list)
        and isinstance(data[0].get("links"), list)
        and any(isinstance(each, dict) and "compounded_nodes" in each for each in nodes)
    )


def netq_cables(data: Any) -> Cables:
    """Reads a graph: nodes of tier −1 are hosts, all others switches; no cable has a speed.

    Args:
        data: the decoded file, not trusted.

    Raises:
        FileError: naming the node or link.
    """
    fabric, names = Cables(), dict[str, str]()
    for tier, group in enumerate(data[0]["nodes"]):
        for number, node in enumerate(_listed(group, "compounded_nodes", f"nodes[{tier}]")):
            where = f"nodes[{tier}].compounded_nodes[{number}]"
            if not isinstance(node, dict) or not isinstance(node.get("id"), str):
                raise FileError(f"{where}: expected id, name and tier, got {node!r:.60}")
            name = node.get("name") or node["id"]
            if not isinstance(name, str) or not isinstance(node.get("tier"), int):
                raise FileError(f"{where}: expected id, name and tier, got {node!r:.60}")
            if name in fabric.hosts or name in fabric.switches or node["id"] in names:
                raise FileError(f"{where}: {name!r:.60} is there twice")
            names[node["id"]] = name
            (fabric.hosts if node["tier"] == _HOST_TIER else fabric.switches)[name] = None
    if not fabric.hosts:
        raise FileError("no hosts; nodes of tier -1 are hosts")
    for number, link in enumerate(data[0]["links"]):
        for inner, cable in enumerate(_listed(link, "compounded_links", f"links[{number}]")):
            where = f"links[{number}].compounded_links[{inner}]"
            ends = [_end(end, names, where) for end in _listed(cable, "interfaces", where)]
            if len(ends) != 2:
                raise FileError(f"{where}: expected two interfaces, got {len(ends)}")
            (one, one_port), (other, other_port) = ends
            fabric.add(Cable((one, other), (one_port, other_port)))
    return fabric


def _listed(data: Any, key: str, where: str) -> list[Any]:
    found = data.get(key) if isinstance(data, dict) else None
    if not isinstance(found, list):
        raise FileError(f"{where}: {key}: expected a list, got {found!r:.60}")
    return found


def _end(end: Any, names: dict[str, str], where: str) -> tuple[str, str]:
    node = end.get("node") if isinstance(end, dict) else None
    if not isinstance(node, str) or node not in names:
        raise FileError(f"{where}: no node has the id {node!r:.60}")
    return names[node], str(end.get("interface", ""))
