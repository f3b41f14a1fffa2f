"""Faults: what is left is the network without what was lost, under new numbers."""

import dataclasses
import time

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gradweave.topology as gt
from gradweave.errors import GradweaveError, TopologyError
from gradweave.topology.serving import serving_nodes

NINE = [
    *("bcube:n=3,k=1", "bcube:n=4,k=1", "bcube:n=5,k=1"),
    *("dcell:n=4,k=1", "dcell:n=5,k=1", "dcell:n=6,k=1"),
    *("jellyfish:reference=J10", "jellyfish:reference=J15", "jellyfish:reference=J20"),
]
NETWORKS = [*NINE, "torus:4x4", "fat_tree:4", "dgx1v", "a100:boxes=2", "mi250"]


def columns(net):
    """Every link direction with its properties, by the ids given."""
    fields = ("bandwidth_bytes_per_s", "latency_s", "capacity")
    return np.stack([getattr(net, field) for field in fields], axis=1)


def check(degraded, before):
    """What is left are nodes and links of the original, with their properties."""
    after, original = degraded.topology, degraded.original
    assert degraded.node_map.shape == (before.num_nodes,)
    assert degraded.node_map[original].tolist() == list(range(after.num_nodes))
    assert (degraded.node_map >= 0).sum() == after.num_nodes
    assert np.array_equal(after.is_server, before.is_server[original])
    links = before.find_links(original[after.source], original[after.target])
    assert (links >= 0).all()
    assert np.array_equal(columns(after), columns(before)[links])
    if after.num_nodes < before.num_nodes:
        assert after.labels == tuple(
            before.labels[node] if before.labels else str(node) for node in original.tolist()
        )
        assert np.array_equal(after.positions, before.positions[original])
    return {tuple(sorted(pair)) for pair in original[np.stack([after.source, after.target])].T}


def pairs(net):
    return {tuple(sorted(pair)) for pair in np.stack([net.source, net.target]).T}


@pytest.mark.parametrize("spec", NETWORKS)
def test_every_single_link_lost(spec):
    """Against networkx: refused where it cuts servers off, else gone with what only it served."""
    net = gt.from_spec(spec)
    graph = gt.to_networkx(net).to_undirected()
    servers = net.servers.tolist()
    for a, b in sorted(pairs(net)):
        left = graph.copy()
        left.remove_edge(a, b)
        if not set(servers) <= nx.node_connected_component(left, servers[0]):
            with pytest.raises(TopologyError, match="can no longer reach"):
                gt.without_links(net, [(a, b)])
            continue
        degraded = gt.without_links(net, [(b, a)])
        kept = check(degraded, net)
        gone = set(range(net.num_nodes)) - set(degraded.original.tolist())
        assert kept == {tuple(sorted(edge)) for edge in left.edges if not gone.intersection(edge)}
        assert not gone.intersection(servers)


@pytest.mark.parametrize("spec", NETWORKS)
def test_every_single_server_lost(spec):
    net = gt.from_spec(spec)
    graph = gt.to_networkx(net).to_undirected()
    for lost in net.servers.tolist():
        left = graph.copy()
        left.remove_node(lost)
        rest = set(net.servers.tolist()) - {lost}
        if not rest <= nx.node_connected_component(left, min(rest)):
            with pytest.raises(TopologyError, match="can no longer reach"):
                gt.without_servers(net, [lost])
            continue
        degraded = gt.without_servers(net, [lost])
        check(degraded, net)
        assert degraded.topology.num_servers == net.num_servers - 1
        assert degraded.node_map[lost] == -1


def test_names_and_labels_say_what_was_lost():
    less = gt.without_servers(gt.complete(4), [1]).topology
    assert less.name == "complete:n=4 without 1 server"
    assert less.labels == ("0", "2", "3")
    again = gt.without_servers(less, [1]).topology
    assert again.labels == ("0", "3")  # the first network's ids still
    two = gt.without_links(gt.torus((4, 4)), [(0, 1), (5, 6)]).topology
    assert two.name == "torus:4x4 without 2 links" and two.labels == ()


