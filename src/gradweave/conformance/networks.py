"""Networks for checks: small ones of many shapes, two built by hand, and any with renamed nodes."""

import numpy as np

from gradweave.topology.spec import from_spec
from gradweave.topology.topology import Topology

SMALL = (
    "complete:2",
    "ring:5",
    "mesh:2x3",
    "star:4",
    "hypercube:3",
    "fat_tree:2",
    "bcube:n=3,k=1",
    "irregular",
    "lopsided",
)
"""Networks on which other people's strategies are tried. They include switches, odd numbers,
servers with one link, capacities above 1 and directions that differ."""

# Servers 0 to 5, switches 6 and 7; server 5 is linked only to server 4.
_LINKS = [(0, 6), (1, 6), (2, 6), (6, 7), (3, 7), (4, 7), (3, 4), (4, 5)]
_CAPACITY = [2, 3, 1, 2, 1, 3, 1, 2]


def irregular() -> Topology:
    """Six servers and two switches with unequal capacities."""
    return Topology.from_links("irregular", servers=6, switches=2, links=_LINKS, capacity=_CAPACITY)


def lopsided() -> Topology:
    """The irregular network with more capacity in one direction than in the other."""
    network = irregular()
    capacity = network.capacity + 2 * (network.source > network.target)
    return Topology(
        name="lopsided",
        is_server=network.is_server,
        source=network.source,
        target=network.target,
        bandwidth_bytes_per_s=capacity * 1e9,
        latency_s=network.latency_s,
        capacity=capacity,
    )


def network(name: str) -> Topology:
    """One of the two networks built by hand, or the network of a specification."""
    by_hand = {"irregular": irregular, "lopsided": lopsided}
    return by_hand[name]() if name in by_hand else from_spec(name)


def relabelled(topology: Topology, seed: int = 0) -> tuple[Topology, np.ndarray]:
    """The same network with renumbered nodes, servers and switches mixed.

    Returns:
        The network, and [V] each node's new id.
    """
    new_id = np.random.default_rng(seed).permutation(topology.num_nodes)
    is_server = np.empty_like(topology.is_server)
    is_server[new_id] = topology.is_server
    return (
        Topology(
            name=f"{topology.name}, relabelled",
            is_server=is_server,
            source=new_id[topology.source],
            target=new_id[topology.target],
            bandwidth_bytes_per_s=topology.bandwidth_bytes_per_s,
            latency_s=topology.latency_s,
            capacity=topology.capacity,
        ),
        new_id,
    )
