"""Parameters of all agents, of each team or of each agent: kept apart; each plays by its own."""

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
from gradweave.marl.games.environment import Environment
from gradweave.marl.learners import algorithms
from gradweave.marl.learners.learner import optimizer_step
from gradweave.marl.learners.networks import Network, Networks, draw
from gradweave.marl.learners.q_settings import QLearning
from gradweave.marl.learners.sets import mean_of_each, sets_of
from gradweave.marl.program import Program
from tests.marl.doors import doors, learner, rollout

RNG = np.random.default_rng(0)


@functools.cache
def opposed() -> Environment:
    """Left is paid for the door it is told, and right loses by it: they never want the same."""

    def rewards(game: Any, by_agent: Any) -> list[Any]:
        return [by_agent["left"], -by_agent["right"]]

    reading = dataclasses.replace(doors().reading, rewards=rewards)
    return dataclasses.replace(doors(), reading=reading, teams=(0, 1))


def test_sets_are_those_of_the_environment():
    team = dataclasses.replace(opposed(), agents=("a", "b", "c"), teams=(1, 0, 1))
    assert sets_of(team, "shared") == (0, 0, 0)
    assert sets_of(team, "team") == (1, 0, 1)
    assert sets_of(team, "agent") == (0, 1, 2)
    x = RNG.standard_normal((4, 5, 3)).astype(np.float32)
    expected = [x[..., 1].mean(), x[..., [0, 2]].mean()]
    np.testing.assert_allclose(mean_of_each(jnp.asarray(x), (1, 0, 1)), expected, rtol=1e-5)


@pytest.mark.parametrize("seen", [3, 1], ids=["own", "of-all"])
def test_each_agents_network_is_its_own(seen):
    """Against one network of each set in turn, of which one agent's answer is taken."""
    sets, key = (1, 0, 1), jax.random.key(0)

    def one(key):
        return Network(4, 2, 3, key, hidden=(6, 5), recurrent=True)

    nets = draw(sets, key, one)
    assert isinstance(nets, Networks)
    singles = [one(key) for key in jax.random.split(key, 2)]
    x = jnp.asarray(RNG.standard_normal((7, 2, seen, 4)), jnp.float32)
    start = jnp.asarray(RNG.random((7, 2)) < 0.3)
    memory = jnp.asarray(RNG.standard_normal((2, 3, 5)), jnp.float32)
    assert nets.start(2).shape == memory.shape
    whole = nets.along(memory, x, start)
    after, step = nets(memory, x[0], start[0])
    alone = jax.jit(lambda net: (net.along(memory, x, start), net(memory, x[0], start[0])[0]))
    answers = [alone(net) for net in singles]
    np.testing.assert_allclose(step, whole[0], rtol=1e-5, atol=1e-6)
    for agent, own in enumerate(sets):
        expected, remembered = answers[own]
        np.testing.assert_allclose(
            whole[..., agent, :], expected[..., agent, :], rtol=1e-5, atol=1e-6
        )
        np.testing.assert_allclose(after[:, agent], remembered[:, agent], rtol=1e-5, atol=1e-6)


def test_one_set_is_the_network_itself():
    def one(key):
        return Network(4, 2, 3, key, hidden=(6,))

    alone = draw((0, 0, 0), jax.random.key(1), one)
    assert isinstance(alone, Network)
    jax.tree.map(np.testing.assert_array_equal, alone, one(jax.random.key(1)))


@functools.cache
def trained(algorithm: str) -> tuple[Any, Any, Any]:
    """A learner with parameters for each team, what it began with and what it learned."""
    settings = {
        "learning_rate": 2e-2,
        "environments": 8,
        "rollout": 16,
        "parameter_sharing": "team",
    }
    one = learner(algorithm, environment=opposed(), updates=30, **settings)
    program = Program(one, jax.devices()[:1], 0, 1)
    begun = program.start()
    return one, begun, program.parameters(program.run(begun, 30)[0])


def test_teams_learn_parameters_of_their_own():
    one, begun, parameters = trained("ippo")
    assert isinstance(parameters.actor, Networks)
    for before, after in zip(
        jax.tree.leaves(begun.parameters), jax.tree.leaves(parameters), strict=True
    ):
        assert before.shape[2] == after.shape[1] == 2  # [D, S, N, …] and [S, N, …]
    for leaf in jax.tree.leaves(parameters.actor):
        assert (leaf[0, 0] != leaf[0, 1]).any()
    evaluated = evaluate(one, opposed(), parameters, "greedy", episodes=64, seed=1)[0]
    # Left finds every door, right none: of those that it may take, one is always another.
    assert (evaluated.by_agent[:, 0] == evaluated.lengths).all()
    assert (evaluated.by_agent[:, 1] == 0).all()


