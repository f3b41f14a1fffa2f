"""The paper's training of one network: its settings, its resumption, its rounds."""

import numpy as np
import pytest

pytest.importorskip("jax")
pytest.importorskip("equinox")
pytest.importorskip("optax")
pytest.importorskip("tensorboardX")

from gradweave.environment.even_trees import choices_of, even_trees
from gradweave.environment.instance import Instance
from gradweave.learning.paper import LAST, config, others, outcome
from gradweave.learning.training import CHECKPOINT, train
from tests.conformance.networks import network
from tests.learning.tiny import arrays, rows, same


def test_killed_and_resumed_is_as_if_nothing_had_been(tmp_path):
    how, whole, broken = config("ring:3", "even", seed=2), tmp_path / "whole", tmp_path / "broken"
    train(how, whole, report=lambda _: None, devices=1, stop_after=6)
    for end in (2, 6):
        train(how, broken, report=lambda _: None, devices=1, stop_after=end)
    assert same(*(arrays(folder / CHECKPOINT) for folder in (whole, broken)))
    assert rows(whole) == rows(broken)
    found, known = outcome(broken), others(how)
    assert found == outcome(whole)
    assert known.bound == 1 <= known.constants <= found.last
    assert (len(found.rounds), len(found.selected)) == (6, 6)
    assert found.first == found.rounds[0] and np.isclose(found.last, np.mean(found.rounds[-LAST:]))


@pytest.mark.parametrize(
    ("trees", "collective"), [("even", "reduce_scatter"), ("grown", "all_gather")]
)
def test_it_is_algorithm_1_with_the_papers_rewards(trees, collective):
    how = config("ring:3", trees)
    exercise = how.groups[0].exercises[0]
    assert (exercise.collective, exercise.trees, how.tree_bias) == (collective, trees, 0.0)
    assert (how.rewards.sent, how.rewards.selected, how.rewards.done) == (1.0, 0.1, 10.0)
    assert (how.rewards.unfinished, how.rewards.workload, how.rewards.rounds) == (1.0, 1.0, 0.0)
    assert how.workload.discount == 0.0  # an episode of workload scheduling is a round
    assert [how.agent(update) for update in range(6)] == ["tree", *["workload"] * 4, "tree"]


@pytest.mark.parametrize("name", ["bcube:n=3,k=1", "dgx1v", "irregular"])
def test_even_trees_are_shortest_and_load_no_link_more_than_the_pinned(name):
    topology = network(name)
    trees, choices = even_trees(topology), choices_of(topology)
    assert len(trees.piece) == topology.num_servers * (topology.num_servers - 1)
    for (piece, route), child in zip(trees.edges(), trees.child.tolist(), strict=True):
        assert route in choices[piece, child]
    even, fixed = (Instance(topology, "reduce_scatter", how).bound for how in ("even", "fixed"))
    assert even <= fixed
    assert (even, fixed) == (4, 6) or name != "bcube:n=3,k=1"
