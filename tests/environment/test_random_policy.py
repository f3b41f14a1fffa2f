"""Random workloads are uniform; environments side by side play as each does alone."""

import functools

import numpy as np
import pytest

pytest.importorskip("jax")
pytest.importorskip("equinox")

import jax
import jax.numpy as jnp

from gradweave.environment import SchedulingEnvironment, Size, State
from gradweave.environment import state as states
from gradweave.environment.flow_tree_selection import at_once, select
from gradweave.environment.problem import Problem
from gradweave.environment.random_policy import draw, hashed, scaled
from gradweave.environment.workload_scheduling import schedule
from tests.environment.networks import instance

COMMON = Size(servers=10, trees=20, hops=224, links=61, route=4)
"""Holds two of the networks, so that one compilation serves both."""
QUICK = pytest.mark.usefixtures("quick_compilation")


def spread(counts: np.ndarray) -> float:
    """χ² against equal counts, in standard deviations from what chance leads to."""
    expected, freedom = counts.mean(), len(counts) - 1
    return float((((counts - expected) ** 2 / expected).sum() - freedom) / (2 * freedom) ** 0.5)


def in_the_middle(problem: Problem, sends: int) -> State:
    """A state in the first round in which something can be sent, after some sends."""
    trees = jnp.arange(len(problem.root)) % 4 != 1
    state = jax.jit(select)(problem, states.reset(problem), trees)
    step, masked = jax.jit(schedule), jax.jit(SchedulingEnvironment().workload_mask)
    for number in range(sends):
        available = np.flatnonzero(masked(problem, state))
        state = step(problem, state, available[number * 7 % len(available)])
    return state


@QUICK
@pytest.mark.parametrize(
    ("name", "setting", "sends"),
    [
        ("bcube:n=3,k=1", "grown all_gather", 3),
        ("dcell:n=4,k=1", "fixed all_gather", 5),
        ("lopsided", "grown all_reduce", 4),
    ],
)
def test_workloads_are_drawn_uniformly(name: str, setting: str, sends: int):
    problem = Problem.of(instance(name, setting))
    state = in_the_middle(problem, sends)
    mask = np.asarray(jax.jit(SchedulingEnvironment().workload_mask)(problem, state))
    bits = jax.random.bits(jax.random.key(1), (300 * int(mask.sum()),), jnp.uint32)
    hop, tree, can = jax.jit(jax.vmap(lambda bits: draw(problem, state, bits)))(bits)
    drawn = np.bincount(np.asarray(hop * len(problem.root) + tree), minlength=mask.size)
    assert can.all()
    assert not drawn[~mask].any()
    assert abs(spread(drawn[mask])) < 5


def test_nothing_is_drawn_where_nothing_can_be_sent():
    problem = Problem.of(instance("ring:5"))
    assert not jax.jit(draw)(problem, states.reset(problem), np.uint32(7))[2]


def test_random_bits_scale_to_equal_shares():
    bits = jnp.arange(2**16, dtype=jnp.uint32) << 16
    for total in (1, 3, 24, 1000):
        counts = np.bincount(np.asarray(scaled(bits, jnp.uint32(total))), minlength=total)
        assert len(counts) == total
        assert np.ptp(counts) <= 1


def test_hashes_of_counters_look_random():
    numbers = hashed(jnp.uint32(12345) ^ hashed(jnp.arange(2**16, dtype=jnp.uint32)))
    for shift in (0, 8, 16, 24):
        counts = np.bincount(np.asarray(numbers >> shift & 0xFF), minlength=256)
        assert abs(spread(counts)) < 5
    following = np.asarray(numbers[1:] >> 28 << 4 | numbers[:-1] >> 28)
    assert abs(spread(np.bincount(following, minlength=256))) < 5


@functools.partial(jax.jit, static_argnums=2)
def _played(problem: Problem, seeds: jax.Array, steps: int) -> tuple[State, jax.Array]:
    """Environments side by side under random policies, and how many of each one's steps counted."""
    environment = SchedulingEnvironment(auto_reset=True)

    def step(state: State, seed: jax.Array, number: jax.Array) -> tuple[State, jax.Array]:
        bits = hashed(seed ^ hashed(number))
        trees = jax.random.bernoulli(jax.random.key(bits), 0.6, problem.root.shape)
        hop, tree, _ = draw(problem, state, bits)
        made = environment.step(problem, state, trees, hop * len(problem.root) + tree)
        return made.state, made.workload_reward > 0

    def of_all(states: State, number: jax.Array) -> tuple[State, jax.Array]:
        return jax.vmap(step, in_axes=(0, 0, None))(states, seeds, number)

    first = jax.vmap(lambda _: environment.reset(problem))(seeds)
    last, sent = jax.lax.scan(of_all, first, jnp.arange(steps, dtype=jnp.uint32))
    return last, sent.sum(0)


@functools.partial(jax.jit, static_argnums=2)
def _in_batches(problem: Problem, seeds: jax.Array, steps: int) -> tuple[State, jax.Array]:
    return jax.vmap(lambda seeds: _played(problem, seeds, steps))(seeds)


@QUICK
@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("dcell:n=6,k=1", "fixed reduce_scatter"),  # 42 trees take two words
        ("jellyfish:reference=J10", "grown all_reduce"),  # routes of four links
        ("irregular", "fixed all_reduce overlap"),  # capacities above 1
    ],
)
def test_environments_side_by_side_play_as_each_does_alone(name: str, setting: str):
    """More than select at once, at different places of their rounds; and batches of batches."""
    tried, many, steps = instance(name, setting), 100, 150
    large = tried.topology.num_servers > COMMON.servers
    problem = Problem.of(tried, None if large else COMMON)
    assert at_once(problem, many) < many
    seeds = jax.random.bits(jax.random.key(0), (many,), jnp.uint32)
    together, sent = _played(problem, seeds, steps)
    assert len(np.unique(np.asarray(together.sent))) > 2
    nested = together, sent
    if not large:  # each size is compiled
        nested = _in_batches(problem, seeds.reshape(4, -1), steps)
        nested = jax.tree.map(lambda leaf: leaf.reshape(many, *leaf.shape[2:]), nested)
    alone = [_played(problem, seeds[which : which + 1], steps) for which in (0, many - 1)]
    alone = jax.tree.map(lambda *leaves: np.concatenate(leaves), *alone)
    assert (sent > steps // 2).all()
    ends = np.array([0, many - 1])
    for one, other in (
        (jax.tree.map(lambda leaf: leaf[ends], (together, sent)), alone),
        ((together, sent), nested),
    ):
        assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), one, other))
