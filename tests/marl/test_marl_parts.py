"""The parts: advantages, distributions and networks, each against arithmetic done otherwise."""

import math

import numpy as np
import pytest

pytest.importorskip("jax")
pytest.importorskip("equinox")
pytest.importorskip("jaxtyping")

import equinox as eqx
import jax
import jax.numpy as jnp

from gradweave.marl.learners import distributions, randomness
from gradweave.marl.learners.learner import RunningReturns
from gradweave.marl.learners.networks import Network

RNG = np.random.default_rng(0)


def test_what_is_not_available_is_never_drawn_whatever_its_score():
    available = jnp.asarray(RNG.random((50, 6)) < 0.4).at[:, 2].set(True)
    scores = jnp.where(available, 0.0, 50.0) + jnp.asarray(RNG.standard_normal((50, 6)))
    odds = distributions.log_probabilities(scores, available)
    uniform = jax.random.uniform(jax.random.key(0), (400, 50))
    drawn = jax.vmap(lambda number: distributions.sample(number, odds))(uniform)
    assert available[jnp.arange(50)[None], drawn].all()
    np.testing.assert_allclose(jnp.exp(odds).sum(-1), 1.0, rtol=1e-5)
    assert jnp.exp(odds)[~available].max() == 0
    number = available.sum(-1)
    alike = distributions.log_probabilities(jnp.zeros((50, 6)), available)
    np.testing.assert_allclose(distributions.entropy(alike), jnp.log(number), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("number", [0.0, 0.5, 1.0 - 2.0**-24])
def test_no_number_draws_what_is_not_available(number):
    """At both ends too, where sums of odds are rounded."""
    available = jnp.asarray(RNG.random((5000, 7)) < 0.5).at[:, 3].set(True)
    odds = distributions.log_probabilities(
        jnp.asarray(RNG.standard_normal((5000, 7)) * 5), available
    )
    drawn = distributions.sample(jnp.full(5000, number), odds)
    assert available[jnp.arange(5000), drawn].all()
    first, last = available.argmax(-1), 6 - available[:, ::-1].argmax(-1)
    assert ((first <= drawn) & (drawn <= last)).all()


def test_actions_are_drawn_as_often_as_their_odds_say():
    odds = jnp.log(jnp.array([0.1, 0.0, 0.25, 0.65]))
    uniform = jax.random.uniform(jax.random.key(0), (40_000,))
    drawn = distributions.sample(uniform, jnp.broadcast_to(odds, (40_000, 4)))
    share = np.bincount(drawn, minlength=4) / 40_000
    np.testing.assert_allclose(share, [0.1, 0.0, 0.25, 0.65], atol=0.01)


@pytest.mark.parametrize("rows", [1, 2, 3, 100, 8192, 20_000])
def test_an_order_has_every_row_once(rows):
    order = np.asarray(randomness.permutation(jax.random.key(0), rows))
    np.testing.assert_array_equal(np.sort(order), np.arange(rows))


def test_all_orders_are_as_likely():
    keys = jax.random.split(jax.random.key(0), 24_000)
    orders = np.asarray(jax.vmap(lambda key: randomness.permutation(key, 4))(keys))
    _, counts = np.unique(orders, axis=0, return_counts=True)
    assert len(counts) == 24
    assert ((counts - 1000) ** 2 / 1000).sum() < 49.7  # χ² of 23: once in a thousand


def test_keys_drawn_ahead_are_each_games_own():
    """However many games there are beside it, and in every step, and after, another one."""
    keys = jax.random.split(jax.random.key(0), 3)
    after, (one, two) = randomness.rollout_keys(keys, 5, 2)
    alone, (first, second) = randomness.rollout_keys(keys[1:2], 5, 2)
    for several, single in ((one, first), (two, second)):
        assert several.shape == (5, 3)
        np.testing.assert_array_equal(data(several[:, 1:2]), data(single))
    np.testing.assert_array_equal(data(after[1:2]), data(alone))
    every = np.concatenate([data(x).reshape(-1, 2) for x in (keys, after, one, two)])
    assert len(np.unique(every, axis=0)) == 3 + 3 + 15 + 15


def data(keys) -> np.ndarray:
    return np.asarray(jax.random.key_data(keys))


def test_nothing_is_learned_about_what_is_not_available():
    available = jnp.array([True, False, True])

    def loss(scores):
        odds = distributions.log_probabilities(scores, available)
        return distributions.of_action(odds, jnp.array(2)) + distributions.entropy(odds)

    gradient = jax.grad(loss)(jnp.array([0.3, 9.0, -0.4]))
    assert jnp.isfinite(gradient).all() and gradient[1] == 0 and gradient[0] != 0


def test_the_gaussians_density_and_entropy_count_components_that_exist():
    mean, action = RNG.standard_normal((2, 5, 2, 3))
    log_std = np.array([-0.5, 0.2, 0.7])
    real = np.array([[True, True, True], [True, False, True]])
    scale = np.exp(log_std)
    each = -((action - mean) ** 2) / (2 * scale**2) - np.log(scale * math.sqrt(2 * math.pi))
    got = distributions.gaussian_log_density(*map(jnp.asarray, (mean, log_std, action, real)))
    np.testing.assert_allclose(got, (each * real).sum(-1), rtol=1e-5)
    entropy = distributions.gaussian_entropy(jnp.asarray(log_std), jnp.asarray(real))
    whole = 0.5 * np.log(2 * math.pi * math.e * scale**2)
    np.testing.assert_allclose(entropy, (whole * real).sum(-1), rtol=1e-5)
    normal = jax.random.normal(jax.random.key(1), (4000, 2, 3))
    drawn = distributions.gaussian_sample(normal, jnp.asarray(mean[0]), jnp.asarray(log_std))
    np.testing.assert_allclose(drawn.mean(0), mean[0], atol=0.15)
    np.testing.assert_allclose(drawn.std(0), np.broadcast_to(scale, (2, 3)), rtol=0.1)


def network(**more) -> Network:
    return Network(4, 3, 2, jax.random.key(0), hidden=(6, 5), **more)


def test_the_agents_number_is_a_one_hot_vector_beside_what_it_sees():
    net = network()
    x = jnp.asarray(RNG.standard_normal((7, 2, 4)), jnp.float32)
    got = net(None, x, jnp.zeros(7, bool))[1]
    beside = jnp.concatenate([x, jnp.broadcast_to(jnp.eye(2), (7, 2, 2))], axis=-1)
    first = jnp.concatenate([net.layers[0].weight, net.agent])
    hidden = jnp.tanh(beside @ first + net.layers[0].bias)
    hidden = jnp.tanh(net.layers[1](hidden))
    np.testing.assert_allclose(got, net.head(hidden), rtol=1e-5, atol=1e-6)
    # Columns of the first matrix, the agents' rows included, are orthogonal.
    np.testing.assert_allclose(first @ first.T, 2 * jnp.eye(6), atol=1e-5)


def test_what_all_agents_see_is_told_apart_by_their_numbers():
    net = network()
    x = jnp.asarray(RNG.standard_normal((7, 1, 4)), jnp.float32)
    each = net(None, x, jnp.zeros(7, bool))[1]
    assert each.shape == (7, 2, 3)
    same = net(None, jnp.broadcast_to(x, (7, 2, 4)), jnp.zeros(7, bool))[1]
    np.testing.assert_allclose(each, same, rtol=1e-4, atol=1e-6)
    assert (jnp.abs(each[:, 0] - each[:, 1]) > 1e-4).any()


def test_along_is_step_by_step():
    net = network(recurrent=True)
    x = jnp.asarray(RNG.standard_normal((9, 3, 2, 4)), jnp.float32)
    start = jnp.asarray(RNG.random((9, 3)) < 0.3)
    memory = jnp.asarray(RNG.standard_normal((3, 2, 5)), jnp.float32)
    whole = net.along(memory, x, start)
    assert net.start(3).shape == memory.shape
    for t in range(9):
        memory, got = net(memory, x[t], start[t])
        np.testing.assert_allclose(whole[t], got, rtol=1e-5, atol=1e-6)


def test_an_episode_depends_on_no_episode_before_it():
    net = network(recurrent=True)
    x = jnp.asarray(RNG.standard_normal((9, 2, 4)), jnp.float32)
    start = jnp.zeros(9, bool).at[4].set(True)
    memory = jnp.asarray(RNG.standard_normal((2, 5)), jnp.float32)
    whole = net.along(memory, x, start)
    other = net.along(-memory, x.at[:4].multiply(-3.0), start)
    np.testing.assert_array_equal(whole[4:], other[4:])
    np.testing.assert_array_equal(whole[4:], net.along(net.start(), x[4:], start[4:]))
    assert (whole[:4] != other[:4]).any(-1).all()
    # And on what came before in its own.
    assert (net.along(net.start(), x[5:], start[5:]) != whole[5:]).any(-1).all()


def test_an_agent_depends_on_no_other_agents_memory():
    net = network(recurrent=True)
    x = jnp.asarray(RNG.standard_normal((5, 2, 4)), jnp.float32)
    start = jnp.zeros(5, bool)
    whole = net.along(net.start(), x, start)
    other = net.along(net.start(), x.at[:, 0].add(1.0), start)
    np.testing.assert_array_equal(whole[:, 1], other[:, 1])
    assert (whole[:, 0] != other[:, 0]).any(-1).all()


def test_measures_of_episodes_are_counted_when_they_end():
    done = RNG.random((2, 7, 3)) < 0.4
    reward = RNG.standard_normal((2, 7, 3, 1)).astype(np.float32)
    won = RNG.integers(0, 3, (2, 7, 3)).astype(np.float32)
    tally, counted = RunningReturns.zero(3, 1, ["won"]), []
    for i in range(2):  # episodes go on from one update to the next
        tally, metrics = tally.add(reward[i], done[i], {"won": won[i]})
        counted.append(float(metrics.measures["won"]))
    under_way, expected = np.zeros(3), np.zeros(2)
    for i in range(2):
        for t in range(7):
            under_way += won[i, t]
            expected[i] += under_way[done[i, t]].sum()
            under_way[done[i, t]] = 0
    assert counted == expected.tolist()


def test_networks_are_arrays_alone():
    leaves = jax.tree.leaves(network(recurrent=True))
    assert all(eqx.is_array(leaf) for leaf in leaves)


def test_matrices_of_several_seeds_are_decomposed_one_after_the_other():
    """Decomposed at once, they can wait for XLA's threads for ever."""

    def draw(key):
        return Network(7, 3, 2, key, hidden=(6, 5)).layers[0].weight

    keys = jax.random.split(jax.random.key(0), 3)
    together = jax.jit(jax.vmap(draw)).lower(keys).compile()
    calls = [line for line in together.as_text().splitlines() if "lapack_sgeqrf" in line]
    assert calls and not any("f32[3," in line for line in calls)
    np.testing.assert_array_equal(together(keys), jnp.stack([draw(key) for key in keys]))
