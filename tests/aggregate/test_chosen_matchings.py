"""Matchings chosen by a network's seconds."""

import networkx as nx
import numpy as np
import pytest

from gradweave import aggregate
from gradweave.aggregate.mixing import MixingMatrix, neighbours
from gradweave.errors import OptionError
from gradweave.topology import Topology, from_spec

BYTES = 4e6


def seconds_until_agreed(topology: Topology, mixing: MixingMatrix, share: float = 1e-3) -> float:
    """Seconds of messages until the largest disagreement is this share of the first."""
    of_step = aggregate.exchange_seconds(topology, mixing, BYTES)
    left, seconds = np.eye(mixing.workers) - 1 / mixing.workers, 0.0
    for step in range(1000):
        if np.linalg.norm(left, 2) <= share:
            return seconds
        left = mixing.weights[step % mixing.period] @ left
        seconds += of_step[step % mixing.period]
    raise AssertionError("they never agree")


@pytest.mark.parametrize(
    "network",
    [
        "ring:8",
        "mesh:5x5",
        "star:8",
        "leaf_spine:leaves=4,spines=1,servers_per_leaf=4,oversubscription=4",
        "cities:Oregon.Tokyo,each=4",
        "jellyfish:switches=10,degree=4,seed=0",
    ],
)
def test_workers_agree_no_later_than_by_colours_in_turn(network: str):
    topology = from_spec(network)
    chosen = seconds_until_agreed(topology, aggregate.fast_matchings(topology, BYTES))
    in_turn = seconds_until_agreed(topology, MixingMatrix.in_matchings(topology))
    assert chosen <= in_turn * (1 + 1e-9)


def test_each_step_is_a_matching_of_neighbours_and_there_are_no_more_than_asked_for():
    topology = from_spec("mesh:5x5")
    graph = neighbours(topology)
    for distinct in (3, 8):
        mixing = aggregate.fast_matchings(topology, steps=40, distinct=distinct)
        for weights in mixing.weights:
            np.testing.assert_allclose(weights @ weights, weights, atol=1e-12)  # disjoint averages
            assert all(graph.has_edge(a, b) for a, b in zip(*np.nonzero(weights), strict=True)
                       if a != b)  # fmt: skip
        assert len(np.unique(mixing.weights, axis=0)) <= max(distinct, 4)


def test_racks_behind_a_thin_trunk_mix_within_before_they_mix_across():
    links = [(server, 8 + server // 4) for server in range(8)] + [(8, 9)]
    rates = np.array([12.5e9] * 8 + [1.25e9])
    topology = Topology.from_links(
        "racks", servers=8, switches=2, links=links, bandwidth_bytes_per_s=rates
    )
    mixing = aggregate.fast_matchings(topology, BYTES)
    of_step = aggregate.exchange_seconds(topology, mixing, BYTES)
    assert mixing.period == 3 and mixing.rho < 1e-6  # the mean, in as few steps as there can be
    assert (of_step > 4 * of_step.min()).sum() == 1  # and over the trunk once


def test_a_graph_of_workers_and_one_worker():
    cube = nx.convert_node_labels_to_integers(nx.hypercube_graph(3))
    assert aggregate.fast_matchings(cube).period == 3
    assert aggregate.fast_matchings(nx.empty_graph(1)).weights.tolist() == [[[1]]]


def test_messages_on_a_shared_link_take_turns():
    topology = from_spec("ring:4")
    weights = np.full((4, 4), 0.25)
    everybody = MixingMatrix.of(np.stack([weights, np.eye(4)]))
    to_all, to_none = aggregate.exchange_seconds(topology, everybody, 12.5e6)
    assert to_none == 0
    # A link carries a neighbour's message and, of the four ways round that cross it, one or two.
    assert to_all == pytest.approx(3 * (1e-3 + 1e-6) + 2e-6)


def test_bad_input_is_refused():
    network = from_spec("ring:4")
    with pytest.raises(OptionError, match="message_bytes: expected a number above 0, got 0"):
        aggregate.fast_matchings(network, 0)
    with pytest.raises(OptionError, match="steps: expected at least 1, got 0"):
        aggregate.fast_matchings(network, steps=0)
    with pytest.raises(OptionError, match="step_s: expected a finite number"):
        aggregate.fast_matchings(network, step_s=-1)
