"""Shortest distances, against networkx."""

import networkx as nx
import numpy as np
import pytest

from gradweave.bounds.distances import node_distances, shortened


@pytest.mark.parametrize("seed", range(6))
def test_distances_are_those_of_dijkstra_and_leave_out_infinite_links(seed: int):
    rng = np.random.default_rng(seed)
    nodes, links = 9, 20
    ends = rng.integers(0, nodes, links), rng.integers(0, nodes, links)
    cost = np.where(rng.random(links) < 0.2, np.inf, rng.integers(0, 9, links).astype(float))
    graph: nx.DiGraph = nx.DiGraph()
    graph.add_nodes_from(range(nodes))
    for start, end, each in zip(*(one.tolist() for one in (*ends, cost)), strict=True):
        known = graph.get_edge_data(start, end, {"weight": np.inf})["weight"]
        if np.isfinite(each):
            graph.add_edge(start, end, weight=min(known, each))
    servers = np.array([2, 5])
    found = node_distances(servers, cost, ends, nodes)
    for column, server in enumerate(servers.tolist()):
        least = nx.single_source_dijkstra_path_length(graph.reverse(), server)
        assert found[:, column].tolist() == [least.get(node, np.inf) for node in range(nodes)]


def test_costs_from_the_start_are_lowered_where_a_path_costs_less():
    ends = np.array([0, 1, 3]), np.array([1, 2, 2])  # 0 → 1 → 2 ← 3
    initial = np.array([[9.0], [np.inf], [4.0], [5.0]])
    assert shortened(initial, np.array([1.0, 2.0, 3.0]), ends)[:, 0].tolist() == [7, 6, 4, 5]
