"""Episodes and their record: what is masked is never drawn, and odds are what they seem."""

import functools
import itertools
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest

pytest.importorskip("jax")
pytest.importorskip("equinox")
pytest.importorskip("optax")

import equinox as eqx
import jax
import jax.numpy as jnp

from gradweave.environment import Rewards, stack
from gradweave.environment.problem import Instance, Problem
from gradweave.learning import rollout
from gradweave.learning.features import Graph, of_hops
from gradweave.learning.networks import HierarchicalPolicy
from gradweave.learning.ppo import PPO, gradient, samples
from gradweave.learning.rollout import (
    Decode,
    Ends,
    Rollout,
    RoundLog,
    select_trees,
    tree_log_probability,
)
from gradweave.verifier import verify
from tests.conformance.networks import network
from tests.learning.look import some_policy

EPISODES, ROUNDS, DRAWS = 6, 20, 4
TRIED = Instance(network("lopsided"), "reduce_scatter", "fixed")
"""A bound of 5 rounds; capacities above 1, so that rounds have many transfers."""
BUSIEST = 10
REWARDS = Rewards.ours()


class Recorded(NamedTuple):
    policy: HierarchicalPolicy
    problem: Problem
    log: RoundLog
    ends: Ends


@functools.cache
def recorded() -> Recorded:
    policy, problem = some_policy(scale=0.2), Problem.of(TRIED)
    keys = jax.random.split(jax.random.key(1), EPISODES)
    how = Rollout(ROUNDS, DRAWS, REWARDS)
    log, ends = eqx.filter_jit(rollout.record)(policy, problem, keys, jnp.asarray(BUSIEST), how)
    assert 0.5 < ends.done.mean()
    return Recorded(policy, problem, *jax.tree.map(np.asarray, (log, ends)))


def test_what_is_masked_is_never_drawn():
    log = recorded().log
    draws, real = log.draws, log.draws.real
    assert real.sum() > 40
    hops, pieces = (
        np.take_along_axis(can, chosen[..., None], -1)[..., 0]
        for can, chosen in ((draws.moment.count > 0, draws.hop), (draws.piece_can, draws.piece))
    )
    assert hops[real].all()
    assert pieces[real].all()
    assert not (log.selected & ~log.features.candidates).any()
    shares = ((draws.moment.count > 0).mean(-1)[real], draws.piece_can.mean(-1)[real])
    assert all(0 < share.min() and share.max() < 1 for share in shares), "masks that hide nothing"
    assert 0 < log.selected.sum() < log.features.candidates.sum()


def test_finished_episodes_are_schedules():
    ends = recorded().ends
    for episode in np.flatnonzero(ends.done):
        schedule = TRIED.schedule(ends.sent_round[episode], ends.sent_hop[episode])
        assert verify(schedule).valid
        assert schedule.rounds == ends.rounds[episode] >= TRIED.bound


