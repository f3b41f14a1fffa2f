"""Generalised advantage estimates beside a loop, and where λ is 1."""

import numpy as np
import pytest

pytest.importorskip("jax")
pytest.importorskip("jaxtyping")

import jax.numpy as jnp

from gradweave.training.advantages import advantages

RNG = np.random.default_rng(0)


def test_advantages_are_those_of_a_loop():
    steps, games, agents, discount, gae_lambda = 13, 4, 2, 0.9, 0.8
    reward, value, next_value = RNG.standard_normal((3, steps, games, agents)).astype(np.float32)
    done = RNG.random((steps, games)) < 0.3
    expected = np.zeros_like(reward, np.float64)
    for game in range(games):
        for agent in range(agents):
            later = 0.0
            for t in reversed(range(steps)):
                error = reward[t, game, agent] - value[t, game, agent]
                error += discount * next_value[t, game, agent]
                later = error + (0.0 if done[t, game] else discount * gae_lambda * later)
                expected[t, game, agent] = later
    ends = done[..., None]
    arrays = [jnp.asarray(x) for x in (reward, value, next_value, ends)]
    got = advantages(*arrays, discount, gae_lambda)  # pyright: ignore[reportCallIssue]
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
    assert done.any(0).all() and not done.all()


def test_with_lambda_of_one_advantages_are_returns_less_values():
    reward = jnp.array([1.0, 2.0, 4.0, 8.0])[:, None, None]
    value = jnp.array([0.5, 0.25, 0.0, 3.0])[:, None, None]
    done = jnp.array([False, True, False, False])[:, None, None]
    next_value = jnp.concatenate([value[1:], jnp.full((1, 1, 1), 10.0)])
    next_value = jnp.where(done, 0.0, next_value)
    got = advantages(reward, value, next_value, done, 1.0, 1.0)[:, 0, 0]
    assert got.tolist() == [1 + 2 - 0.5, 2 - 0.25, 4 + 8 + 10 - 0.0, 8 + 10 - 3.0]


def test_weighted_advantages_and_values_are_v_trace():
    """Equation 1 of Espeholt et al., written out; λ multiplies each c, by their remark 2."""
    steps, discount, gae_lambda = 9, 0.9, 0.8
    reward, value, log_ratio = RNG.standard_normal((3, steps)).astype(np.float32)
    after = np.append(value[1:], 0.7)
    rho = np.minimum(1.0, np.exp(log_ratio))
    c = gae_lambda * rho
    error = rho * (reward + discount * after - value)
    expected = [
        value[s] + sum(discount ** (t - s) * np.prod(c[s:t]) * error[t] for t in range(s, steps))
        for s in range(steps)
    ]
    done = np.zeros(steps, bool)
    arrays = [jnp.asarray(x) for x in (reward, value, after, done)]
    got = advantages(*arrays, discount, gae_lambda, jnp.asarray(rho))  # pyright: ignore[reportCallIssue]
    np.testing.assert_allclose(got + value, expected, rtol=1e-4, atol=1e-5)
