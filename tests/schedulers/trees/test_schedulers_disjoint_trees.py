"""Trees that share no link: as many as every cut allows, on any network."""

import dataclasses

import networkx as nx
import numpy as np
import pytest

import gradweave as gw
from gradweave.errors import NoScheduleError
from gradweave.schedulers import DisjointTrees
from gradweave.schedulers.trees.disjoint_trees import disjoint_carriers, disjoint_trees
from gradweave.schedules import collective
from gradweave.simulator.seconds import event_seconds


@pytest.mark.parametrize("seed", range(20))
def test_random_graphs_have_as_many_as_their_least_cut(seed: int):
    rng = np.random.default_rng(seed)
    nodes = int(rng.integers(3, 9))
    graph = nx.gnp_random_graph(nodes, 0.6, seed=seed, directed=True)
    arcs = nx.to_numpy_array(graph).astype(np.int64) * rng.integers(1, 3, (nodes, nodes))
    graph = nx.from_numpy_array(arcs, create_using=nx.DiGraph)
    cut = min(nx.maximum_flow_value(graph, 0, node, capacity="weight") for node in range(1, nodes))
    parents, levels, depths = disjoint_trees(arcs, 0, cut, rng)
    assert parents is not None and len(parents) == cut
    assert disjoint_trees(arcs, 0, cut + 1, rng)[0] is None
    used, depth = np.zeros_like(arcs), np.zeros((cut, nodes), int)
    for tree, parent in enumerate(parents):
        for node in range(1, nodes):
            used[parent[node], node] += 1
            while node:
                node, depth[tree, node] = int(parent[node]), depth[tree, node] + 1
                assert depth[tree].max() < nodes * nodes
    assert (used <= arcs).all()
    assert (levels >= 1 or not cut) and depths >= cut * (nodes - 1)


TREES = {
    # network: number of trees; levels of the deepest
    "torus:3x3": (4, 3),
    "mesh:3x3": (2, 4),
    "ring:5": (2, 4),
    "hypercube:3": (3, 4),
    "star:5": (1, 4),
    "bcube:n=3,k=1": (2, 4),
    "fat_tree:4": (1, 15),
    "leaf_spine:leaves=3,spines=2,servers_per_leaf=2,oversubscription=2": (2, 5),
}
"""On fat-trees and other networks with one port per server, the only tree is a chain."""


@pytest.mark.parametrize("name", ["broadcast", "reduce"])
@pytest.mark.parametrize("network", TREES)
def test_trees_load_no_link_longer_than_the_bound(name: str, network: str):
    topology = gw.topology.from_spec(network)
    demand = collective(name, topology.servers, 10**9, root=1)
    found = [carrier for _, carrier in disjoint_carriers(topology, demand)]
    load, levels = np.zeros(len(topology.source)), []
    for carrier in found:
        for route in carrier.routes:
            np.add.at(load, np.array(route), 1 / len(found))
        until: list[int] = []
        for before in carrier.waits:
            until.append(1 + max((until[one] for one in before), default=0))
        levels.append(max(until))
    assert (len(found), max(levels)) == TREES[network]
    bound = gw.bounds.demand_bound(topology, demand)
    busiest_s = (load / topology.bandwidth_bytes_per_s).max() * 1e9
    assert float(bound.lengths.used / bound.lengths.offered) == pytest.approx(busiest_s)


@pytest.mark.parametrize(
    ("name", "network"),
    [
        ("broadcast", "bcube:n=3,k=1"),
        ("reduce", "leaf_spine:leaves=3,spines=2,servers_per_leaf=2,oversubscription=2"),
    ],
)
def test_a_long_pipeline_is_near_the_bound(name: str, network: str):
    topology = gw.topology.from_spec(network)
    demand = collective(name, topology.servers, 10**9, root=0)
    ends = event_seconds(DisjointTrees().schedule(topology, demand))[1]
    assert ends.max() <= gw.bounds.demand_bound(topology, demand).seconds * 1.03


def test_late_it_still_has_a_set_for_each_block():
    topology = gw.topology.from_spec("torus:3x3")
    gathered = collective("all_gather", topology.servers, 9)
    assert DisjointTrees().schedule(topology, gathered, time_limit=1e-9).demand is not None


def test_other_demands_and_networks_have_none():
    ring = gw.topology.ring(4)
    for demand in (
        collective("broadcast", [0, 1], 8, root=0),
        collective("all_reduce", range(4), 8),
    ):
        with pytest.raises(NoScheduleError, match="disjoint_trees: plans broadcasts and red"):
            DisjointTrees().schedule(ring, demand)
    uneven = dataclasses.replace(ring, bandwidth_bytes_per_s=1e9 * np.array([2.0, 3] * 4))
    assert not [*disjoint_carriers(uneven, collective("reduce", range(4), 8, root=0))]