def test_the_record_is_of_the_episode():
    """Rewards add up to its rounds; its rounds have the draws that there were room for."""
    log, ends = recorded().log, recorded().ends
    lasted = log.real.sum(0)
    assert (lasted[ends.done] >= ends.rounds[ends.done]).all()  # a round may pass without any
    for reward in (log.tree_reward, log.workload_reward):
        np.testing.assert_allclose(reward.sum(0), -lasted / TRIED.bound, rtol=1e-5)
        assert (reward[~log.real] == 0).all()
    stride = -(-BUSIEST // DRAWS)
    sent = np.stack(
        [(ends.sent_round == at).sum((1, 2)) for at in range(ROUNDS)]
    )  # [T, B], and every round that was recorded
    kept = log.draws.real.sum(-1)
    assert (kept >= np.minimum(sent // stride, DRAWS)).all()
    assert (kept <= np.minimum(-(-sent // stride), DRAWS)).all()


def test_odds_are_those_of_a_hop_and_then_of_a_tree_on_it():
    """By brute force, from the features that were recorded."""
    policy, problem, log, _ = recorded()

    graph = Graph.of(problem)

    def of_round(features):
        return policy.workload(policy.workload.encoder(features, graph), problem)

    def of_draws(features, moments):
        return jax.vmap(lambda moment: of_hops(problem, graph, features, moment))(moments)

    weights, (features, can) = jax.tree.map(
        np.asarray,
        eqx.filter_jit(jax.vmap(jax.vmap(lambda x, y: (of_round(x), of_draws(x, y)))))(
            log.features, log.draws.moment
        ),
    )
    for t, b, k in np.argwhere(log.draws.real):
        draw = jax.tree.map(lambda x: x[t, b, k], log.draws)  # noqa: B023
        scores = (weights.hop[t, b] * features[t, b, k].T).sum(-1)
        odds = softmax(scores, can[t, b, k])[draw.hop]
        receiver = int(problem.receiver[draw.hop])
        pieces = weights.piece[t, b, receiver] @ draw.piece_features + weights.match[t, b, receiver]
        odds *= softmax(pieces, draw.piece_can)[draw.piece]
        assert np.exp(draw.log_probability) == pytest.approx(odds, rel=1e-3)


def softmax(scores: np.ndarray, can: np.ndarray) -> np.ndarray:
    odds = np.where(can, np.exp(scores.astype(np.float64) - scores[can].max()), 0.0)
    return odds / odds.sum()


def test_a_policy_that_has_not_moved_gives_its_actions_the_odds_of_the_record():
    policy, problem, log, _ = recorded()
    for agent in ("tree", "workload"):
        how = PPO()
        rows = samples(jax.tree.map(lambda x: jnp.asarray(x)[None], log), agent, how)
        _, figures = eqx.filter_jit(gradient)(policy, stack([problem]), rows, agent, how)
        assert 0 <= figures["moved"] < 1e-4
        assert figures["entropy"] > 0.1
        _, moved = eqx.filter_jit(gradient)(some_policy(1), stack([problem]), rows, agent, how)
        assert moved["moved"] > 0.1


def test_odds_of_selections_add_up():
    """Over every selection of what can be selected; what cannot be does not count."""
    scores = jnp.asarray([0.3, -1.2, 2.0, 0.7, -0.4])
    can = jnp.asarray([True, False, True, True, True])
    chance = np.asarray(jax.nn.sigmoid(scores))
    total = 0.0
    for bits in itertools.product([False, True], repeat=5):
        odds = float(jnp.exp(tree_log_probability(scores, jnp.asarray(bits), can)))
        each = np.where(bits, chance, 1 - chance)
        wanted = np.where(can, each, 1.0).prod()
        assert odds == pytest.approx(wanted, rel=1e-5)
        total += odds
    assert total == pytest.approx(2.0, rel=1e-5)  # each twice: with and without the masked one


def of_scores(scores: jax.Array) -> SimpleNamespace:
    """A policy that scores trees so, whatever it sees."""

    class Tree:
        def encoder(self, features: object, graph: object) -> None:
            return None

        def __call__(self, embeddings: object) -> jax.Array:
            return scores

        def critic(self, embeddings: object) -> jax.Array:
            return jnp.zeros(())

    return SimpleNamespace(tree=Tree())


def selections(scores, can, decode: Decode, number: int) -> tuple[np.ndarray, np.ndarray]:
    features = SimpleNamespace(candidates=jnp.asarray(can))
    policy = of_scores(jnp.asarray(scores))

    def once(key):
        return select_trees(policy, None, features, key, decode)[:2]  # pyright: ignore[reportArgumentType]

    selected, odds = jax.jit(jax.vmap(once))(jax.random.split(jax.random.key(0), number))
    return np.asarray(selected), np.asarray(odds)


def test_trees_are_selected_by_their_odds():
    scores, can = [0.3, 5.0, 2.0, -0.7], [True, False, True, True]
    selected, odds = selections(scores, can, Decode(), 4000)
    chance = np.where(can, jax.nn.sigmoid(jnp.asarray(scores)), 0.0)
    np.testing.assert_allclose(selected.mean(0), chance, atol=0.04)
    assert not selected[:, 1].any()
    together = (selected[:, 0] & selected[:, 2]).mean()
    assert together == pytest.approx(chance[0] * chance[2], abs=0.04)
    wanted = tree_log_probability(jnp.asarray(scores), jnp.asarray(selected[0]), jnp.asarray(can))
    assert odds[0] == pytest.approx(float(wanted), rel=1e-5)


@pytest.mark.parametrize(
    ("scores", "decode", "wanted"),
    [
        ([0.3, 5.0, 2.0, -0.7], Decode(temperature=0.0), [1, 0, 1, 0]),
        ([-3.0, 5.0, -2.0, -4.0], Decode(temperature=0.0), [0, 0, 1, 0]),  # the best of no good
        ([-3.0, 5.0, -2.0, -4.0], Decode(select=False), [1, 0, 1, 1]),
    ],
)
def test_the_best_trees_or_all_are_selected(scores, decode, wanted):
    selected, _ = selections(scores, [True, False, True, True], decode, 20)
    assert (selected == np.array(wanted, bool)).all()


@pytest.mark.parametrize("temperature", [0.0, 1.0, 2.0])
def test_choices_are_drawn_by_their_scores_and_only_where_they_can_be(temperature):
    scores = jnp.asarray([1.0, 50.0, 0.0, -1.0, 1.5])
    can = jnp.asarray([True, False, True, True, True])
    noise = jax.random.gumbel(jax.random.key(2), (6000, 5))
    chosen, odds = jax.jit(
        jax.vmap(lambda n: rollout._pick(scores, can, n, temperature)), static_argnums=()
    )(noise)
    share = np.bincount(np.asarray(chosen), minlength=5) / len(chosen)
    if temperature == 0:
        assert share[4] == 1
    else:
        wanted = softmax(np.asarray(scores) / temperature, np.asarray(can))
        np.testing.assert_allclose(share, wanted, atol=0.03)
    plain = softmax(np.asarray(scores), np.asarray(can))
    np.testing.assert_allclose(np.exp(odds), plain[chosen], rtol=1e-4)
