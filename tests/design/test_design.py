"""Designing networks: bounds over all graphs, the best circulants, swaps, and the comparison."""

import itertools
import math

import networkx as nx
import numpy as np
import pytest

import gradweave as gw
from gradweave.common.stop import Interrupt
from gradweave.design import candidates, design, every_network
from gradweave.design.graphs import best_circulants, circulant_score, score, with_links_swapped
from gradweave.errors import OptionError
from gradweave.topology import Link


def graph_of(net: gw.topology.Topology) -> nx.Graph:
    return gw.topology.to_networkx(net).to_undirected()


def by_networkx(graph: nx.Graph) -> tuple[float, int]:
    if not nx.is_connected(graph):
        return math.inf, 0
    lengths = dict(nx.all_pairs_shortest_path_length(graph))
    hops = [hops for near in lengths.values() for hops in near.values()]
    return max(hops), sum(hops)


@pytest.mark.parametrize(
    ("graph", "degree"),
    [
        (nx.petersen_graph(), 3),  # the Moore graphs
        (nx.hoffman_singleton_graph(), 7),
        (nx.complete_graph(6), 5),
        (nx.cycle_graph(9), 2),
        (nx.circulant_graph(8, [1, 4]), 3),  # meets the bound, though it is no Moore graph
    ],
)
def test_graphs_that_meet_the_moore_bound(graph, degree):
    nodes = graph.number_of_nodes()
    bound = every_network(nodes, degree, 1.0, Link())
    assert by_networkx(graph) == (bound.hops, nodes * bound.total_hops)


@pytest.mark.parametrize(("nodes", "degree"), [(11, 3), (18, 3), (24, 5), (51, 7), (40, 4)])
def test_no_graph_undercuts_the_moore_bound(nodes, degree):
    bound = every_network(nodes, degree, 1.0, Link())
    for seed in range(3):
        if nodes * degree % 2 == 0:
            diameter, total = by_networkx(nx.random_regular_graph(degree, nodes, seed=seed))
            assert diameter >= bound.hops and total >= nodes * bound.total_hops
    reached = sum(degree * (degree - 1) ** h for h in range(bound.hops - 1))
    assert reached < nodes - 1  # one link less does not reach all


def test_the_bound_of_bytes():
    link = Link(bandwidth_bytes_per_s=10.0, latency_s=3.0, overhead_s=0.5)
    bound = every_network(5, 2, 1000.0, link)
    assert bound.bytes_s == pytest.approx(2 * 4 / 5 * 1000 / (2 * 10) + 3.5)
    assert bound.latency_s == 2 * 3.5
    assert bound.seconds == bound.bytes_s
    assert every_network(5, 2, 1.0, link).seconds == bound.latency_s
    for servers, degree in ((1, 3), (5, 1), (4, 0)):
        with pytest.raises(OptionError, match="no network connects"):
            every_network(servers, degree, 1.0, link)


@pytest.mark.parametrize(
    "graph",
    [
        nx.petersen_graph(),
        nx.path_graph(7),
        nx.grid_2d_graph(3, 4, periodic=True),
        nx.empty_graph(3),
        nx.disjoint_union(nx.cycle_graph(3), nx.cycle_graph(4)),
    ],
    ids=str,
)
def test_scores_are_those_of_networkx(graph):
    graph = nx.convert_node_labels_to_integers(graph)
    assert score([list(graph[node]) for node in graph]) == by_networkx(graph)


