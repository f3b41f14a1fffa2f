"""Networks found by NVIDIA's topograph: the switches above each instance, the closest first.

    {"instances": [{"id": "node1", "network_layers": ["leaf-a", "spine-a"]}, …]}

    switches: {core: {switches: [leaf-a, leaf-b]}}             its models of networks, in YAML
    blocks: [{switch: leaf-a, nodes: ["node[1-4]"]}]

Source: docs/engines/graph.md and tests/models of NVIDIA/topograph. Its other outputs are Slurm's
files and labels of Kubernetes' nodes.
"""

import itertools
from typing import Any

from gradweave.errors import FileError
from gradweave.topology.formats.host_tree import HostTree, HostTreeBuilder
from gradweave.topology.formats.hostlist import hosts_of

_EXPECTED = 'expected {"id": "node1", "network_layers": ["leaf-a", "spine-a"]}'


def is_topograph(data: Any) -> bool:
    """Whether the content of a JSON file comes from topograph.

    Args:
        data: the decoded file.
    """
    return isinstance(data, dict) and isinstance(data.get("instances"), list)


def topograph_tree(data: Any) -> HostTree:
    """Reads instances with the switches above each; their NVLink domains are left out.

    Args:
        data: the decoded file, not trusted.

    Raises:
        FileError: naming the instance.
    """
    builder = HostTreeBuilder()
    for number, instance in enumerate(data["instances"]):
        where = f"instances[{number}]"
        if not isinstance(instance, dict) or not _is_name(instance.get("id")):
            raise FileError(f"{where}: {_EXPECTED}")
        layers = instance.get("network_layers")
        if not isinstance(layers, list) or not layers or not all(map(_is_name, layers)):
            raise FileError(f"{where}: network_layers: {_EXPECTED}")
        if instance["id"] in builder.hosts:
            raise FileError(f"{where}: {instance['id']!r:.60} is listed twice")
        builder.add_host(where, instance["id"], layers[0])
        for lower, upper in itertools.pairwise(layers):
            builder.add_switch(where, lower, upper)
    if not builder.hosts:
        raise FileError(f"instances: {_EXPECTED} at least twice, got none")
    return builder.tree()


def is_topograph_model(data: Any) -> bool:
    """Whether the content of a YAML file is a model of topograph.

    Args:
        data: the decoded file.
    """
    return (
        isinstance(data, dict)
        and isinstance(data.get("switches"), dict)
        and isinstance(data.get("blocks"), list)
    )


def topograph_model(data: Any) -> HostTree:
    """Reads a model: switches below switches, and blocks of nodes below these.

    Args:
        data: the decoded file, not trusted.

    Raises:
        FileError: naming the switch or the block.
    """
    builder = HostTreeBuilder()
    for number, block in enumerate(data["blocks"]):
        where = f"blocks[{number}]"
        nodes = block.get("nodes") if isinstance(block, dict) else None
        if not isinstance(nodes, list) or not nodes or not all(map(_is_name, nodes)):
            raise FileError(f'{where}: expected switch: leaf-a and nodes: ["node[1-4]"]')
        if not _is_name(block.get("switch")):
            raise FileError(f"{where}: switch: expected the name of a switch")
        for host in (host for each in nodes for host in hosts_of(each)):
            if host in builder.hosts:
                raise FileError(f"{where}: {host!r:.60} is listed twice")
            builder.add_host(where, host, block["switch"])
    for switch, below in data["switches"].items():
        lower = below.get("switches", []) if isinstance(below, dict) else None
        if not _is_name(switch) or not isinstance(lower, list) or not all(map(_is_name, lower)):
            raise FileError(f"switches: {switch!s:.60}: expected switches: [leaf-a, leaf-b]")
        for each in lower:
            builder.add_switch(f"switches: {switch}", each, switch)
    return builder.tree()


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and bool(value)
