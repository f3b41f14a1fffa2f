"""The networks that the environment is tried on."""

import functools

from gradweave.environment.problem import Instance
from gradweave.topology import Topology
from tests.conformance.networks import network

SMALL_NETWORKS = (
    "bcube:n=2,k=1",
    "ring:5",
    "dcell:n=2,k=1",
    "jellyfish:switches=5,degree=3,servers_per_switch=1,seed=1",
    "jellyfish:switches=3,degree=2,servers_per_switch=2,seed=0",
    "leaf_spine:leaves=2,spines=2,servers_per_leaf=3",
    "star:4",
    "complete:2",
    "irregular",
    "lopsided",
)
"""Up to six servers; the last two have capacities above 1, `lopsided` another each way."""

SETTINGS = {
    "fixed reduce_scatter": ("reduce_scatter", "fixed", False),
    "fixed all_gather": ("all_gather", "fixed", False),
    "fixed all_reduce": ("all_reduce", "fixed", False),
    "fixed all_reduce overlap": ("all_reduce", "fixed", True),
    "grown reduce_scatter": ("reduce_scatter", "grown", False),
    "grown all_gather": ("all_gather", "grown", False),
    "grown all_reduce": ("all_reduce", "grown", False),
}
"""Collective, trees, overlap."""


def instance_on(topology: Topology, setting: str) -> Instance:
    collective, trees, overlap = SETTINGS[setting]
    return Instance(topology, collective, trees, overlap=overlap)


@functools.cache
def instance(name: str, setting: str = "grown all_gather") -> Instance:
    return instance_on(network(name), setting)
