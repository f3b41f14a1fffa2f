"""Q-learning on a game whose best play is known, and its parts against loops by hand."""

import dataclasses
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax")
pytest.importorskip("equinox")
pytest.importorskip("optax")
pytest.importorskip("jaxtyping")

import jax
import jax.numpy as jnp

from gradweave.errors import OptionError
from gradweave.marl.evaluation import evaluate
from gradweave.marl.learners import algorithms
from gradweave.marl.learners.mixers import MonotonicMixer, SumMixer
from gradweave.marl.learners.q_learning import lambda_returns
from gradweave.marl.learners.q_settings import QLearning
from gradweave.marl.program import Program
from tests.marl.doors import STEPS, doors

USUAL = {"environments": 4, "rollout": 8, "hidden": (16,), "batch_size": 8, "replay_size": 320}


def learner(kind: str, *, updates: int = 20, environment: Any = None, **settings: Any) -> Any:
    build = algorithms.ALGORITHMS[kind].build
    return build(environment or doors(), QLearning(**(USUAL | settings)), 1, updates, lambda o: o)


@pytest.mark.parametrize(
    ("kind", "recurrent", "trace"), [("iql", False, 0.0), ("vdn", True, 0.0), ("qmix", False, 0.5)]
)
def test_it_finds_the_best_play(kind, recurrent, trace):
    one = learner(
        kind,
        updates=60,
        recurrent=recurrent,
        td_lambda=trace,
        learning_rate=2e-2,
        discount=0.5,
        environments=8,
        replay_size=2000,
        target_update_rate=0.1,
    )
    program = Program(one, jax.devices()[:1], 0, 1)
    state, metrics = program.run(program.start(), 60)
    earned = metrics.returns.mean(-1)[:, 0] / np.maximum(metrics.episodes[:, 0], 1)
    assert earned[0] < 0.6 * STEPS
    parameters = program.parameters(state)
    evaluated = evaluate(one, doors(), parameters, "greedy", episodes=64, seed=1)[0]
    assert evaluated.mean > 0.97 * STEPS
    assert metrics.figures["explore"][0, 0] == 1.0
    np.testing.assert_allclose(metrics.figures["explore"][30:, 0], 0.05, atol=1e-6)


def test_rows_are_what_was_played_and_the_oldest_are_forgotten():
    one = learner("qmix", recurrent=True, replay_size=100, epochs=1)  # room for three updates
    assert one._blocks == 3
    play, update = jax.jit(one.play), jax.jit(one.update)
    state = jax.jit(one.init)(jax.random.key(3), 0)
    last = []
    for _ in range(5):
        played, rows, _ = play(state)
        last.append(rows)
        assert (rows.memory == state.memory).all()
        assert (rows.observation[:, -1] == played.view.observation).all()
        steps = rows.available[:, :-1]
        assert np.take_along_axis(np.asarray(steps), np.asarray(rows.action)[..., None], -1).all()
        np.testing.assert_array_equal(rows.start[:, 1:], rows.done)
        state, _ = update(state)
    for block, expected in enumerate((last[3], last[4], last[2])):
        for got, want in zip(jax.tree.leaves(state.rows), jax.tree.leaves(expected), strict=True):
            np.testing.assert_array_equal(got[4 * block : 4 * block + 4], want)


def test_nothing_is_learned_from_rows_that_are_not_there_yet():
    one = learner("iql", epochs=3, replay_size=3200)
    state = jax.jit(one.init)(jax.random.key(0), 0)
    poisoned = jax.tree.map(
        lambda x: jnp.full_like(x, jnp.nan) if jnp.issubdtype(x.dtype, jnp.floating) else x,
        state.rows,
    )
    update = jax.jit(one.update)
    after, _ = update(dataclasses.replace(state, rows=poisoned))
    expected, _ = update(state)
    for got, want in zip(
        jax.tree.leaves(after.parameters), jax.tree.leaves(expected.parameters), strict=True
    ):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("trace", [0.0, 0.7, 1.0])
def test_returns_by_a_loop(trace):
    rng = np.random.default_rng(0)
    reward, following = rng.standard_normal((2, 6, 3, 2)).astype(np.float32)
    done = rng.random((6, 3)) < 0.3
    got = lambda_returns(jnp.array(reward), jnp.array(following), jnp.array(done), 0.9, trace)
    later = following[-1]
    for t in reversed(range(6)):
        ahead = (1 - trace) * following[t] + trace * later
        later = reward[t] + 0.9 * np.where(done[t][:, None], 0, ahead)
        np.testing.assert_allclose(got[t], later, rtol=1e-5)


def test_mixers():
    values, world = jnp.arange(6.0).reshape(2, 3), jax.random.normal(jax.random.key(1), (2, 5))
    assert SumMixer()(values, world).tolist() == [[3.0], [12.0]]
    mixer = MonotonicMixer(5, 3, 8, jax.random.key(0))
    assert mixer(values, world).shape == (2, 1)
    slope = jax.grad(lambda values: mixer(values, world).sum())(values)
    assert (slope > 0).all() and len(np.unique(slope)) == 6  # of the state, not of the agent alone


def test_one_seed_depends_on_no_other():
    one = learner("vdn")
    alone = Program(one, jax.devices()[:1], 5, 1)
    both = Program(one, jax.devices()[:1], 5, 2)
    state, _ = alone.run(alone.start(), 2)
    states, _ = both.run(both.start(), 2)
    for got, want in zip(
        jax.tree.leaves(both.parameters(states)),
        jax.tree.leaves(alone.parameters(state)),
        strict=True,
    ):
        np.testing.assert_allclose(got[:1], want, atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"td_lambda": 2.0}, "td_lambda: expected 0 to 1, got 2.0"),
        ({"learning_rate": 0.0}, "learning_rate: expected a number above 0"),
        ({"replay_size": 31}, "replay_size: expected at least the 32 steps of an update, got 31"),
        ({"target_update_rate": 0.0}, "target_update_rate"),
        ({"hidden": ()}, "hidden"),
    ],
)
def test_settings_that_are_refused(settings, said):
    with pytest.raises(OptionError, match=said):
        QLearning(**(USUAL | settings))


def test_settings_that_do_not_divide():
    with pytest.raises(
        OptionError, match="batch_size: expected a multiple of the 4 devices, got 6"
    ):
        QLearning(batch_size=6, environments=4).check_devices(4)


def test_games_that_do_not_fit():
    continuous = dataclasses.replace(doors(), continuous=True)
    with pytest.raises(OptionError, match="iql: expected discrete actions"):
        learner("iql", environment=continuous)
    opposed = dataclasses.replace(doors(), teams=(0, 1))
    with pytest.raises(OptionError, match=r"vdn: adds up the agents' values.*are opposed; use iql"):
        learner("vdn", environment=opposed)
    assert learner("iql", environment=opposed).kind == "iql"
    assert learner("qmix", environment=doors()).kind == "qmix"
