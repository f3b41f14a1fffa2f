"""Padding changes nothing, batches mix networks, and one program serves all of a size."""

import dataclasses
import functools

import numpy as np
import pytest

pytest.importorskip("jax")
pytest.importorskip("equinox")

import jax
import jax.numpy as jnp

from gradweave.environment import SchedulingEnvironment, Size, State, rounds, stack
from gradweave.environment import state as states
from gradweave.environment.problem import Problem
from tests.environment.episodes import (
    INVALID,
    SMALL,
    STEPS,
    Episodes,
    compilations,
    episodes,
    length,
    padded,
    without_limit,
)
from tests.environment.networks import SETTINGS, SMALL_NETWORKS, instance

WIDER = Size(servers=9, trees=19, hops=101, links=50, route=6)
MIXED = [
    ("bcube:n=2,k=1", "fixed all_reduce"),
    ("ring:5", "grown reduce_scatter"),
    ("irregular", "fixed all_reduce overlap"),
    ("complete:2", "grown all_reduce"),
    ("star:4", "fixed all_gather"),
]


def same(one, other) -> bool:
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(np.array_equal(a, b) for a, b in pairs)


def seen(problem: Problem, state: State) -> tuple:
    """All that a state says, of which its tables hold more than counts."""
    names = ("round", "stage", "stage_start", "turn", "sent", "left", "left_first", "count", "done",
             "pending", "holds", "selected", "selected_before", "sent_round", "sent_hop",
             "received", "complete")  # fmt: skip
    of_links = states.waiting(problem, state), states.room(problem, state)
    return *(getattr(state, name) for name in names), *of_links


