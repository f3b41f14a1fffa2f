"""Inputs and outputs of the policies, against plain loops and figures computed by hand."""

import numpy as np
import pytest

from gradweave.environment.instance import Instance
from gradweave.learning.episodes import features as of
from gradweave.learning.episodes.compiled_instance import CompiledInstance
from gradweave.learning.episodes.episode import OngoingEpisode
from gradweave.learning.policies.policy import WIDTH, embeddings_of, read_weights
from tests.conformance.networks import network

CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def embeddings_by_loops(weights, features, play):
    """The message passing as documented, one server, link and tree after the other."""
    hops, there = play.problem.hops, np.flatnonzero(play.there)
    routes = {hop: hops.links[hops.first_link[hop] : hops.first_link[hop + 1]] for hop in there}
    used = np.unique(np.concatenate(list(routes.values())))
    stage = np.flatnonzero(play.under_way)
    every = range(len(features.server)), used, stage
    inputs = (features.server, features.link, features.tree)
    first = (weights.server, weights.link, weights.tree)
    x = []
    for kind in range(3):
        bias = features.global_features @ weights.global_features[:, kind].astype(float)
        x.append(np.zeros((len(inputs[kind]), WIDTH)))
        for row in every[kind]:
            x[kind][row] = np.maximum(inputs[kind][row] @ first[kind] + bias, 0)

    def mean(kind, rows):
        return x[kind][rows].mean(0) if len(rows) else np.zeros(WIDTH)

    def of_server(server):
        into = [hop for hop in there if hops.target[hop] == server]
        out = [hop for hop in there if hops.source[hop] == server]
        held = features.holds[server, stage]
        yield mean(0, [hops.source[hop] for hop in into])
        yield mean(0, [hops.target[hop] for hop in out])
        yield mean(1, [link for hop in into for link in routes[hop]])
        yield mean(1, [link for hop in out for link in routes[hop]])
        yield mean(2, stage[held])
        yield mean(2, stage[~held])

    def of_link(link):
        over = [hop for hop in there for other in routes[hop] if other == link]
        yield mean(0, [hops.source[hop] for hop in over])
        yield mean(0, [hops.target[hop] for hop in over])

    def of_tree(tree):
        yield mean(0, np.flatnonzero(features.holds[:, tree]))
        yield mean(0, np.flatnonzero(~features.holds[:, tree]))

    for layer in weights.layers:
        after = [one.copy() for one in x]
        for kind, heard in enumerate((of_server, of_link, of_tree)):
            for row in every[kind]:
                messages = [x[kind][row], *heard(row), mean(kind, every[kind])]
                change = sum(m @ w for m, w in zip(messages, layer[kind], strict=True))
                after[kind][row] += np.maximum(change + layer.bias[kind], 0)
        x = after
    return x


@pytest.mark.parametrize(
    ("name", "collective", "trees"),
    [
        ("leaf_spine:leaves=3,spines=2,servers_per_leaf=2", "all_gather", "grown"),
        ("irregular", "all_reduce", "fixed"),
    ],
)
def test_a_round_is_evaluated_as_described(name, collective, trees):
    problem = CompiledInstance.of(Instance(network(name), collective, trees))
    play, weights = OngoingEpisode(problem), read_weights()
    play.play_round(weights, np.random.default_rng(0), 1.0, True)
    features, hops = play.features(), problem.hops
    for agent in weights:
        by_loops = embeddings_by_loops(agent.encoder, features, play)
        for got, wanted in zip(
            embeddings_of(agent.encoder, play, features), by_loops, strict=False
        ):
            np.testing.assert_allclose(got, wanted, **CLOSE)
    server, link, tree = by_loops
    scores, own = weights.scores(play, features), weights.workload
    for hop in range(len(hops.source)):
        route = hops.links[hops.first_link[hop] : hops.first_link[hop + 1]]
        wanted = 8 * own.hop + server[hops.source[hop]] @ own.hop_of_sender
        wanted += server[hops.target[hop]] @ own.hop_of_receiver
        wanted += (link[route] @ own.hop_of_links).mean(0)
        np.testing.assert_allclose(scores.hop[hop], wanted, **CLOSE)
    wanted = 8 * own.piece + server @ own.piece_of_receiver
    np.testing.assert_allclose(scores.piece, wanted, **CLOSE)
    np.testing.assert_allclose(scores.match, server @ own.match @ tree.T, **CLOSE)


def test_features_by_hand():
    assert [of.clipped(np, x) for x in (-9.0, -4.0, 2.0, 8.0, 9.0)] == [-1.0, -1.0, 0.5, 2.0, 2.0]
    assert [of.load(np, 6, 2, 4), of.load(np, 100, 2, 4), of.load(np, 1, 0, 4)] == [0.75, 2.0, 0.25]
    assert of.logarithm(np, np.e) == 1 and of.logarithm(np, 0.0) == np.log(1e-3)
    # 4 of 5 transfers to come fit into two rounds; one more is on the way.
    assert of.receiver_features(np, 5.0, 1.0, 2, 2.0) == (-0.25, True, 0.5, 1.25)
    assert of.route_features(np, 0.0, 4) == (0.0, True, 1.0)


def test_features_of_a_round_by_hand():
    """Two of each: the second server is idle, link unused, and tree of another stage."""
    counts = of.Counts(
        **{"rounds_left": 4.0, "bound": 5, "grown": True, "servers": 4},
        **{"to_come": np.array([6.0, 0.0]), "intake": np.array([1, 3])},
        **{"holds": np.array([2, 0]), "lacks": np.array([1, 0]), "wanted": np.array([1, 0])},
        **{"demand": np.array([6.0, 0.0]), "contenders": np.array([2.0, 0.0])},
        **{"capacity": np.array([2, 1]), "used": np.array([True, False])},
        **{"there": np.array([True, False]), "by_sender": np.array([False, True])},
        **{"unsent": np.array([1, 2]), "ready": np.array([2, 0]), "total": np.array([4, 2])},
        **{"tallest": np.array([6, 0]), "selected_before": np.array([True, True])},
    )
    server, link, tree, overall, slack = of.of_round(np, counts)
    half = np.float32(np.log(2) / 2)
    assert server.tolist() == [[1.5, -0.5, 2, 1, half, 0.5], [0, 2, 0, 0, 2 * half, 0]]
    assert link.tolist() == [[0.75, half / 2, 1], [0, 0, 0]]
    assert slack.tolist() == [2.0, 1e6]
    assert tree.tolist() == [[0.75, 0.5, 0.25, 1, 1.5], [0] * 5]
    assert overall.tolist() == [1, np.float32(0.8), 0.25, 0, half]
