"""The networks on which every strategy is tried."""

import functools

import numpy as np

import gradweave as gw
from gradweave.topology import Topology

# Servers 0 to 5, switches 6 and 7; server 5 hangs off server 4 alone.
_LINKS = [(0, 6), (1, 6), (2, 6), (6, 7), (3, 7), (4, 7), (3, 4), (4, 5)]
_CAPACITY = [2, 3, 1, 2, 1, 3, 1, 2]


def irregular() -> Topology:
    return Topology.from_links("irregular", servers=6, switches=2, links=_LINKS, capacity=_CAPACITY)


def lopsided() -> Topology:
    """The irregular network with more room one way than the other."""
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


TABLE_2 = (
    "bcube:n=3,k=1",
    "bcube:n=4,k=1",
    "bcube:n=5,k=1",
    "dcell:n=4,k=1",
    "dcell:n=5,k=1",
    "dcell:n=6,k=1",
    "jellyfish:reference=J10",
    "jellyfish:reference=J15",
    "jellyfish:reference=J20",
)
NETWORKS = (
    *TABLE_2,
    "ring:8",
    "mesh:3x3",
    "torus:3x3",
    "hypercube:3",
    "fat_tree:4",
    "star:5",
    "complete:4",
    "jellyfish:switches=5,degree=3,servers_per_switch=2,seed=1",
    "irregular",
    "lopsided",
    "complete:2",
)


@functools.cache
def network(name: str) -> Topology:
    by_hand = {"irregular": irregular, "lopsided": lopsided}
    return by_hand[name]() if name in by_hand else gw.topology.from_spec(name)


def relabelled(topology: Topology, seed: int = 0) -> tuple[Topology, np.ndarray]:
    """The same network with its nodes numbered anew, servers and switches mixed.

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
