"""PPO on a game whose best play is known: it finds it, and keeps apart what has to be."""

import dataclasses
import functools
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax")
pytest.importorskip("equinox")
pytest.importorskip("optax")
pytest.importorskip("jaxtyping")

import equinox as eqx
import jax
import jax.numpy as jnp

from gradweave.errors import OptionError
from gradweave.marl.config import PPO
from gradweave.marl.evaluation import evaluate
from gradweave.marl.learners.randomness import game_keys
from gradweave.marl.program import Program
from tests.marl.doors import DOORS, STEPS, doors, learner, rollout

VARIANTS = [
    pytest.param("ippo", False, id="ippo"),
    pytest.param("mappo", True, id="mappo-recurrent"),
]


@pytest.mark.parametrize(("algorithm", "recurrent"), VARIANTS)
def test_it_finds_the_best_play(algorithm, recurrent):
    settings = {"recurrent": recurrent, "learning_rate": 2e-2, "environments": 8, "rollout": 16}
    one = learner(algorithm, updates=30, **settings)
    program = Program(one, jax.devices()[:1], 0, 1)
    state, metrics = program.run(program.start(), 30)
    earned = metrics.returns.mean(-1)[:, 0] / metrics.episodes[:, 0]
    assert earned[0] < 0.6 * STEPS and earned[-5:].min() > 0.9 * STEPS
    # Every step counts in the episode that it belongs to, over the ends of updates.
    steps = 30 * 8 * 16
    assert steps - 8 * STEPS < metrics.lengths.sum() <= steps
    parameters = program.parameters(state)
    evaluated = evaluate(one, doors(), parameters, "greedy", episodes=64, seed=1)[0]
    assert evaluated.mean == STEPS and evaluated.error == 0  # every door found
    assert (evaluated.lengths == STEPS).all()


def test_playing_at_random_earns_what_it_should():
    evaluated = evaluate(learner(), doors(), None, "random", episodes=512, seed=0)[0]
    assert evaluated.by_agent.shape == (512, 2)
    each = evaluated.by_agent.sum(0) / evaluated.lengths.sum()
    # Of n doors, at even odds one is locked, which is another than the wanted one.
    np.testing.assert_allclose(each, [(1 / 3 + 1 / 2) / 2, (1 / 4 + 1 / 3) / 2], atol=0.04)
    assert 0 < evaluated.error < 0.1
    again = evaluate(learner(), doors(), None, "random", episodes=512, seed=0)[0]
    np.testing.assert_array_equal(evaluated.by_agent, again.by_agent)


@pytest.mark.parametrize("same_episodes", [True, False])
def test_policies_are_evaluated_by_the_same_episodes_or_each_by_its_own(same_episodes):
    one, _ = small()
    parameters = jax.vmap(lambda key: one.parameters(one.init(key, 0)))(
        jnp.stack([jax.random.key(0)] * 2)
    )
    first, second = evaluate(
        one, doors(), parameters, "sampled", episodes=32, seed=0, same_episodes=same_episodes
    )
    assert (first.by_agent == second.by_agent).all() == same_episodes


@functools.cache
def small(algorithm: str = "ippo", **settings: Any) -> tuple[Any, Any]:
    """A learner, and a roll-out of it that is compiled once."""
    one = learner(algorithm, **settings)
    return one, jax.jit(rollout(one))


def begun(one):
    return jax.jit(one.init)(jax.random.key(3), 0)


def test_a_game_depends_on_no_other_game():
    one, play = small()
    state = begun(one)
    keys = jnp.concatenate([state.keys[:1], jax.random.split(jax.random.key(99), 3)])
    _, samples, _ = play(state)
    _, other, _ = play(dataclasses.replace(state, keys=keys))
    for name in ("observation", "action", "log_probability", "value", "start", "available"):
        got, changed = getattr(samples.played, name), getattr(other.played, name)
        np.testing.assert_array_equal(got[:, 0], changed[:, 0])
    assert (samples.played.observation[1:, 1:] != other.played.observation[1:, 1:]).any()
    np.testing.assert_array_equal(samples.advantage[:, 0], other.advantage[:, 0])


