"""Value normalisation: its moments are the paper's, and learners judge by returns as they are."""

import dataclasses

import numpy as np
import pytest

pytest.importorskip("jax")
pytest.importorskip("equinox")
pytest.importorskip("optax")
pytest.importorskip("jaxtyping")

import equinox as eqx
import jax
import jax.numpy as jnp

from gradweave.marl.learners.value_norm import DECAY, LEAST_VARIANCE, ValueNorm
from tests.marl.doors import learner, rollout

RNG = np.random.default_rng(0)
SETS = (0, 1, 0)


def test_moments_are_debiased_moving_averages():
    """As the paper's program keeps them: sums that decay, over what sums of ones came to."""
    shift, scale = np.array([50.0, -3.0, 48.0]), np.array([4.0, 0.5, 4.0])
    batches = shift + scale * RNG.standard_normal((6, 20, 5, 3)) + np.arange(6)[:, None, None, None]
    got = ValueNorm.zero(SETS)
    np.testing.assert_array_equal(got.denormalise(jnp.ones((2, 3))), np.ones((2, 3)))
    sums = np.zeros((2, 2))
    ones = 0.0
    for batch in batches:
        got = got.add(jnp.asarray(batch, jnp.float32))
        for one in range(2):
            x = batch[..., np.array(SETS) == one]
            sums[0, one] = DECAY * sums[0, one] + (1 - DECAY) * x.mean()
            sums[1, one] = DECAY * sums[1, one] + (1 - DECAY) * np.square(x).mean()
        ones = DECAY * ones + (1 - DECAY)
    mean = sums[0] / ones
    variance = sums[1] / ones - mean**2
    np.testing.assert_allclose(got.mean, mean, rtol=1e-5)
    np.testing.assert_allclose(got.variance, variance, rtol=1e-4)
    last = jnp.asarray(batches[-1], jnp.float32)
    own = np.array(SETS)
    expected = (batches[-1] - mean[own]) / np.sqrt(variance[own])
    np.testing.assert_allclose(got.normalise(last), expected, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(got.denormalise(got.normalise(last)), last, rtol=1e-5, atol=1e-5)


def test_an_update_counts_less_the_later_it_is_only_by_its_number():
    """In float32, for as long as a training may be: a million updates on."""
    old = dataclasses.replace(ValueNorm.zero((0,)), updates=jnp.int32(1_000_000))
    weight = float(old.add(jnp.ones((1, 1))).mean[0])
    assert weight == pytest.approx((1 - DECAY) / (1 - DECAY**1_000_001), rel=1e-5)


def test_returns_that_are_all_alike_stay_finite():
    same = ValueNorm.zero((0, 0)).add(jnp.full((4, 2), 7.0))
    assert float(same.normalise(jnp.full((1, 2), 7.5))[0, 0]) == pytest.approx(
        0.5 / LEAST_VARIANCE**0.5, rel=1e-3
    )


def test_advantages_are_of_returns_and_the_critic_learns_normalised_ones():
    one = learner("mappo", normalise_values=True, rollout=12, truncation="bootstrap")
    state = jax.jit(one.init)(jax.random.key(3), 0)
    moments = ValueNorm(jnp.array([2.0]), jnp.array([9.0]), jnp.int32(3), (0, 0))
    state = dataclasses.replace(state, returns=moments)
    after, samples, _ = jax.jit(rollout(one))(state)
    # Another learner, whose critic says 2 + 3 times as much by its output layer.
    plain = learner("mappo", rollout=12, truncation="bootstrap")
    parameters = eqx.tree_at(
        lambda p: (p.critic.head.weight, p.critic.head.bias),
        state.parameters,
        replace_fn=lambda x: 3.0 * x + (2.0 if x.ndim == 1 else 0.0),
    )
    other = dataclasses.replace(state, parameters=parameters, returns=None)
    _, expected, _ = jax.jit(rollout(plain))(other)
    np.testing.assert_array_equal(samples.played.action, expected.played.action)
    np.testing.assert_allclose(samples.advantage, expected.advantage, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(
        after.returns.denormalise(samples.target), expected.target, rtol=1e-4, atol=1e-4
    )
    counted = moments.add(expected.target)
    np.testing.assert_allclose(after.returns.mean, counted.mean, rtol=1e-4)
    np.testing.assert_allclose(after.returns.variance, counted.variance, rtol=1e-4)
    assert int(after.returns.updates) == 4


def test_without_it_there_is_nothing_of_it_in_the_state():
    state = jax.eval_shape(learner("mappo").init, jax.random.key(0), 0)
    assert state.returns is None


def test_a_device_whose_returns_are_not_finite_is_left_out():
    start = ValueNorm.zero((0, 0)).add(jnp.asarray(RNG.standard_normal((5, 2)), jnp.float32))
    several = jnp.asarray(RNG.standard_normal((3, 5, 2)), jnp.float32)
    add = jax.vmap(lambda x: start.add(x, "devices"), axis_name="devices")
    broken = add(several.at[1, 2, 0].set(jnp.nan))
    whole = add(several[np.array([0, 2])])
    np.testing.assert_allclose(broken.mean[0], whole.mean[0], rtol=1e-5)
    np.testing.assert_allclose(broken.variance[1], whole.variance[1], rtol=1e-5)
    none = add(jnp.full_like(several, jnp.inf))
    np.testing.assert_array_equal(none.mean[2], start.mean)
    np.testing.assert_array_equal(none.variance[2], start.variance)