def actions_of(played: Episodes, episode: int, size: Size) -> tuple[np.ndarray, np.ndarray]:
    """An episode's actions as another size numbers them; invalid ones become −1."""
    width = played.trees.shape[-1]
    trees = np.pad(played.trees[:, episode], ((0, 0), (0, size.trees - width)))
    number = played.workload[:, episode]
    valid = np.take_along_axis(
        played.workload_mask[:, episode], number.clip(0, SMALL.hops * width - 1)[:, None], axis=1
    )[:, 0]
    valid &= (number >= 0) & (number < SMALL.hops * width)
    return trees, np.where(valid, number // width * size.trees + number % width, -1)


@functools.partial(jax.jit, static_argnums=0)
def play(
    environment: SchedulingEnvironment,
    problem: Problem,
    trees: jax.Array,
    workloads: jax.Array,
):
    """Plays given actions: the steps and what is seen before each."""

    def step(state: State, action: tuple) -> tuple:
        made = environment.step(problem, state, *action)
        return made.state, (made, environment.observe(problem, state))

    return jax.lax.scan(step, environment.reset(problem), (trees, workloads))[1]


@pytest.mark.parametrize("setting", SETTINGS)
def test_padding_changes_nothing(setting: str):
    """Wider axes: same rewards and transfers; observations are the same and 0 beyond."""
    tried = instance("irregular", setting)
    played = episodes(padded(tried))
    environment = SchedulingEnvironment()
    for episode in range(2):
        seen = []
        for size in (SMALL, WIDER):
            actions = actions_of(played, episode, size)
            seen.append(play(environment, padded(tried, size), *actions))
        (narrow, narrow_seen), (wide, wide_seen) = seen
        for name in ("tree_reward", "workload_reward", "done", "truncated"):
            np.testing.assert_allclose(getattr(narrow, name), getattr(wide, name), atol=1e-6)
        end = length(played, episode)
        mine = played.tree_reward[:end, episode]
        np.testing.assert_allclose(mine, wide.tree_reward[:end], atol=1e-6)
        servers, trees = tried.size.servers, tried.size.trees
        for name in ("sent_round", "sent_hop"):
            one, other = (np.asarray(getattr(made.state, name)) for made in (narrow, wide))
            assert np.array_equal(one[:, :servers, :trees], other[:, :servers, :trees])
            assert (other[:, servers:] == -1).all()
            assert (other[:, :, trees:] == -1).all()
        for one, other in zip(
            jax.tree.leaves(narrow_seen), jax.tree.leaves(wide_seen), strict=True
        ):
            assert_padded(np.asarray(one), np.asarray(other))


def assert_padded(narrow: np.ndarray, wide: np.ndarray) -> None:
    """The wide one is the narrow one with zeros around it."""
    inside = tuple(slice(length) for length in narrow.shape)
    np.testing.assert_allclose(wide[inside], narrow, atol=1e-6)
    around = wide.copy()
    around[inside] = 0
    assert (around == 0).all()


def test_batches_mix_networks_and_elements_are_independent():
    tried = [instance(*which) for which in MIXED]
    problems = [without_limit(padded(one)) for one in tried]
    actions = [actions_of(episodes(problem), 0, SMALL) for problem in problems]
    environment = SchedulingEnvironment()
    alone = [
        play(environment, problem, *action)
        for problem, action in zip(problems, actions, strict=True)
    ]
    trees, workloads = (jnp.stack(column) for column in zip(*actions, strict=True))
    together = jax.vmap(functools.partial(play, environment))
    batch = together(stack(problems), trees, workloads)
    for element in range(len(MIXED)):
        mine = jax.tree.map(lambda leaf, i=element: leaf[i], batch)
        assert same(mine, alone[element])
    # Other actions of one element change that one only.
    batch_with = together(stack(problems), trees.at[2].set(False), workloads)
    for element in range(len(MIXED)):
        before, after = (
            jax.tree.map(lambda leaf, i=element: leaf[i], b) for b in (batch, batch_with)
        )
        assert same(before, after) == (element != 2)


def test_one_compilation_serves_all_problems_of_a_size():
    traces = []

    @jax.jit
    def play_on(problem: Problem) -> State:
        traces.append(problem.size)
        environment = SchedulingEnvironment()

        def step(_, state: State) -> State:
            trees = environment.tree_mask(problem, state)
            workload = environment.workload_mask(problem, state).argmax()
            return environment.step(problem, state, trees, workload).state

        return jax.lax.fori_loop(0, 3, step, environment.reset(problem))

    for name in SMALL_NETWORKS:
        for setting in SETTINGS:
            state = play_on(padded(instance(name, setting)))
            assert int(state.round) + int(state.sent) > 0
    assert traces == [SMALL]
    own = Problem.of(instance("ring:5"))
    play_on(own)
    assert traces == [SMALL, own.size]


def test_random_episodes_of_all_networks_are_one_program():
    episodes(padded(instance("ring:5")))
    before = compilations()
    for name, setting in MIXED:
        episodes(padded(instance(name, setting)))
    assert compilations() == before


def test_an_automatic_reset_starts_the_next_episode():
    """The step that ends an episode says so, and returns the first state of the next one."""
    problem = without_limit(padded(instance("ring:5", "fixed all_gather")))
    played = episodes(problem)
    episode = int(np.argmin([length(played, episode) for episode in range(8)]))
    end = length(played, episode)
    assert played.ended[end - 1, episode]
    trees, workloads = actions_of(played, episode, SMALL)
    twice = np.concatenate([np.arange(end), np.arange(STEPS - end) % end])
    actions = trees[twice], workloads[twice]
    going_on, _ = play(SchedulingEnvironment(auto_reset=True), problem, *actions)
    stopping, _ = play(SchedulingEnvironment(), problem, *actions)
    before = jax.tree.map(lambda leaf: leaf[: end - 1], (going_on, stopping))
    assert same(*before)
    for name in ("tree_reward", "workload_reward", "done", "truncated"):
        one, other = getattr(going_on, name)[:end], getattr(stopping, name)[:end]
        assert np.array_equal(one, other)
    assert going_on.done[end - 1]
    assert int(rounds(jax.tree.map(lambda leaf: leaf[end - 1], stopping.state))) > 0
    at_end = jax.tree.map(lambda leaf: leaf[end - 1], going_on.state)
    first = SchedulingEnvironment().reset(problem)
    assert same(seen(problem, at_end), seen(problem, first))
    again = min(2 * end, STEPS)
    for name in ("tree_reward", "workload_reward", "done"):
        one = np.asarray(getattr(going_on, name))
        assert np.array_equal(one[end:again], one[: again - end])


def test_of_many_episodes_those_that_go_on_keep_what_was_received():
    problem = padded(instance("ring:5", "fixed all_reduce"))
    two = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf], axis=-1), states.reset(problem))
    under_way = dataclasses.replace(two, received=jnp.ones_like(two.received))
    after = states.restarted(problem, under_way, jnp.array([False, True]))
    assert after.received[..., 0].all() and not after.received[..., 1].any()


