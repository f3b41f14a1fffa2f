"""Routes: the tie rule, shortness, and what may stand inside, each against plain Python or
networkx."""

import dataclasses
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
from tests.simulator.random_networks import networks

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
alike = st.one_of(networks(max_servers=8, max_switches=6, uniform=True), st.sampled_from(NAMED))
given_alike = given(network=alike.map(lambda n: from_spec(n) if n in NAMED else n))


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


@given_alike
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


@given_alike
def test_switch_only_trees_stop_at_servers(network):
    parents, lengths = switch_only_trees(network)
    for row, root in enumerate(network.servers.tolist()):
        parent, distance = first_in_first_out(network, root, through_servers=False)
        assert parents[row].tolist() == parent
        assert lengths[row].tolist() == distance


def width(network: Topology, route: list[int]) -> float:
    """The bandwidth of a route's scarcest link direction."""
    return network.bandwidth_bytes_per_s[network.find_links(route[:-1], route[1:])].min()


@given_network
def test_of_the_shortest_routes_the_widest_is_taken(network):
    """Compared with all shortest paths of networkx, through servers and through switches only."""
    trees, (direct, _) = shortest_path_trees(network), switch_only_trees(network)
    servers = network.servers.tolist()
    for (row, root), server in itertools.product(enumerate(servers), servers):
        if server == root:
            continue
        open_ways = undirected(network).subgraph([*network.switches.tolist(), root, server])
        for tree, graph in ((trees, undirected(network)), (direct, open_ways)):
            if tree[row, server] >= 0:
                route = follow(tree[[row]], np.array([server]), np.array([root]))[0].tolist()
                every = list(nx.all_shortest_paths(graph, server, root))
                assert route in every
                assert width(network, route) == max(width(network, each) for each in every)


def planes(*links: tuple[float, float], swapped: bool = False) -> Topology:
    """Two servers, joined by a switch for each bandwidth and latency."""
    each = np.repeat(links[::-1] if swapped else links, 2, axis=0)
    pairs = [(server, 2 + plane) for plane in range(len(links)) for server in (0, 1)]
    network = Topology.from_links(
        "planes", servers=2, switches=len(links), links=pairs, bandwidth_bytes_per_s=each[:, 0]
    )
    # Directions ascend by source and target: first those of servers, then those of switches.
    latency = np.tile(each[::2, 1], 2).tolist() + each[:, 1].tolist()
    return dataclasses.replace(network, latency_s=np.array(latency))


@pytest.mark.parametrize("swapped", [False, True])
def test_ties_go_to_the_width_then_to_the_latency_whatever_the_ids(swapped):
    wide, narrow = (10e9, 20e-6), (1e9, 1e-6)
    first, second = (3, 2) if swapped else (2, 3)
    assert shortest_route(planes(wide, narrow, swapped=swapped), 0, 1) == (0, first, 1)
    assert shortest_route(planes(narrow, wide, swapped=swapped), 0, 1) == (0, second, 1)
    late, soon = (10e9, 20e-6), (10e9, 1e-6)
    assert shortest_route(planes(late, soon, swapped=swapped), 0, 1) == (0, second, 1)
    assert k_shortest_routes(planes(wide, narrow, swapped=swapped), 0, 1, 2) == [
        (0, first, 1),
        (0, second, 1),
    ]


@pytest.mark.parametrize("swapped", [False, True])
def test_for_a_size_ties_go_to_the_quickest(swapped):
    """A wide link that takes 2·20 us, and a narrow one of 1 GB/s that takes 2·1 us: 38 us apart,
    which at 1/1 − 1/10 ns a byte is 42.2 kB."""
    wide, narrow = (2, 3) if not swapped else (3, 2)
    for size, through in ((42e3, narrow), (43e3, wide)):
        network = planes((10e9, 20e-6), (1e9, 1e-6), swapped=swapped)
        sized = dataclasses.replace(network, message_bytes=size)
        assert shortest_route(sized, 0, 1) == (0, through, 1)
        assert k_shortest_routes(sized, 0, 1, 1) == [(0, through, 1)]
    with pytest.raises(TopologyError, match="message_bytes must be above 0"):
        dataclasses.replace(network, message_bytes=0.0)


def test_equal_widths_go_to_the_links_that_are_wider_together():
    """Both routes have a link of 1 GB/s; the second also has a link of 4 GB/s."""
    network = Topology.from_links(
        "together",
        servers=2,
        switches=2,
        links=[(0, 2), (2, 1), (0, 3), (3, 1)],
        bandwidth_bytes_per_s=np.array([1e9, 1e9, 4e9, 1e9]),
    )
    assert shortest_route(network, 0, 1) == (0, 3, 1)
    assert shortest_route(network, 1, 0) == (1, 3, 0)


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


@pytest.mark.parametrize("uneven", [False, True])
@pytest.mark.parametrize("network", NAMED)
def test_what_is_compiled_finds_what_python_does(network, uneven, monkeypatch):
    network = from_spec(network)
    if uneven:
        rates = np.random.default_rng(0).choice([1e9, 2e9, 3e9], len(network.source))
        network = dataclasses.replace(network, bandwidth_bytes_per_s=rates)
    found = []
    for few in (-1, 10**9):
        monkeypatch.setattr(breadth_first, "FEW", few)
        trees = shortest_path_trees(network, network.servers)
        found.append((trees, *switch_only_trees(network), hop_distances(network)))
    for compiled, by_python in zip(*found, strict=True):
        np.testing.assert_array_equal(compiled, by_python)
        assert compiled.dtype == by_python.dtype
