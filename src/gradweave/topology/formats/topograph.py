"""Networks found by NVIDIA's topograph: the switches above each instance, the closest first.

    {"instances": [{"id": "node1", "network_layers": ["leaf-a", "spine-a"]}, …]}

Source: docs/engines/graph.md of NVIDIA/topograph.
"""

import itertools
from typing import Any

from gradweave.errors import FileError
from gradweave.topology.formats.host_tree import HostTree, HostTreeBuilder

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


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and bool(value)
