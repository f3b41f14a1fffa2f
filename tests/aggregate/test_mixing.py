"""Mixing matrices: what makes them valid, what they converge by, and who is next to whom."""

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gradweave as gw
from gradweave.aggregate import MixingMatrix
from gradweave.aggregate.mixing import neighbours
from gradweave.errors import OptionError, TopologyError

NETWORKS = (
    "bcube:n=3,k=1",
    "dcell:n=4,k=1",
    "jellyfish:reference=J10",
    "torus:4x4",
    "fat_tree:k=4",
    "dgx1v",
)


@st.composite
def graphs(draw):
    nodes = draw(st.integers(2, 9))
    tree = [(node, draw(st.integers(0, node - 1))) for node in range(1, nodes)]
    more = draw(st.lists(st.tuples(st.integers(0, nodes - 1), st.integers(0, nodes - 1))))
    graph = nx.Graph(tree + [pair for pair in more if pair[0] != pair[1]])
    return graph


@given(graphs())
def test_any_connected_graph_has_weights(graph):
    mixing = MixingMatrix.metropolis_hastings(graph)
    (weights,) = mixing.weights
    assert mixing.symmetric
    assert (weights >= -1e-12).all()
    np.testing.assert_allclose(weights.sum(0), 1)
    off = {(a, b) for a, b in zip(*np.nonzero(weights), strict=True) if a != b}
    assert off == {(a, b) for a, b in graph.edges()} | {(b, a) for a, b in graph.edges()}
    # By definition of ρ: what differs from the mean shrinks at least so much.
    assert 0 <= mixing.rho < 1
    values = np.sort(np.linalg.eigvalsh(weights))
    assert mixing.rho == pytest.approx(max(abs(values[0]), abs(values[-2])), abs=1e-9)
    assert mixing.mu == pytest.approx(np.abs(values - 1).max(), abs=1e-9)


@given(graphs())
def test_matchings_use_every_link_in_turns(graph):
    mixing = MixingMatrix.in_matchings(graph)
    assert mixing.symmetric
    assert mixing.period >= max(dict(graph.degree()).values())
    assert mixing.rho < 1
    seen = set()
    for weights in mixing.weights:
        assert ((weights > 0).sum(0) <= 2).all()
        seen |= {(a, b) for a, b in zip(*np.nonzero(weights), strict=True) if a < b}
    assert seen == {tuple(sorted(edge)) for edge in graph.edges()}


@given(graphs())
def test_exchanges_carry_the_weights(graph):
    for mixing in (MixingMatrix.metropolis_hastings(graph), MixingMatrix.in_matchings(graph)):
        for weights, exchanges in zip(mixing.weights, mixing.exchanges, strict=True):
            found = np.diag(np.diag(weights)).copy()
            for exchange in exchanges:
                sources, targets = zip(*exchange.pairs, strict=True)
                assert len(set(sources)) == len(sources) and len(set(targets)) == len(targets)
                for source, target in exchange.pairs:
                    found[target, source] += exchange.weights[target]
                assert all(
                    weight == 0
                    for worker, weight in enumerate(exchange.weights)
                    if worker not in targets
                )
            np.testing.assert_array_equal(found, weights)
            assert len(exchanges) == ((weights > 0).sum(0) - 1).max()


@pytest.mark.parametrize("name", NETWORKS)
def test_networks(name):
    topology = gw.topology.from_spec(name)
    mixing = MixingMatrix.metropolis_hastings(topology)
    assert mixing.name == topology.name and mixing.workers == topology.num_servers
    assert 0 <= mixing.rho < 1


def test_ring_by_hand():
    mixing = MixingMatrix.ring(8)
    # Eigenvalues of a circulant matrix: (1 + 2 cos 2πk/8) / 3.
    assert mixing.rho == pytest.approx((1 + np.sqrt(2)) / 3)
    assert mixing.mu == pytest.approx(4 / 3)
    assert MixingMatrix.complete(5).rho == pytest.approx(0, abs=1e-12)
    np.testing.assert_allclose(MixingMatrix.ring(3).weights, 1 / 3)
    assert MixingMatrix.ring(2).weights.tolist() == [[[0.5, 0.5], [0.5, 0.5]]]
    assert MixingMatrix.ring(1).weights.tolist() == [[[1.0]]]


def test_neighbours_over_switches_alone():
    assert set(neighbours(gw.topology.from_spec("ring:5"))[0]) == {1, 4}
    # Servers of a DCell's cell share a switch; two cells are linked directly, and those links
    # alone do not reach all.
    assert set(neighbours(gw.topology.from_spec("dcell:n=4,k=1"))[0]) == {1, 2, 3, 4}
    # Jellyfish has a server on each switch: the nearest are two switches apart.
    topology = gw.topology.from_spec("jellyfish:reference=J10")
    switches = nx.Graph(
        (a, b)
        for a, b in zip(topology.source.tolist(), topology.target.tolist(), strict=True)
        if not topology.is_server[a] and not topology.is_server[b]
    )
    degrees = sorted(dict(neighbours(topology).degree()).values())
    assert degrees == sorted(dict(switches.degree()).values())


@pytest.mark.parametrize(("name", "steps"), [("bcube:n=3,k=1", 2), ("bcube:n=2,k=2", 3)])
def test_clusters_of_bcube_give_the_exact_mean(name, steps):
    mixing = MixingMatrix.in_clusters(gw.topology.from_spec(name))
    assert mixing.period == steps
    product = np.linalg.multi_dot(mixing.weights[::-1]) if steps > 1 else mixing.weights[0]
    np.testing.assert_allclose(product, 1 / mixing.workers)
    assert mixing.rho < 1e-4


def test_clusters_of_dcell():
    mixing = MixingMatrix.in_clusters(gw.topology.from_spec("dcell:n=4,k=1"))
    assert mixing.period == 2 and mixing.rho < 1


def test_no_clusters():
    with pytest.raises(TopologyError, match="no two servers share a switch"):
        MixingMatrix.in_clusters(gw.topology.from_spec("jellyfish:reference=J10"))
    with pytest.raises(TopologyError, match="separate clusters"):
        MixingMatrix.in_clusters(gw.topology.from_spec("fat_tree:k=4"))


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ([[0.5, 0.5]], r"\[N, N\].*\(1, 1, 2\)"),
        ([1.0], "got shape"),
        ([[0.5, 0.4], [0.5, 0.5]], "doubly stochastic.*0 of step 0 sums to 0.9"),
        ([[0.9, 0.1], [0.5, 0.5]], r"column [01] of step 0 sums to (1\.4|0\.6)"),
        ([[float("nan"), 1], [1, 0]], "finite"),
    ],
)
def test_no_mixing_matrix(weights, said):
    with pytest.raises(OptionError, match=said):
        MixingMatrix.of(weights)


def test_weights_are_a_copy_that_nobody_changes():
    given = np.eye(3, dtype=np.float32)[None]
    mixing = MixingMatrix("given", given)
    given[0, 0, 0] = 5
    assert mixing.weights[0, 0, 0] == 1 and mixing.weights.dtype == np.float64
    with pytest.raises(ValueError, match="read-only"):
        mixing.weights[0, 0, 0] = 2


def test_graphs_of_other_names():
    with pytest.raises(TopologyError, match=r"nodes 0 to 1, got 'a', 'b'"):
        MixingMatrix.metropolis_hastings(nx.Graph([("a", "b")]))
    with pytest.raises(OptionError, match="at least 1, got 0"):
        MixingMatrix.ring(0)
