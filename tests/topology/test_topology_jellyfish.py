"""Jellyfish: regular, connected, the same for a seed; and the reference graphs."""

import json
from importlib import resources

import numpy as np
import pytest

import gradweave.topology as gt
from gradweave.errors import TopologyError
from gradweave.topology.families import random_graph


def switch_degrees(topology):
    """Links of each switch to other switches."""
    between = ~topology.is_server[topology.source] & ~topology.is_server[topology.target]
    return np.bincount(topology.source[between], minlength=topology.num_nodes)[topology.switches]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    ("switches", "degree"),
    [
        (2, 1),
        (4, 3),
        (5, 3),
        (6, 5),
        (7, 3),
        (9, 7),
        (10, 4),
        (15, 4),
        (20, 4),
        (30, 2),
        (40, 3),
        (60, 9),
        (300, 3),
    ],
)
def test_every_port_is_used_but_an_odd_one(switches, degree, seed):
    net = gt.jellyfish(switches, degree, seed=seed)
    used = switch_degrees(net)
    assert used.max() <= degree
    assert switches * degree - used.sum() == switches * degree % 2
    assert net.num_links == switches + switches * degree // 2


@pytest.mark.parametrize("per_switch", [1, 2, 5])
def test_servers_are_spread_evenly(per_switch):
    net = gt.jellyfish(8, 3, servers_per_switch=per_switch, seed=1)
    assert net.num_servers == 8 * per_switch
    for server in range(net.num_servers):
        links = slice(*net.first_link[server : server + 2])
        assert net.target[links].tolist() == [net.num_servers + server // per_switch]


def test_a_seed_fixes_the_graph():
    nets = [gt.jellyfish(20, 4, seed=seed) for seed in (3, 3, 4)]
    assert nets[0].same_network(nets[1])
    assert not nets[0].same_network(nets[2])


def test_graphs_are_different_for_most_seeds():
    graphs = {gt.jellyfish(10, 4, seed=seed).target.tobytes() for seed in range(50)}
    assert len(graphs) == 50


def test_links_are_about_equally_likely():
    count = np.zeros((8, 8), int)
    for seed in range(400):
        net = gt.jellyfish(8, 3, seed=seed)
        between = (net.source >= 8) & (net.target >= 8)
        np.add.at(count, (net.source[between] - 8, net.target[between] - 8), 1)
    share = count[~np.eye(8, dtype=bool)] / 400  # 3/7 expected, ± 0.025 standard deviation
    assert np.abs(share - 3 / 7).max() < 0.12


@pytest.mark.parametrize("name", ["J10", "J15", "J20"])
def test_reference_graphs_are_those_of_the_file(name):
    text = resources.files("gradweave.topology.families") / "data" / "jellyfish-reference.json"
    text = text.read_text()
    graph = json.loads(text)[name]
    assert len(graph["switch_links_by_seed"]) == 20
    size = graph["switches"]
    for seed, links in enumerate(graph["switch_links_by_seed"]):
        net = gt.jellyfish_reference(name, seed)
        assert (net.num_servers, len(net.switches)) == (size, size)
        expected = {(i, size + i) for i in range(size)}
        expected |= {(size + a, size + b) for a, b in links}
        ends = zip(net.source.tolist(), net.target.tolist(), strict=True)
        assert {(a, b) for a, b in ends if a < b} == expected
        assert switch_degrees(net).max() == 4


@pytest.mark.parametrize(
    ("make", "culprit"),
    [
        (
            lambda: gt.jellyfish(10, 10),
            "degree must be less than the number of switches, 10; got 10",
        ),
        (lambda: gt.jellyfish(10, 0), "degree must be at least 1"),
        (lambda: gt.jellyfish(10, 1), "cannot be connected"),
        (lambda: gt.jellyfish(1, 0), "switches must be at least 2"),
        (
            lambda: gt.jellyfish(10, 3, servers_per_switch=-1),
            "servers_per_switch must be at least 0",
        ),
        (lambda: gt.jellyfish(10, 3, seed=-1), "seed must be at least 0"),
        (lambda: gt.jellyfish(1000, 3, servers_per_switch=2000), "nodes; at most"),
        (
            lambda: gt.jellyfish_reference("J11"),
            "reference must be one of J10, J15, J20; got 'J11'",
        ),
        (lambda: gt.jellyfish_reference("J10", 20), "seed must be at most 19, got 20"),
    ],
)
def test_bad_parameters_are_named(make, culprit):
    with pytest.raises(TopologyError) as caught:
        make()
    assert culprit in str(caught.value)
    assert "\n" not in str(caught.value)


def test_gives_up_when_no_graph_is_connected(monkeypatch):
    # A connected graph of degree 2 is one single cycle, which about one in nine of these is.
    assert gt.jellyfish(300, 2).num_links == 600
    monkeypatch.setattr(random_graph, "ATTEMPTS", 1)  # three are made at least
    with pytest.raises(TopologyError, match="none of 3 random graphs was connected"):
        for seed in range(20):
            gt.jellyfish(300, 2, seed=seed)