def test_each_agent_plays_by_the_parameters_of_its_team():
    one, _, parameters = trained("ippo")
    keys = jax.random.split(jax.random.key(5), 32)
    _, view = jax.vmap(opposed().reset)(keys)
    first = jax.tree.map(lambda x: x[0], parameters)
    spoiled = eqx.tree_at(
        lambda p: p.actor.each.head.bias, first, replace_fn=lambda x: x.at[1, 2].add(1e6)
    )
    act = jax.jit(functools.partial(one.act, greedy=True))
    (_, before), (_, after) = (act(p, one.memory(p, 32), view, keys) for p in (first, spoiled))
    np.testing.assert_array_equal(before[:, 0], after[:, 0])
    open_to_right = view.available[:, 1, 2]
    assert (after[open_to_right, 1] == 2).all() and (before[:, 1] != after[:, 1]).any()


def test_a_sets_step_depends_on_its_own_agents_alone():
    """Advantages, targets, and the norm that gradients are cut off at: of the set's own agents."""
    one = learner(
        "mappo",
        environment=opposed(),
        parameter_sharing="agent",
        normalise_values=True,
        max_gradient_norm=1e-3,
    )
    state = jax.jit(one.init)(jax.random.key(0), 0)
    _, samples, _ = jax.jit(rollout(one))(state)
    part = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), samples)
    learn = jax.jit(functools.partial(optimizer_step, one._loss, one.optimizer))
    carry = state.parameters, state.optimizer
    (expected, _), _ = learn(carry, part)
    other = dataclasses.replace(
        part,
        advantage=part.advantage.at[:, 1].multiply(-30.0),
        target=part.target.at[:, 1].add(100.0),
    )
    (got, _), _ = learn(carry, other)
    moved = 0
    for x, y, old in zip(*map(jax.tree.leaves, (expected, got, state.parameters)), strict=True):
        np.testing.assert_array_equal(x[0], y[0])
        moved += (x[0] != old[0]).any() and (x[1] != y[1]).any()
    assert moved > 4
    # Moments of returns are of the set's own agents, too.
    assert state.returns.mean.shape == (2,)


@pytest.mark.parametrize("settings", [{}, {"parameter_sharing": "team"}])
def test_shared_is_what_it_was(settings):
    """Of a game of one team, too, whose team is all agents."""
    expected, got = (
        learner("mappo", **more).players.draw(jax.random.key(2)) for more in ({}, settings)
    )
    assert jax.tree.structure(expected) == jax.tree.structure(got)
    jax.tree.map(np.testing.assert_array_equal, expected, got)


def q_learner(algorithm: str, environment: Environment) -> Any:
    settings = QLearning(
        environments=4,
        rollout=5,
        replay_size=40,
        batch_size=4,
        epochs=1,
        hidden=(8,),
        recurrent=True,
        mixing_width=4,
        parameter_sharing="agent",
    )
    build = algorithms.ALGORITHMS[algorithm].build
    return build(environment, settings, 1, 2, lambda optimizer: optimizer)


def test_values_of_each_agents_own():
    one = q_learner("iql", opposed())
    program = Program(one, jax.devices()[:1], 0, 1)
    begun = program.start()
    state, metrics = program.run(begun, 2)
    before, agent = begun.parameters.agent, program.parameters(state).agent
    assert isinstance(agent, Networks) and agent.sets == (0, 1)
    moved = [
        (old[0, 0] != new[0]).reshape(2, -1).any(1).all()
        for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(agent), strict=True)
    ]
    assert all(moved)
    assert np.isfinite(metrics.figures["value_error"]).all()


@pytest.mark.parametrize("algorithm", ["vdn", "qmix"])
def test_values_of_each_agents_own_are_mixed(algorithm):
    one = q_learner(algorithm, doors())
    state = jax.eval_shape(one.init, jax.random.key(0), 0)
    after, _ = jax.eval_shape(one.update, state)
    assert jax.tree.structure(after) == jax.tree.structure(state)
    assert isinstance(after.parameters.agent, Networks)


@pytest.mark.parametrize("kind", [PPO, QLearning])
def test_what_there_is_not_is_refused(kind):
    with pytest.raises(
        OptionError, match="parameter_sharing: expected shared, team or agent, got 'own'"
    ):
        kind(parameter_sharing="own")