def test_switches_that_serve_nobody_are_dropped():
    # A line of servers and switches: 0 – s2 – s3 – 1, with a tail and a loop of switches.
    graph = nx.Graph([(0, 2), (2, 3), (3, 1), (0, 1), (3, 4), (4, 5), (3, 6), (6, 7), (7, 3)])
    for switch in range(2, 8):
        graph.nodes[switch]["kind"] = "switch"
    net = gt.from_networkx(graph)
    assert serving_nodes(graph, [0, 1]) == {0, 1, 2, 3}
    degraded = gt.without_links(net, [(2, 3)])
    assert degraded.original.tolist() == [0, 1] and degraded.topology.num_links == 1
    assert gt.without_links(net, [(4, 5)]).original.tolist() == [0, 1, 2, 3]


@given(
    nodes=st.integers(2, 9),
    edges=st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=16),
    servers=st.integers(1, 9),
)
@settings(max_examples=80)
def test_serving_nodes_lie_on_paths_between_servers(nodes, edges, servers):
    graph = nx.Graph()
    graph.add_nodes_from(range(nodes))
    graph.add_edges_from((a, b) for a, b in edges if a != b and max(a, b) < nodes)
    servers = list(range(min(servers, nodes)))
    expected = set(servers)
    for a in servers:
        for b in servers[:a]:
            for path in nx.all_simple_paths(graph, a, b):
                expected.update(path)
    assert serving_nodes(graph, servers) == expected


def test_nothing_lost_is_the_same_network():
    net = gt.bcube(3, 1)
    for degraded in (
        gt.without_links(net, []),
        gt.without_servers(net, []),
        gt.slowed(net, {(0, 9): 1}),
        gt.random_faults(net),
    ):
        assert degraded.topology is net
        assert degraded.node_map.tolist() == list(range(net.num_nodes))


def test_a_leaf_server_takes_its_switch_with_it():
    net = gt.jellyfish_reference("J10")
    degraded = gt.without_servers(net, [4])
    # Its switch still forwards for others.
    assert len(degraded.topology.switches) == 10
    box = gt.gpu_boxes("a100", boxes=2)
    degraded = gt.without_servers(box, [3])
    assert degraded.node_map[[3, 18 + 3]].tolist() == [-1, -1]  # the GPU and its network card
    assert len(degraded.topology.switches) == 18


def test_slow_links():
    net = gt.ring(4)
    degraded = gt.slowed(net, {(0, 1): 0.5, (3, 2): "1/4"})
    slow = degraded.topology
    assert slow.name == "ring:n=4 with 2 slow links"
    share = slow.bandwidth_bytes_per_s / net.bandwidth_bytes_per_s
    assert share.tolist() == [0.5, 1, 0.5, 1, 1, 0.25, 1, 0.25]
    assert slow.capacity.tolist() == [2, 4, 2, 4, 4, 1, 4, 1]
    assert np.array_equal(slow.latency_s, net.latency_s)
    assert degraded.node_map.tolist() == [0, 1, 2, 3]


def test_slow_links_among_unequal_ones():
    slow = gt.slowed(gt.gpu_boxes("dgx1v"), {(0, 3): 0.5}).topology
    assert slow.capacity[slow.find_links(np.array(0), np.array(3))] == 1  # one of two NVLinks left
    assert np.allclose(slow.bandwidth_bytes_per_s, 20e9 * slow.capacity)
    all_slow = gt.slowed(gt.ring(3), dict.fromkeys(pairs(gt.ring(3)), 0.1)).topology
    assert set(all_slow.capacity) == {1} and np.allclose(all_slow.bandwidth_bytes_per_s, 1.25e9)


@pytest.mark.parametrize("spec", NETWORKS)
def test_random_faults(spec):
    net = gt.from_spec(spec)
    robust = spec not in ("jellyfish:reference=J10",)
    for seed in range(5):
        links, servers = (2, 1) if robust else (1, 1)
        degraded = gt.random_faults(net, links=links, servers=servers, seed=seed)
        check(degraded, net)
        assert degraded.topology.num_servers == net.num_servers - servers
        assert degraded.topology.num_links < net.num_links
        again = gt.random_faults(net, links=links, servers=servers, seed=seed)
        assert again.topology.same_network(degraded.topology)
    drawn = {tuple(gt.random_faults(net, servers=1, seed=seed).original) for seed in range(8)}
    assert len(drawn) > 1


