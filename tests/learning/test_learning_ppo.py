"""What is learned from: advantages, their scale, and the rows of a minibatch."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax")
pytest.importorskip("equinox")

import jax
import jax.numpy as jnp

from gradweave.learning import ppo
from gradweave.learning.ppo import PPO, Samples, advantages_and_targets, minibatch, samples
from gradweave.learning.rollout import Draw, RoundLog
from gradweave.training.advantages import clipped_objective

ROUNDS, EPISODES = 9, 5


def a_log(seed: int = 0, problems: int | None = None) -> RoundLog:
    """Rewards and values at random; episodes of different lengths."""
    rng = np.random.default_rng(seed)
    shape = (ROUNDS, EPISODES) if problems is None else (problems, ROUNDS, EPISODES)
    length = rng.integers(2, ROUNDS + 1, (*shape[:-2], 1, EPISODES))
    real = np.arange(ROUNDS)[:, None] < length
    numbers = {
        name: jnp.asarray(rng.normal(size=shape), jnp.float32)
        for name in ("tree_log_probability", "tree_value", "workload_value")
    }
    rewards = {
        name: jnp.asarray(rng.normal(size=shape) * real, jnp.float32)
        for name in ("tree_reward", "workload_reward")
    }
    unused = jnp.zeros(shape)
    return RoundLog(
        features=unused, selected=unused, draws=unused, real=jnp.asarray(real), **numbers, **rewards
    )  # pyright: ignore[reportArgumentType]


def plain(reward: np.ndarray, value: np.ndarray, length: int, how: PPO) -> np.ndarray:
    """Generalised advantage estimates of one episode, term by term of their definition."""
    value = np.append(value[:length].astype(np.float64), 0.0)
    errors = [reward[t] + how.discount * value[t + 1] - value[t] for t in range(length)]
    decay = how.discount * how.gae_lambda
    return np.array(
        [sum(decay ** (u - t) * errors[u] for u in range(t, length)) for t in range(length)]
    )


@pytest.mark.parametrize(
    "how", [PPO(), PPO(discount=0.9, gae_lambda=0.7), PPO(discount=0.0), PPO(gae_lambda=1.0)]
)
@pytest.mark.parametrize("agent", ["tree", "workload"])
def test_advantages_are_those_of_the_definition(agent, how):
    log = a_log()
    advantage, target = advantages_and_targets(log, agent, how)
    reward, value = (np.asarray(getattr(log, f"{agent}_{name}")) for name in ("reward", "value"))
    for episode, length in enumerate(np.asarray(log.real).sum(0)):
        wanted = plain(reward[:, episode], value[:, episode], length, how)
        np.testing.assert_allclose(advantage[:length, episode], wanted, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(
            target[:length, episode], wanted + value[:length, episode], rtol=1e-4, atol=1e-5
        )
        assert (advantage[length:, episode] == 0).all()


def test_each_problems_advantages_are_of_one_scale():
    log = a_log(1, problems=3)
    log = log._replace(tree_reward=log.tree_reward * jnp.asarray([1.0, 100.0, 0.01])[:, None, None])
    rows = samples(log, "tree", PPO())
    real = np.asarray(log.real).reshape(3, -1)
    for problem in range(3):
        own = np.asarray(rows.advantage[problem])[real[problem]]
        assert own.mean() == pytest.approx(0, abs=1e-5)
        assert own.std() == pytest.approx(1, abs=1e-3)
    raw, target = advantages_and_targets(jax.tree.map(lambda x: x[1], log), "tree", PPO())
    np.testing.assert_allclose(rows.target[1], np.asarray(target).reshape(-1), rtol=1e-6)
    order = np.argsort(np.asarray(raw).reshape(-1)[real[1]])
    assert (np.diff(np.asarray(rows.advantage[1])[real[1]][order]) >= 0).all()


def test_a_minibatch_takes_real_rounds_first_and_others_another_time():
    rows = samples(a_log(2, problems=2), "workload", PPO())
    real = np.asarray(rows.rounds.real)
    fewest = int(real.sum(1).min())
    taken = [minibatch(rows, jax.random.key(seed), fewest) for seed in range(3)]
    for made in taken:
        assert made.advantage.shape == (2, fewest)
        assert np.asarray(made.rounds.real).all()
        for problem in range(2):
            assert np.isin(made.advantage[problem], rows.advantage[problem]).all()
    some = [np.asarray(minibatch(rows, jax.random.key(seed), 4).advantage) for seed in range(3)]
    assert not np.array_equal(some[0], some[1]) or not np.array_equal(some[1], some[2])
    assert isinstance(taken[0], Samples)


def test_gains_end_where_odds_have_moved_enough():
    ratio = jnp.asarray([0.5, 0.9, 1.1, 1.5] * 2)
    advantage = jnp.asarray([1.0] * 4 + [-1.0] * 4)
    gain = clipped_objective(ratio, advantage, 0.2)
    np.testing.assert_allclose(gain, [0.5, 0.9, 1.1, 1.2, -0.8, -0.9, -1.1, -1.5], rtol=1e-6)


@pytest.mark.parametrize(("agent", "actions"), [("tree", 3), ("workload", 5)])
def test_means_are_of_an_agents_own_actions(agent, actions, monkeypatch):
    """Two problems of two rounds, three of which were played, with five draws in them.

    A tree is selected in each round. Sums by problem are multiples of the only parameter, 1: a
    gain of 6 and 12, an entropy of 3 and 6, moves of 9 and 18, an error of 15 and 30.
    """

    def sums(trained: Any, problem: Any, rows: Any, agent: str, how: PPO) -> tuple:
        return tuple(number * trained * problem for number in (6.0, 3.0, 9.0, 15.0))

    monkeypatch.setattr(ppo, "_sums", sums)
    monkeypatch.setattr(ppo, "with_agent", lambda policy, agent, trained: trained)
    real = jnp.asarray([[True, True], [True, False]])
    drawn = jnp.asarray([[[1, 1, 1], [1, 0, 0]], [[1, 0, 0], [1, 1, 1]]], bool)
    unused: Any = jnp.zeros((2, 2))
    draws = Draw(*[unused] * len(Draw._fields))._replace(real=drawn)
    log = RoundLog(*[unused] * len(RoundLog._fields))._replace(real=real, draws=draws)
    rows = Samples(rounds=log, advantage=unused, target=unused)
    one: Any = SimpleNamespace(tree=jnp.float32(1.0), workload=jnp.float32(1.0))
    how = PPO(value_coefficient=0.5, entropy_coefficient=0.25)
    problems: Any = jnp.asarray([1.0, 2.0])
    gradient, means = ppo.gradient(one, problems, rows, agent, how)
    assert {name: float(mean) for name, mean in means.items()} == pytest.approx(
        {
            "gain": 18 / actions,
            "entropy": 9 / actions,
            "moved": 27 / actions,
            "value_error": 45 / 3,
        }
    )
    assert float(gradient) == pytest.approx(0.5 * 45 / 3 - 18 / actions - 0.25 * 9 / actions)


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("learning_rate", 0.0, "learning_rate: expected a number above 0, got 0.0"),
        ("learning_rate", float("nan"), "learning_rate: expected a number above 0, got nan"),
        ("clip_ratio", -0.1, "clip_ratio: expected a number above 0"),
        (
            "max_gradient_norm",
            float("inf"),
            "max_gradient_norm: expected a number above 0, got inf",
        ),
        ("epochs", 0, "epochs: expected at least 1, got 0"),
        ("minibatches", 0, "minibatches: expected at least 1"),
        (
            "entropy_coefficient",
            -1e-3,
            "entropy_coefficient: expected a finite number of at least 0",
        ),
        (
            "value_coefficient",
            float("inf"),
            "value_coefficient: expected a finite number of at least 0, got inf",
        ),
        ("discount", 1.1, "discount: expected 0 to 1, got 1.1"),
        ("gae_lambda", -0.1, "gae_lambda: expected 0 to 1"),
    ],
)
def test_what_nothing_can_be_learned_with_is_refused(field, value, reason):
    with pytest.raises(ValueError, match=reason):
        dataclasses.replace(PPO(), **{field: value})
