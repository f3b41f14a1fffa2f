"""The repair of rounds: its counts stay exact, its transfers are possible, and it improves
rounds."""

import numpy as np
import pytest

from gradweave.environment.instance import Instance
from gradweave.learning.best_episode import best_of
from gradweave.learning.episodes.compiled_instance import CompiledInstance
from gradweave.learning.episodes.episode import OngoingEpisode, play
from gradweave.learning.policies.policy import read_weights
from gradweave.verifier import verify
from tests.conformance.networks import network

SCARCE = "torus:4x4", "lopsided", "leaf_spine:leaves=3,spines=2,servers_per_leaf=2"


@pytest.mark.parametrize("name", SCARCE)
def test_what_the_episode_counts_is_what_its_transfers_say(name):
    """After every round, and after rounds were taken back."""
    from gradweave.learning.episodes.state_kernel import enter_stage

    problem = CompiledInstance.of(Instance(network(name), routes=4))
    rng, back = np.random.default_rng(0), 0
    episode = OngoingEpisode(problem, repair=True)
    while episode.left:
        assert episode.play_round(read_weights(), rng, 1.0, True) > 0
        if episode.round == 3 and back < 2:
            back += 1
            episode.backtrack(back)
            assert (episode.sent_round < episode.round).all()
        unsent = episode.sent_round < 0
        assert np.array_equal(episode.pending, problem.pending & unsent)
        assert np.array_equal(episode.waiting, episode.pending)
        assert episode.left == episode.pending.sum()
        counted = [np.zeros_like(x) for x in (episode.near, episode.lack, episode.holders)]
        enter_stage(problem.hops, episode.there, episode.under_way, episode.pending, *counted)
        for got, wanted in zip((episode.near, episode.lack, episode.holders), counted, strict=True):
            assert np.array_equal(got, wanted)
        state = episode.repair.state
        assert np.array_equal(state.holdings.wanted, episode.pending)
        assert np.array_equal(state.holdings.holds, ~episode.pending)
        assert np.array_equal(state.holdings.missing, episode.pending.sum(1))
        growth = problem.slots.growth
        near = np.zeros_like(state.holdings.near)
        np.add.at(near, growth.hops.target, ~episode.pending[growth.hops.source])
        assert np.array_equal(state.holdings.near, near)
    assert back == 2
    assert verify(problem.instance.schedule(episode.sent_round, episode.sent_hop)).valid


def test_repaired_episodes_meet_bounds_that_others_miss():
    """On a torus without slack, where one idle port costs a round."""
    problem, weights = CompiledInstance.of(Instance(network("torus:4x4"), routes=4)), read_weights()
    seeds = range(12)
    alone, repaired = (
        [play(problem, weights, seed=(i, 0), temperature=0.0, repair=r).rounds for i in seeds]
        for r in (False, True)
    )
    bound = problem.instance.bound
    assert min(alone) >= bound and min(repaired) >= bound
    assert np.mean(np.equal(repaired, bound)) > 0.8 > 0.6 > np.mean(np.equal(alone, bound))


@pytest.mark.parametrize(
    ("collective", "trees"), [("reduce_scatter", "grown"), ("all_gather", "fixed")]
)
def test_where_there_are_no_swaps_it_changes_nothing(collective, trees):
    problem = CompiledInstance.of(Instance(network("dcell:n=4,k=1"), collective, trees))
    weights = read_weights()
    with_it, without = (best_of(problem, weights, range(1), repair=r) for r in (True, False))
    assert np.array_equal(with_it.sent_round, without.sent_round)
    assert np.array_equal(with_it.sent_hop, without.sent_hop)