def test_games_are_the_same_however_many_are_on_a_device():
    whole = begun(learner(environments=4))
    half = jax.jit(learner(environments=2).init)(jax.random.key(3), 2)
    np.testing.assert_array_equal(
        jax.random.key_data(whole.keys)[2:], jax.random.key_data(half.keys)
    )
    np.testing.assert_array_equal(whole.view.observation[2:], half.view.observation)
    for one, other in zip(
        jax.tree.leaves(whole.parameters), jax.tree.leaves(half.parameters), strict=True
    ):
        np.testing.assert_array_equal(one, other)
    keys = jax.random.key_data(game_keys(jax.random.key(0), 0, 100))
    assert len(np.unique(keys, axis=0)) == 100


def test_only_what_is_available_is_played_and_episodes_are_marked():
    one, play = small(rollout=64)
    state, samples, metrics = play(begun(one))
    steps = samples.played
    took = jnp.take_along_axis(steps.available, steps.action[..., None], -1)
    assert took.all() and not steps.available.all()
    assert not steps.available[:, :, 0, DOORS["left"] :].any()  # which the left has not
    assert (steps.observation[:, :, 0, DOORS["left"] :] == 0).all()
    assert steps.start[0].all()
    assert steps.start[1:].sum() + state.view.start.sum() == metrics.episodes
    assert metrics.episodes >= 4 * (64 // STEPS)


@pytest.mark.parametrize("algorithm", ["ippo", "mappo"])
def test_what_is_filled_up_counts_for_nothing(algorithm):
    """The left agent has no fourth number and no fourth door: no weight of theirs matters."""
    one = learner(algorithm)
    state = begun(one)
    drawn = one.players.noise(state.keys)

    @jax.jit
    def looked(parameters):
        return one.players.step(parameters, state.memories, state.view, drawn)[1]

    before = looked(state.parameters)
    after = looked(
        eqx.tree_at(
            lambda p: (p.actor.layers[0].weight, p.actor.head.bias),
            state.parameters,
            replace_fn=lambda x: x.at[DOORS["left"] :].set(1e6),
        )
    )
    for name in ("action", "log_probability", "value"):
        np.testing.assert_array_equal(getattr(before, name)[:, 0], getattr(after, name)[:, 0])
    assert (before.log_probability[:, 1] != after.log_probability[:, 1]).any()


def test_a_memory_is_empty_where_an_episode_begins():
    """What is judged again from a roll-out's start is what was played, over ends of episodes."""
    one, play = small("mappo", recurrent=True, rollout=12)
    judge = jax.jit(one.players.evaluate)
    state, samples, _ = play(begun(one))
    assert samples.played.start[1:].any()
    log_probability, _, value = judge(state.parameters, samples.memories, samples.played)
    np.testing.assert_allclose(
        log_probability, samples.played.log_probability, rtol=1e-4, atol=1e-5
    )
    np.testing.assert_allclose(value, samples.played.value, rtol=1e-4, atol=1e-5)
    # The next roll-out goes on where this one stopped.
    again, more, _ = play(state)
    log_probability, _, _ = judge(again.parameters, more.memories, more.played)
    np.testing.assert_allclose(log_probability, more.played.log_probability, rtol=1e-4, atol=1e-5)
    assert (more.memories.actor != 0).any()


def test_the_loss_is_that_of_the_papers():
    state, samples, _ = small()[1](begun(small()[0]))
    one = learner(
        normalise_advantages=False,
        value_clip=0.1,
        entropy_coefficient=0.02,
        value_coefficient=0.7,
        clip_ratio=0.1,
    )
    rng = np.random.default_rng(0)
    moved = jax.tree.map(
        lambda x: x + 0.3 * rng.standard_normal(x.shape).astype(np.float32), state.parameters
    )
    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), samples)
    log_probability, entropy, value = map(
        np.asarray, one.players.evaluate(moved, flat.memories, flat.played)
    )
    gain, error = [], []
    for place in np.ndindex(value.shape):
        ratio = np.exp(log_probability[place] - flat.played.log_probability[place])
        advantage, target = flat.advantage[place], flat.target[place]
        gain.append(min(ratio * advantage, min(max(ratio, 0.9), 1.1) * advantage))
        old = flat.played.value[place]
        near = old + min(max(value[place] - old, -0.1), 0.1)
        error.append(max((value[place] - target) ** 2, (near - target) ** 2))
    expected = -np.mean(gain) + 0.7 * 0.5 * np.mean(error) - 0.02 * entropy.mean()
    loss = jax.jit(one._loss)
    total, figures = loss(moved, flat)
    assert float(total) == pytest.approx(expected, rel=1e-4)
    assert 0 < figures["clipped"] < 1 and figures["divergence"] > 0
    unmoved = loss(state.parameters, flat)[1]
    assert unmoved["clipped"] == 0 and abs(unmoved["divergence"]) < 1e-6