@pytest.mark.parametrize("n", range(3, 14))
@pytest.mark.parametrize("degree", [2, 3, 4, 5])
def test_the_best_circulant_is_that_of_an_exhaustive_search(n, degree):
    pairs = min(degree // 2, (n - 1) // 2)
    middle = [n // 2] if n % 2 == 0 and degree > 2 * pairs else []
    every = {
        jumps: by_networkx(nx.circulant_graph(n, [*jumps, *middle]))
        for jumps in itertools.combinations(range(1, (n - 1) // 2 + 1), pairs)
    }
    found = best_circulants(n, degree, 3, np.random.default_rng(0))
    assert circulant_score(n, found[0]) == min(every.values())
    scores = [circulant_score(n, jumps) for jumps in found]
    assert scores == sorted(scores) and all(diameter < math.inf for diameter, _ in scores)
    for one, other in itertools.combinations(found, 2):  # no two differ by a multiplication
        sets = [frozenset(min(u * j % n, -u * j % n) for j in one) for u in range(1, n)]
        units = [s for u, s in zip(range(1, n), sets, strict=True) if math.gcd(u, n) == 1]
        assert frozenset(other) not in units


@pytest.mark.parametrize(
    ("n", "degree", "diameter"), [(8, 3, 2), (8, 4, 2), (16, 4, 3), (61, 4, 5)]
)
def test_known_least_diameters_of_circulants(n, degree, diameter):
    (jumps,) = best_circulants(n, degree, 1, np.random.default_rng(0))
    assert circulant_score(n, jumps)[0] == diameter


def test_circulants_too_many_to_try_are_drawn(monkeypatch):
    monkeypatch.setattr("gradweave.design.graphs.MOST_CIRCULANTS", 100)
    found = best_circulants(64, 6, 2, np.random.default_rng(1))
    assert found == best_circulants(64, 6, 2, np.random.default_rng(1))
    assert len(found) == 2 and all(len(jumps) == 3 for jumps in found)


@pytest.mark.parametrize(
    ("nodes", "degree", "mean"),
    [(10, 3, 5 / 3), (16, 4, 1.75), (8, 3, 11 / 7)],  # Petersen; Graph Golf's optimum of 16 and 4
)
def test_swaps_find_the_best_known_small_graphs(nodes, degree, mean):
    graph = nx.random_regular_graph(degree, nodes, seed=2)
    bound = every_network(nodes, degree, "1MB", Link())
    least = (bound.hops, nodes * bound.total_hops)
    pairs = with_links_swapped(np.array(graph.edges), nodes, least, np.random.default_rng(0))
    better = nx.Graph(pairs.tolist())
    assert dict(better.degree) == dict(graph.degree)
    assert by_networkx(better)[1] == pytest.approx(nodes * (nodes - 1) * mean)


@pytest.mark.parametrize(("servers", "degree"), [(2, 1), (2, 3), (8, 3), (12, 5), (18, 5), (15, 4)])
def test_candidates_fit_and_are_no_two_the_same(servers, degree):
    link = Link(bandwidth_bytes_per_s=1e9, latency_s=3e-6, overhead_s=2e-6)
    found = candidates(servers, degree, link=link)
    for one in found:
        net, ports = one.network, np.diff(one.network.first_link).max() * one.bundle
        assert net.num_servers == servers and not len(net.switches)
        assert one.degree == ports and degree - ports < ports / one.bundle
        assert set(net.bandwidth_bytes_per_s) == {one.bundle * 1e9}
        assert set(net.latency_s) == {3e-6} and set(net.overhead_s) == {2e-6}
        assert (one.diameter, one.mean_hops * servers * (servers - 1)) == pytest.approx(
            by_networkx(graph_of(net))
        )
        for name in (net.name, *one.also):
            if one.family != "swapped":
                again = gw.topology.from_spec(name)
                assert nx.is_isomorphic(graph_of(again), graph_of(net))
    for one, other in itertools.combinations(found, 2):
        same = nx.is_isomorphic(graph_of(one.network), graph_of(other.network))
        assert not (same and one.degree == other.degree)


def test_candidates_name_their_families():
    families = {one.family for one in candidates(18, 5)}
    assert {"torus", "ring", "slim_fly", "xpander", "circulant", "jellyfish"} <= families
    names = {name for one in candidates(16, 4) for name in (one.network.name, *one.also)}
    assert {"torus:4x4", "hypercube:dimension=4"} <= names


def test_designs_are_ranked_and_bounded():
    found = design(8, 3, "100kB", time_limit=None)
    seconds = [one.seconds for one in found.proposals]
    assert seconds == pytest.approx(sorted(seconds))
    assert all(found.bound.seconds <= one.bound_s * (1 + 1e-9) for one in found.proposals)
    assert all(one.bound_s <= one.seconds * (1 + 1e-9) for one in found.proposals)
    assert {one.solution.stopped for one in found.proposals} <= {"tried", "bound"}
    best = found.proposals[0]
    assert best.candidate.diameter == 2  # as the best circulant's; the cube has 3
    assert found.torus is not None and best.seconds < found.torus.seconds
    again = design(8, 3, 100_000, time_limit=None)
    assert [one.candidate.network.name for one in again.proposals] == [
        one.candidate.network.name for one in found.proposals
    ]
    assert [one.seconds for one in again.proposals] == seconds


def test_an_interrupted_design_keeps_what_it_has():
    interrupt = Interrupt()

    def progress(line: str) -> None:
        if line.startswith("network 2"):
            interrupt.end()

    found = design(8, 3, "100kB", interrupt=interrupt, progress=progress)
    assert 1 <= len(found.proposals) <= 2 and found.unsolved


@pytest.mark.parametrize(
    ("servers", "degree", "culprit"),
    [
        (1, 2, "expected 2 to 256 servers, got 1"),
        (257, 4, "expected 2 to 256 servers, got 257"),
        (8, 1, "expected 2 to 1024 links per server, got 1"),
        (8, 2000, "links per server, got 2000"),
    ],
)
def test_refusals(servers, degree, culprit):
    with pytest.raises(OptionError, match=culprit):
        design(servers, degree, "1MB")
