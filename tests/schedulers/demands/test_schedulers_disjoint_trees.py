"""Trees without a common link: as many as every cut lets through, on any network."""

import networkx as nx
import numpy as np
import pytest

import gradweave as gw
from gradweave.schedule import collective
from gradweave.schedulers.demands.disjoint_trees import disjoint_carriers, disjoint_trees


@pytest.mark.parametrize("seed", range(20))
def test_random_graphs_have_as_many_as_their_least_cut(seed: int):
    rng = np.random.default_rng(seed)
    nodes = int(rng.integers(3, 9))
    graph = nx.gnp_random_graph(nodes, 0.6, seed=seed, directed=True)
    source, target = np.array(list(graph.edges)).T
    nx.set_edge_attributes(graph, 1, "capacity")
    cut = min(nx.maximum_flow_value(graph, 0, node) for node in range(1, nodes))
    trees = disjoint_trees(source, target, 0, nodes)
    assert len(trees) == cut
    links = np.concatenate([[], *(link[1:] for _, link in trees)]).astype(int)
    assert len(np.unique(links)) == len(links)
    for parent, link in trees:
        for node in range(1, nodes):
            assert (source[link[node]], target[link[node]]) == (parent[node], node)
            steps = 0
            while node:
                node, steps = int(parent[node]), steps + 1
                assert steps < nodes


@pytest.mark.parametrize("name", ["broadcast", "reduce"])
@pytest.mark.parametrize(("network", "trees"), [("torus:3x3", 4), ("mesh:3x3", 2), ("ring:5", 2)])
def test_a_network_s_trees_make_a_valid_schedule(name: str, network: str, trees: int):
    topology = gw.topology.from_spec(network)
    demand = collective(name, topology.servers, 10**9, root=0)
    assert len([*disjoint_carriers(topology, demand)]) == trees
    schedule = gw.schedulers.Joint().schedule(topology, demand)
    assert len(np.unique(schedule.route_nodes.reshape(-1, 2), axis=0)) == trees * (
        topology.num_servers - 1
    )


def test_other_demands_and_networks_have_none():
    star, ring = gw.topology.star(4), gw.topology.ring(4)
    whole = collective("broadcast", range(4), 8, root=0)
    assert not [*disjoint_carriers(star, whole)]
    assert not [*disjoint_carriers(ring, collective("broadcast", [0, 1], 8, root=0))]
    assert not [*disjoint_carriers(ring, collective("all_reduce", range(4), 8))]
