"""Hosts of clouds and of Kubernetes: the switches or racks that their interfaces name for each.

    {"Instances": [{"InstanceId": "i-05a4", "NetworkNodes": ["nn-b59b", "nn-a42b"]}]}          AWS
    [{"name": "gpu-0", "resourceStatus": {"physicalHost": "/cluster/rack/host"}}]     Google Cloud
    {"items": [{"kind": "Node", "metadata": {"name": …, "labels": {…}}}]}               Kubernetes

They are what ``aws ec2 describe-instance-topology``, ``gcloud compute instances list
--format=json`` and ``kubectl get nodes -o json`` (or ``yaml``) print.

Sources: EC2's API reference, "InstanceTopology"; Compute Engine's, "resourceStatus"; the labels of
the network topologies that docs/reference/node-labels.md of NVIDIA/topograph lists.
"""

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from gradweave.common.wording import counted, listed
from gradweave.errors import FileError
from gradweave.topology.formats.host_tree import HostTree, HostTreeBuilder

_TIER = re.compile(r"fabric\.topograph\.run/tier-([0-9]{1,2})")
LABELS = (
    *(
        tuple(f"network.topology.nvidia.com/{layer}" for layer in layers)
        for layers in (("leaf", "spine", "core"), ("block", "spine", "datacenter"))
    ),
    tuple(f"topology.k8s.aws/network-node-layer-{layer}" for layer in (3, 2, 1)),
    tuple(f"cloud.google.com/gce-topology-{layer}" for layer in ("subblock", "block")),
    tuple(
        f"oci.oraclecloud.com/host.{layer}_id" for layer in ("rack", "network_block", "hpc_island")
    ),
    ("topology.kubernetes.io/zone", "topology.kubernetes.io/region"),
)
"""Families of node labels that name switches or racks, each closest first. The first family that
any node has counts, after topograph's tiers."""


def is_aws(data: Any) -> bool:
    """Whether data is the answer of DescribeInstanceTopology."""
    return isinstance(data, dict) and isinstance(data.get("Instances"), list)


def aws_tree(data: Any) -> HostTree:
    """Reads instances with their network nodes, the topmost first.

    Raises:
        FileError: naming the instance.
    """
    return _tree(
        (where, each.get("InstanceId"), _reversed(each.get("NetworkNodes")))
        for where, each in _objects("Instances", data["Instances"])
    )


def is_gcp(data: Any) -> bool:
    """Whether data is a list of Compute Engine's instances with physical hosts."""
    return isinstance(data, list) and any(
        isinstance(each, dict) and _physical_host(each) is not None for each in data
    )


def gcp_tree(data: Any) -> HostTree:
    """Reads instances with their physical hosts, ``/cluster/rack/host``.

    Raises:
        FileError: naming the instance, which may have none.
    """
    found = []
    for where, each in _objects("instances", data):
        place = _physical_host(each) or ""
        parts = place.strip("/").split("/") if isinstance(place, str) else []
        # The last part is the machine itself, below which nothing is shared.
        found.append((where, each.get("name"), _reversed(parts[:-1])))
    return _tree(found)


def is_kubernetes(data: Any) -> bool:
    """Whether data is a list of Kubernetes' nodes, or one node."""
    items = data.get("items") if isinstance(data, dict) else None
    return isinstance(items, list) and any(
        isinstance(each, dict) and each.get("kind") == "Node" for each in items
    )


def kubernetes_tree(data: Any) -> HostTree:
    """Reads nodes with the labels that name their switches.

    Nodes that have none of the labels that others have are left out, as control planes are.

    Raises:
        FileError: naming the node, or no node has such a label.
    """
    nodes: dict[str, Mapping[str, Any]] = {}
    for where, each in _objects("items", data["items"]):
        about = each.get("metadata")
        if not isinstance(about, dict) or not _is_name(about.get("name")):
            raise FileError(f"{where}: metadata: expected name and labels")
        if about["name"] in nodes:
            raise FileError(f"{where}: {about['name']!r:.60} is listed twice")
        labels = about.get("labels")
        nodes[about["name"]] = labels if isinstance(labels, dict) else {}
    keys = _label_family(nodes.values())
    placed = {
        name: [labels[key] for key in keys if key in labels] for name, labels in nodes.items()
    }
    missing = [name for name, layers in placed.items() if not layers]
    tree = _tree((f"node {name!s:.60}", name, layers) for name, layers in placed.items() if layers)
    note = f"switches are those of the labels {listed(keys, 4)}"
    if missing:
        note += f"; {counted(len(missing), 'node')} without them left out: {listed(missing, 3)}"
    return HostTree(tree.hosts, tree.above, note=note)


def _label_family(nodes: Any) -> list[str]:
    """The keys of the labels that name switches, closest first."""
    present = {key for labels in nodes for key in labels if isinstance(key, str)}
    tiers = sorted((key for key in present if _TIER.fullmatch(key)), key=_tier)
    if tiers:
        return tiers
    for family in LABELS:
        if keys := [key for key in family if key in present]:
            return keys
    raise FileError(
        "no node has a label that names its switch or rack, such as fabric.topograph.run/tier-0 "
        "or topology.k8s.aws/network-node-layer-3"
    )


def _tier(key: str) -> int:
    match = _TIER.fullmatch(key)
    return int(match[1]) if match else 0


def _physical_host(instance: Mapping[str, Any]) -> Any:
    status = instance.get("resourceStatus")
    inside = status if isinstance(status, dict) else {}
    return inside.get("physicalHost", instance.get("physicalHost"))


def _objects(key: str, values: Sequence[Any]) -> list[tuple[str, Mapping[str, Any]]]:
    for number, value in enumerate(values):
        if not isinstance(value, dict):
            raise FileError(f"{key}[{number}]: expected an object")
    return [(f"{key}[{number}]", value) for number, value in enumerate(values)]


def _reversed(layers: Any) -> Any:
    return layers[::-1] if isinstance(layers, list) else layers


def _tree(hosts: Any) -> HostTree:
    """The tree of hosts, each with what is above it, closest first.

    A switch is named by its way from the top if its name alone stands for several: racks of two
    clusters may share a name.
    """
    builder = HostTreeBuilder()
    for where, host, layers in hosts:
        if not _is_name(host):
            raise FileError(f"{where}: expected the name of a host")
        if not isinstance(layers, list) or not layers or not all(map(_is_name, layers)):
            raise FileError(f"{where}: {host!r:.60}: expected the names of what is above it")
        if host in builder.hosts:
            raise FileError(f"{where}: {host!r:.60} is listed twice")
        ways = ["/".join(reversed(layers[place:])) for place in range(len(layers))]
        builder.add_host(where, host, ways[0])
        for lower, upper in itertools.pairwise(ways):
            builder.add_switch(where, lower, upper)
    if not builder.hosts:
        raise FileError("expected hosts, got none")
    return _shortened(builder)


def _shortened(builder: HostTreeBuilder) -> HostTree:
    """The tree with switches named by the last parts of their ways, if these differ."""
    ways = dict.fromkeys([*builder.hosts.values(), *builder.above, *builder.above.values()])
    last = [way.rpartition("/")[2] for way in ways]
    taken = set(builder.hosts) | {name for name in last if last.count(name) > 1}
    name = {
        way: short if short not in taken else way for way, short in zip(ways, last, strict=True)
    }
    return HostTree(
        {host: name[way] for host, way in builder.hosts.items()},
        {name[lower]: name[upper] for lower, upper in builder.above.items()},
    )


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and bool(value) and len(value) <= 253
