"""Actions as numbers: what an episode does and pays is what it does with selections as sets."""

import functools

import numpy as np
import pytest

pytest.importorskip("jax")
pytest.importorskip("equinox")

import equinox as eqx
import jax
import jax.numpy as jnp

from gradweave.environment import Rewards
from gradweave.environment.numbered import NumberedEnvironment, every_tree, random_workload
from gradweave.environment.problem import Problem
from gradweave.environment.state import FLOW_TREE_SELECTION
from gradweave.errors import OptionError
from gradweave.verifier import verify
from tests.environment.networks import instance
from tests.environment.reference import Replay

pytestmark = pytest.mark.usefixtures("quick_compilation")

INSTANCES = (
    instance("bcube:n=2,k=1", "grown all_gather"),
    instance("ring:5", "fixed all_reduce"),
    instance("jellyfish:switches=3,degree=2,servers_per_switch=2,seed=0", "grown reduce_scatter"),
)
STEPS = 220
EPISODES = 24


def draw(key: jax.Array, mask: jax.Array) -> jax.Array:
    rank = jax.random.uniform(key) * mask.sum()
    return jnp.argmax(jnp.cumsum(mask) > rank)


@functools.cache
def played(selection: str):
    """Random episodes that keep to the masks, and all that was said on the way."""
    environment = NumberedEnvironment(INSTANCES, selection=selection)

    def step(state, key):
        one, other, nothing = jax.random.split(key, 3)
        tree_mask, workload_mask = environment.tree_mask(state), environment.workload_mask(state)
        if selection == "multi_hot":
            trees = tree_mask & jax.random.bernoulli(one, 0.4, tree_mask.shape)
        else:
            trees = draw(one, tree_mask)
        workload = draw(other, workload_mask)
        made = environment.step(nothing, state, trees, workload)
        said = (
            *(state.state.turn, state.done, tree_mask, workload_mask, trees, workload),
            *(made.tree_reward, made.workload_reward, made.done, made.truncated),
        )
        after = jax.tree.map(lambda old, new: jnp.where(state.done, old, new), state, made.state)
        return after, said

    def play(key):
        begin, key = jax.random.split(key)
        return jax.lax.scan(step, environment.reset(begin), jax.random.split(key, STEPS))

    keys = jax.random.split(jax.random.key(3), EPISODES)
    last, said = jax.jit(jax.vmap(play))(keys)
    return environment, last, [np.asarray(column) for column in said]


@pytest.mark.parametrize("selection", ["one_by_one", "multi_hot"])
def test_episodes_are_those_of_the_reference(selection: str):
    environment, last, columns = played(selection)
    size, finished, seen = environment.size, 0, set()
    for episode in range(EPISODES):
        which = int(last.which[episode])
        seen.add(which)
        again, chosen = Replay(INSTANCES[which], Rewards()), set()
        for now in zip(*(column[episode] for column in columns), strict=True):
            turn, over, tree_mask, workload_mask, trees, workload, *rewards, done, truncated = now
            if over:
                break
            expected_trees, expected_workloads = again.allowed(size.trees)
            selecting = turn == FLOW_TREE_SELECTION
            assert selecting == again.selecting
            mask = tree_mask if selection == "multi_hot" else tree_mask[1:]
            assert set(np.flatnonzero(mask)) == set(expected_trees) - chosen
            assert np.flatnonzero(workload_mask[1:]).tolist() == expected_workloads
            assert workload_mask[0] == selecting
            if selection == "one_by_one":
                assert tree_mask[0] == (not selecting or bool(chosen))
            if selection == "one_by_one" and selecting and trees > 0:
                chosen.add(int(trees) - 1)
                expected = (0.0, 0.0)
            else:
                if selection == "one_by_one":
                    trees = np.isin(np.arange(size.trees), list(chosen))
                expected = again.step(trees, int(workload) - 1)
                chosen = set()
            np.testing.assert_allclose(rewards, expected, atol=1e-5)
            assert done == (again.done or truncated)
        if again.done:
            finished += 1
            made = environment.schedule(jax.tree.map(lambda leaf, i=episode: leaf[i], last))
            assert verify(made).valid
            assert made.topology is INSTANCES[which].topology
    assert finished > EPISODES / 2
    assert seen == {0, 1, 2}


@pytest.mark.parametrize("never", ["workloads", "trees"])
def test_an_episode_that_only_waits_is_cut_off(never: str):
    """A learner that ignores the masks gets no endless episode."""
    tried = INSTANCES[0]
    environment = NumberedEnvironment(tried)
    limit, flows, trees = int(Problem.of(tried).limit), 12, 4
    step = eqx.filter_jit(environment.step)
    state = environment.reset(jax.random.key(0))
    steps, done = 0, False
    while not done:
        tree = 0 if never == "trees" or steps > 0 else 1
        made = step(jax.random.key(0), state, jnp.asarray(tree), jnp.asarray(0))
        state, done = made.state, bool(made.done)
        steps += 1
    assert made.truncated
    assert steps == (limit if never == "trees" else flows + limit * (trees + 1))


@pytest.mark.parametrize(
    ("instances", "options", "message"),
    [
        ((), {}, "instances: expected at least one, got none"),
        (INSTANCES, {"selection": "two_hot"}, "selection: expected one_by_one or multi_hot, got"),
        (
            INSTANCES,
            {"tree_policy": every_tree, "workload_policy": random_workload},
            "tree_policy, workload_policy: with both given no agent is left",
        ),
        (INSTANCES, {"size": INSTANCES[0].size}, "size: 'ring.*' needs servers of 5 or more"),
    ],
)
def test_options_that_make_no_environment(instances: tuple, options: dict, message: str):
    with pytest.raises(OptionError, match=message):
        NumberedEnvironment(instances, **options)
