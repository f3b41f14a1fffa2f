"""Routes: the tie rule, shortness, and what may stand inside, each against plain Python or
networkx."""

import itertools
from collections import deque

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gradweave as gw
from gradweave.errors import TopologyError
from gradweave.topology import Topology, breadth_first, from_spec
from gradweave.topology.routes import (
    follow,
    hop_distances,
    k_shortest_routes,
    shortest_path_trees,
    shortest_route,
    switch_only_trees,
)
from tests.simulate.random_networks import networks

NAMED = [
    "bcube:n=3,k=1",
    "bcube:n=2,k=2",
    "dcell:n=4,k=1",
    "jellyfish:reference=J10",
    "torus:3x3",
    "mesh:2x3",
    "fat_tree:k=4",
    "hypercube:3",
    "star:5",
]
every_network = st.one_of(networks(max_servers=8, max_switches=6), st.sampled_from(NAMED))
given_network = given(network=every_network.map(lambda n: from_spec(n) if n in NAMED else n))


def neighbours(network: Topology) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {node: [] for node in range(network.num_nodes)}
    for a, b in zip(network.source.tolist(), network.target.tolist(), strict=True):
        found[a].append(b)
    return {node: sorted(found[node]) for node in found}


def first_in_first_out(
    network: Topology, root: int, *, through_servers: bool = True
) -> tuple[list[int], list[int]]:
    """Parents and distances of a breadth-first search with ascending neighbours; −1 where none."""
    near = neighbours(network)
    parent, distance = [-1] * network.num_nodes, [-1] * network.num_nodes
    distance[root] = 0
    queue = deque([root])
    while queue:
        node = queue.popleft()
        if node != root and network.is_server[node] and not through_servers:
            continue
        for following in near[node]:
            if distance[following] < 0:
                parent[following], distance[following] = node, distance[node] + 1
                queue.append(following)
    return parent, distance


def undirected(network: Topology) -> nx.Graph:
    return nx.Graph(list(zip(network.source.tolist(), network.target.tolist(), strict=True)))


@given_network
def test_shortest_path_trees_are_those_of_a_first_in_first_out_search(network):
    roots = np.arange(network.num_nodes)
    trees = shortest_path_trees(network, roots)
    assert trees.tolist() == [first_in_first_out(network, root)[0] for root in roots.tolist()]
    assert shortest_path_trees(network).tolist() == trees[network.servers].tolist()


def test_ties_go_to_the_neighbour_that_was_discovered_first():
    square = from_spec("ring:4")  # 0 – 1 – 2 – 3 – 0
    assert shortest_route(square, 2, 0) == (2, 1, 0)
    assert shortest_route(square, 0, 2) == (0, 1, 2)
    assert shortest_route(square, 3, 1) == (3, 0, 1)
    # Not the smallest id: from 0 the search meets 1 and 4, then 5 behind 1 and 2 behind 4, so 5
    # comes before 2 and takes 3.
    network = Topology.from_links(
        "tie", servers=6, switches=0, links=[(0, 1), (0, 4), (1, 5), (4, 2), (5, 3), (2, 3)]
    )
    assert shortest_route(network, 3, 0) == (3, 5, 1, 0)