@pytest.mark.parametrize("suffix", [".json", ".graphml", ".edges"])
def test_what_is_left_can_be_saved(tmp_path, suffix):
    net = gt.random_faults(gt.bcube(4, 1), links=3, servers=2, seed=1).topology
    gt.save(net, tmp_path / f"net{suffix}")
    read = gt.read(tmp_path / f"net{suffix}")
    assert sorted(read.labels) == sorted(net.labels)
    if suffix != ".edges":
        assert read.same_network(net) and read.labels == net.labels


@pytest.mark.parametrize(
    ("make", "culprit"),
    [
        (lambda: gt.without_links(gt.ring(8), [(0, 1), (4, 5)]), "server 1 can no longer reach"),
        (
            lambda: gt.without_links(gt.star(4), [(1, 4)]),
            "star:n=4 without 1 link: server 1 can no",
        ),
        (lambda: gt.without_links(gt.ring(8), [(0, 4)]), "no link joins server 0 and server 4"),
        (lambda: gt.without_links(gt.ring(8), [(0, 8)]), "link: node must be at most 7, got 8"),
        (lambda: gt.without_links(gt.ring(8), [(0, -1)]), "node must be at least 0, got -1"),
        (lambda: gt.without_links(gt.ring(8), [(0, 1.5)]), "node must be an integer, got 1.5"),
        (lambda: gt.without_links(gt.ring(8), [(0, "x")]), "no node is named 'x'"),
        (lambda: gt.without_links(gt.ring(8), [3]), "a link must be given as its two nodes, got 3"),
        (lambda: gt.without_links(gt.ring(8), ["01"]), "as its two nodes, got '01'"),
        (lambda: gt.without_servers(gt.star(4), [4]), "switch 4 is not a server"),
        (lambda: gt.without_servers(gt.star(4), [9]), "node must be at most 4, got 9"),
        (lambda: gt.without_servers(gt.star(4), [0, 1, 2]), "1 server left; at least 2"),
        (lambda: gt.without_servers(gt.star(4), [0, 1, 2, 3]), "0 servers left"),
        (lambda: gt.without_servers(gt.mesh((3,)), [1]), "(1 of 2 servers cannot)"),
        (lambda: gt.slowed(gt.ring(4), {(0, 1): 0}), "the factor of link 0–1 must be a positive"),
        (lambda: gt.slowed(gt.ring(4), {(0, 1): 2}), "must be at most 1, got 2"),
        (lambda: gt.slowed(gt.ring(4), {(0, 1): float("nan")}), "must be a positive number"),
        (lambda: gt.slowed(gt.ring(4), {(0, 2): 0.5}), "no link joins"),
        (lambda: gt.slowed(gt.ring(4), {3: 0.5}), "as its two nodes, got 3"),
        (lambda: gt.slowed(gt.ring(4), {(0, 1): 0.5, (1, 0): 0.5}), "given twice"),
        (lambda: gt.slowed(gt.ring(4), {(0, 1): 0.12345678}), "choose rounder rates"),
        (lambda: gt.random_faults(gt.star(4), links=1), "can lose 0 links"),
        (lambda: gt.random_faults(gt.ring(8), servers=7), "can lose 6 servers"),
        (lambda: gt.random_faults(gt.ring(8), links=-1), "links must be at least 0"),
        (lambda: gt.random_faults(gt.ring(8), seed=-1), "seed must be at least 0"),
    ],
)
def test_impossible_faults_are_named_in_one_line(make, culprit):
    with pytest.raises(TopologyError) as caught:
        make()
    message = str(caught.value)
    assert culprit in message
    assert message.isprintable() and len(message) < 300