def test_an_episode_is_cut_off_at_the_limit_on_rounds():
    """Nobody sends: each step is a round, the last one of which is truncated, not done well."""
    problem = dataclasses.replace(padded(instance("ring:5")), limit=jnp.int32(7))
    nothing = np.zeros((STEPS, SMALL.trees), bool), np.zeros(STEPS, np.int32)
    made, _ = play(SchedulingEnvironment(), problem, *nothing)
    assert made.done.tolist() == [False] * 6 + [True] * (STEPS - 6)
    assert np.array_equal(made.truncated, made.done)
    assert np.allclose(made.tree_reward, -5 / 20)
    resetting, _ = play(SchedulingEnvironment(auto_reset=True), problem, *nothing)
    following = np.arange(1, STEPS + 1) % 7
    assert np.array_equal(resetting.truncated, following == 0)
    assert np.array_equal(resetting.state.round, following)


def test_an_episode_done_in_its_last_allowed_round_is_not_cut_off():
    tried = instance("complete:2")
    problem = dataclasses.replace(padded(tried), limit=jnp.int32(1))
    workloads = np.zeros(STEPS, np.int32)
    workloads[1:3] = np.arange(2) * SMALL.trees + tried.hops.source
    made, _ = play(SchedulingEnvironment(), problem, np.ones((STEPS, SMALL.trees), bool), workloads)
    assert made.done[:3].tolist() == [False, False, True]
    assert not made.truncated[:3].any()
    assert np.isclose(made.tree_reward[2], 2 / 2 + 0.1 + 10)


@functools.partial(jax.jit, static_argnums=2)
def try_all(problem: Problem, state: State, numbers: tuple[int, ...]) -> tuple:
    """For each number, whether it changes nothing, and its reward; and what is available."""
    environment = SchedulingEnvironment()
    trees = jnp.ones(problem.root.shape, bool)
    made = jax.vmap(lambda workload: environment.step(problem, state, trees, workload))(
        jnp.array(numbers)
    )
    unchanged = jax.tree.map(
        lambda old, new: (old == new).reshape(len(numbers), -1).all(1), state, made.state
    )
    mask = environment.workload_mask(problem, state)
    following = environment.step(problem, state, trees, mask.argmax()).state
    unchanged = jnp.stack(jax.tree.leaves(unchanged)).all(0)
    return unchanged, made.workload_reward, mask, following


@pytest.mark.parametrize(
    "setting", ["fixed reduce_scatter", "fixed all_gather", "grown all_gather"]
)
def test_a_workload_that_is_not_available_is_not_sent(setting: str):
    """Every number, those of no workload included, at every step of an episode."""
    problem = Problem.of(instance("bcube:n=2,k=1", setting))
    numbers = tuple(range(-problem.allowed.size - 3, 2 * problem.allowed.size + 3))
    state = SchedulingEnvironment().reset(problem)
    tried_steps = 0
    while not state.done:
        unchanged, reward, mask, following = try_all(problem, state, numbers)
        if mask.any():
            available = np.isin(numbers, np.flatnonzero(mask))
            assert np.array_equal(unchanged, ~available)
            assert np.array_equal(np.asarray(reward) > 0, available)
            tried_steps += 1
        state = following
    assert tried_steps == int(problem.workloads)


def test_the_chance_of_invalid_workloads_is_real():
    """The random episodes of the other tests do try what is not available."""
    played = episodes(padded(instance("ring:5")))
    sending = played.workload_mask.any(-1)
    number = played.workload[sending]
    mask = played.workload_mask[sending]
    valid = (number >= 0) & (number < mask.shape[-1])
    valid &= mask[np.arange(len(mask)), number.clip(0, mask.shape[-1] - 1)]
    assert INVALID / 3 < (~valid).mean() < 3 * INVALID