def test_ties_on_bcube_give_dimension_order():
    """On BCube the digit of the highest level is set first."""
    network = from_spec("bcube:n=3,k=1")
    for source, target in itertools.permutations(range(9), 2):
        passed = shortest_route(network, source, target)[2:-1:2]
        if source // 3 != target // 3 and source % 3 != target % 3:
            assert passed in {(target // 3 * 3 + source % 3,), (source // 3 * 3 + target % 3,)}
    one_way = {
        shortest_route(network, source, target)[2] == target // 3 * 3 + source % 3
        for source, target in itertools.permutations(range(9), 2)
        if source // 3 != target // 3 and source % 3 != target % 3
    }
    assert len(one_way) == 1, "not the same dimension first everywhere"


@given_network
def test_routes_are_shortest_paths_of_the_network(network):
    lengths = dict(nx.all_pairs_shortest_path_length(undirected(network)))
    for source, target in itertools.permutations(range(min(network.num_nodes, 12)), 2):
        route = shortest_route(network, source, target)
        assert (route[0], route[-1]) == (source, target)
        assert len(route) - 1 == lengths[source][target]
        assert nx.is_path(undirected(network), route)


def test_a_route_to_oneself_is_the_node_alone():
    assert shortest_route(from_spec("ring:4"), 2, 2) == (2,)


@given_network
def test_switch_only_trees_stop_at_servers(network):
    parents, lengths = switch_only_trees(network)
    for row, root in enumerate(network.servers.tolist()):
        parent, distance = first_in_first_out(network, root, through_servers=False)
        assert parents[row].tolist() == parent
        assert lengths[row].tolist() == distance


@given_network
def test_switch_only_routes_have_only_switches_inside_and_are_the_shortest_such(network):
    parents, lengths = switch_only_trees(network)
    graph = undirected(network)
    servers = network.servers.tolist()
    for row, root in enumerate(servers):
        for server in set(servers) - {root}:
            open_ways = graph.subgraph([*network.switches.tolist(), root, server])
            if lengths[row, server] < 0:
                assert not nx.has_path(open_ways, server, root)
                continue
            nodes, offsets = follow(parents[[row]], np.array([server]), np.array([root]))
            route = nodes.tolist()
            assert offsets.tolist() == [0, len(route)]
            assert len(route) - 1 == lengths[row, server]
            assert nx.shortest_path_length(open_ways, server, root) == lengths[row, server]
            assert not network.is_server[route[1:-1]].any()
            assert nx.is_path(graph, route)


@given_network
def test_hop_distances_are_lengths_on_the_graph_of_servers(network):
    """Two servers are neighbours in it where a route with only switches inside joins them."""
    _, lengths = switch_only_trees(network)
    servers = network.servers
    graph = nx.Graph()
    graph.add_nodes_from(range(len(servers)))
    graph.add_edges_from(np.argwhere(lengths[:, servers] > 0).tolist())
    expected = dict(nx.all_pairs_shortest_path_length(graph))
    hops = hop_distances(network)
    assert hops.shape == (len(servers), len(servers))
    for a, b in itertools.product(range(len(servers)), repeat=2):
        assert hops[a, b] == expected[a][b]


@given(network=networks(max_servers=4, max_switches=5), k=st.integers(1, 8))
@settings(max_examples=60)
def test_k_shortest_routes_are_simple_rising_and_pass_switches_only(network, k):
    graph = undirected(network)
    for source, target in itertools.permutations(network.servers.tolist(), 2):
        routes = k_shortest_routes(network, source, target, k)
        assert len(routes) <= k and len(set(routes)) == len(routes)
        lengths = [len(route) for route in routes]
        assert lengths == sorted(lengths)
        for route in routes:
            assert (route[0], route[-1]) == (source, target)
            assert nx.is_simple_path(graph, route)
            assert not network.is_server[list(route[1:-1])].any()
        every = sorted(
            len(path)
            for path in nx.all_simple_paths(
                graph.subgraph([*network.switches.tolist(), source, target]), source, target
            )
        )
        assert lengths == every[:k]


def test_k_shortest_routes_where_all_else_are_switches():
    """Two servers on a grid of switches: the routes are networkx's own."""
    network = gw.topology.fat_tree(4)
    graph = undirected(network)
    others = network.servers[1:15].tolist()
    graph.remove_nodes_from(others)
    expected = itertools.islice(nx.shortest_simple_paths(graph, 0, 15), 10)
    assert [len(r) for r in k_shortest_routes(network, 0, 15, 10)] == [len(r) for r in expected]
    assert len(k_shortest_routes(network, 0, 15, 4)[0]) == 7


def test_there_is_no_route_where_servers_stand_in_every_way():
    assert k_shortest_routes(from_spec("mesh:3"), 0, 2, 5) == []
    assert k_shortest_routes(from_spec("mesh:3"), 0, 1, 5) == [(0, 1)]


@pytest.mark.parametrize(
    ("source", "target", "reason"),
    [
        (0, 5, "route from 0 to 5: 5 is not a server"),
        (5, 0, "route from 5 to 0: 5 is not a server"),
        (0, 6, "route from 0 to 6: 6 is not a server"),
        (-1, 0, "route from -1 to 0: -1 is not a server"),
        (3, 3, "route from 3 to 3: the ends must be two servers"),
    ],
)
def test_what_has_no_route_is_refused(source, target, reason):
    with pytest.raises(TopologyError) as caught:
        k_shortest_routes(from_spec("star:5"), source, target, 1)
    assert str(caught.value) == reason


@pytest.mark.parametrize("network", NAMED)
def test_what_is_compiled_finds_what_python_does(network, monkeypatch):
    network = from_spec(network)
    found = []
    for few in (-1, 10**9):
        monkeypatch.setattr(breadth_first, "FEW", few)
        trees = shortest_path_trees(network, network.servers)
        found.append((trees, *switch_only_trees(network), hop_distances(network)))
    for compiled, by_python in zip(*found, strict=True):
        np.testing.assert_array_equal(compiled, by_python)
        assert compiled.dtype == by_python.dtype