def test_faults_of_large_networks_are_quick():
    net = gt.bcube(32, 1)
    started = time.process_time()
    gt.random_faults(net, links=5, servers=5)
    gt.without_links(net, [(0, 1024)])
    assert time.process_time() - started < 5


def named():
    """Two GPUs on each of two leaves, with hyphens in their names."""
    graph = nx.Graph()
    for leaf in ("leaf-0", "leaf-1"):
        graph.add_node(leaf, kind="switch")
        for gpu in (0, 1):
            graph.add_edge(f"gpu{gpu}-{leaf}", leaf, bandwidth="100Gbit/s")
    graph.add_edge("leaf-0", "leaf-1", bandwidth="200Gbit/s")
    return gt.from_networkx(graph, "named")


def test_nodes_have_names_in_faults():
    net = named()
    less = gt.without_servers(net, ["gpu1-leaf-0"]).topology
    assert less.same_network(gt.without_servers(net, [net.labels.index("gpu1-leaf-0")]).topology)
    assert less.labels == ("leaf-0", "gpu0-leaf-0", "leaf-1", "gpu0-leaf-1", "gpu1-leaf-1")
    slow = gt.slowed(net, {("leaf-0", "leaf-1"): 0.5}).topology
    assert slow.bandwidth_bytes_per_s.max() == 12.5e9
    ring = gt.ring(8)
    assert gt.without_links(ring, [("0", "1")]).topology.same_network(
        gt.without_links(ring, [(0, 1)]).topology
    )


def test_named_faults():
    net = named()
    left = gt.Faults(servers=("gpu1-leaf-0",), slow=("leaf-0-leaf-1=0.5",)).apply_to(net)
    assert left.num_servers == 3
    assert left.bandwidth_bytes_per_s.max() == 12.5e9
    assert not gt.Faults() and gt.Faults().apply_to(net) is net
    with pytest.raises(TopologyError, match="can no longer reach"):
        gt.Faults(links=("gpu0-leaf-0-leaf-0",)).apply_to(net)
    # What numbers name, where labels are numbers: the labels.
    less = gt.without_servers(gt.complete(5), [1]).topology
    assert less.labels == ("0", "2", "3", "4")
    again = gt.Faults(servers=("2",)).apply_to(less)
    assert again.labels == ("0", "3", "4")


@pytest.mark.parametrize(
    ("given", "culprit"),
    [
        ({"links": ("gpu0-leaf-9",)}, "link 'gpu0-leaf-9': expected two nodes of 'named' joined"),
        ({"links": ("gpu0-leaf-0",)}, "a node is a name such as 'leaf-0', 'gpu0"),
        ({"links": ("",)}, "link ''"),
        ({"links": ("gpu0-leaf-0-leaf-1",)}, "no link joins server gpu0-leaf-0 and switch"),
        ({"servers": ("gpu9",)}, "server: no node is named 'gpu9' in 'named'; expected a name"),
        ({"servers": ("leaf-0",)}, "switch leaf-0 is not a server"),
        ({"slow": ("leaf-0-leaf-1",)}, "expected a link and what is left of its bandwidth"),
        ({"slow": ("leaf-0-leaf-1=",)}, "must be a positive number"),
        ({"slow": ("leaf-0-leaf-1=2",)}, "must be at most 1"),
        ({"slow": ("leaf-0-leaf-1=1/2", "leaf-1-leaf-0=1/2")}, "given twice"),
        ({"links": ("x" * 100_000 + "-" * 50,)}, "expected two nodes"),
    ],
)  # fmt: skip
def test_named_faults_that_cannot_be(given, culprit):
    with pytest.raises(GradweaveError) as caught:
        gt.Faults(**given).apply_to(named())
    assert culprit in str(caught.value)
    assert str(caught.value).isprintable() and len(str(caught.value)) < 400


def test_a_name_that_two_nodes_have_is_refused():
    net = dataclasses.replace(gt.ring(3), labels=("a", "a", "b"))
    with pytest.raises(TopologyError, match="2 nodes are named 'a'"):
        gt.without_servers(net, ["a"])