def test_time_alone_may_end_an_episode_without_ending_its_value():
    ends, play_ends = small(rollout=64)
    _, play_goes_on = small(rollout=64, truncation="bootstrap")
    _, one, _ = play_ends(begun(ends))
    _, other, _ = play_goes_on(begun(ends))
    np.testing.assert_array_equal(one.played.value, other.played.value)
    last = jnp.concatenate([one.played.start[1:], jnp.zeros((1, 4), bool)])
    left = one.played.action[..., 1] == DOORS["right"] - 1
    differ = (jnp.abs(one.advantage - other.advantage) > 1e-6).all(-1)
    assert (differ & last)[:-1].sum() == (last & ~left)[:-1].sum() > 0
    assert left.any()


def test_every_step_is_learned_from_once_an_epoch():
    for recurrent in (False, True):
        one, play = small("mappo", recurrent=True, rollout=12) if recurrent else small()
        _, samples, _ = play(begun(one))
        samples = dataclasses.replace(
            samples,
            target=jnp.arange(samples.target.size, dtype=jnp.float32).reshape(samples.target.shape),
        )
        parts = jax.jit(one._minibatches)(samples, jax.random.key(5))
        assert parts.target.shape[0] == 2
        assert sorted(parts.target.ravel().tolist()) == list(range(samples.target.size))
        if recurrent:  # whole games, in the order of their steps, with their own memory
            assert parts.target.shape == (2, 12, 2, 2)
            assert (jnp.diff(parts.target, axis=1) == 4 * 2).all()
        # What belongs together stays together.
        flat = samples.played.log_probability.ravel()
        np.testing.assert_array_equal(
            parts.played.log_probability, flat[parts.target.astype(jnp.int32)]
        )


def test_one_compilation_serves_any_number_of_updates_and_the_bits_are_the_same():
    one = learner()
    program = Program(one, jax.devices()[:1], 7, 2)
    start = program.start()
    whole, metrics = program.run(start, 5)
    parts = start
    for number in (1, 3, 1):
        parts, _ = program.run(parts, number)
    assert program._run._cache_size() == 1
    for x, y in zip(jax.tree.leaves(whole), jax.tree.leaves(parts), strict=True):
        if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
            x, y = jax.random.key_data(x), jax.random.key_data(y)
        np.testing.assert_array_equal(x, y)
    assert metrics.episodes.shape == (5, 2) and metrics.returns.shape == (5, 2, 2)
    # Seeds are apart, and the first one is what it is alone.
    assert (metrics.returns[:, 0] != metrics.returns[:, 1]).any()
    alone = Program(one, jax.devices()[:1], 7, 1).start()
    for x, y in zip(jax.tree.leaves(alone), jax.tree.leaves(start), strict=True):
        assert (x[:, 0] == y[:, 0]).all()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"learning_rate": 0.0}, "learning_rate: expected a number above 0, got 0.0"),
        ({"minibatches": 0}, "minibatches: expected at least 1, got 0"),
        ({"discount": 1.5}, "discount: expected 0 to 1, got 1.5"),
        (
            {"entropy_coefficient": -1.0},
            "entropy_coefficient: expected a finite number of at least 0, got -1.0",
        ),
        ({"hidden": ()}, "hidden: expected at least one width"),
        ({"activation": "cubic"}, "activation: expected tanh, relu, got 'cubic'"),
        ({"truncation": "later"}, "truncation: expected end or bootstrap"),
        ({"log_std": float("nan")}, "log_std: expected a finite number"),
        ({"value_clip": 0.0}, "value_clip: expected a number above 0"),
    ],
)
def test_settings_that_it_does_not_take(changes, reason):
    with pytest.raises(OptionError, match=reason):
        PPO(**changes)


def test_devices_and_minibatches_must_come_out_even():
    with pytest.raises(OptionError, match="environments: expected a multiple of the 3 devices"):
        PPO(environments=64).check_devices(3)
    with pytest.raises(OptionError, match="minibatches: expected a divisor of the 16 games"):
        PPO(environments=64, minibatches=5, recurrent=True).check_devices(4)
    PPO(environments=64, minibatches=8).check_devices(4)
