"""The networks on which every strategy is tried."""

import functools

from gradweave.conformance import networks
from gradweave.conformance.networks import irregular as irregular
from gradweave.conformance.networks import lopsided as lopsided
from gradweave.conformance.networks import relabelled as relabelled
from gradweave.topology import Topology

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
    "circulant:n=8,jumps=1.3",
    "hyperx:2x3",
    "jellyfish:switches=5,degree=3,servers_per_switch=2,seed=1",
    "irregular",
    "lopsided",
    "complete:2",
)


@functools.cache
def network(name: str) -> Topology:
    return networks.network(name)
