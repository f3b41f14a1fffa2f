"""Random workloads are uniform, and rollouts on packed states play the environment's own rules."""

import functools
from collections.abc import Callable

import numpy as np
import pytest

pytest.importorskip("jax")
pytest.importorskip("equinox")

import jax
import jax.numpy as jnp

from gradweave.environment import Problem, SchedulingEnvironment, Size, State
from gradweave.environment import state as states
from gradweave.environment.flow_tree_selection import is_turn, select
from gradweave.environment.random_policy import draw, hashed, scaled
from gradweave.environment.rollouts import Episodes, Rollouts
from gradweave.environment.workload_scheduling import schedule
from gradweave.errors import OptionError
from gradweave.verify import verify
from tests.environment.networks import instance

QUICK = pytest.mark.usefixtures("quick_compilation")

COMMON = Size(servers=10, trees=20, hops=112, links=61, route=4)
"""Holds all networks that are tried but DCell, so that one program replays them."""

TRIED = (
    ("bcube:n=3,k=1", "fixed all_reduce"),
    ("bcube:n=3,k=1", "grown all_reduce"),
    ("dcell:n=6,k=1", "fixed reduce_scatter"),  # 42 trees take two words
    ("dcell:n=6,k=1", "grown reduce_scatter"),
    ("jellyfish:reference=J10", "fixed all_reduce"),  # routes of four links
    ("jellyfish:reference=J10", "grown all_gather"),
    ("irregular", "fixed all_reduce"),  # capacities above 1
    ("lopsided", "grown all_reduce"),
    ("complete:2", "grown all_reduce"),
)


@functools.cache
def played(name: str, setting: str, share: float = 1.0) -> Episodes:
    problem = Problem.of(instance(name, setting))
    return Rollouts(problem, 64, share=share, schedules=True)(jax.random.key(0))


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


@jax.jit
def _replayed(problem: Problem, workloads: jax.Array) -> tuple[State, jax.Array, jax.Array]:
    """The environment after workloads, with its round and whether each one was available.

    Nothing is sent where a workload is below 0.
    """
    environment = SchedulingEnvironment()
    everything = jnp.ones(problem.root.shape, bool)

    def send(before: State, workload: jax.Array) -> tuple[State, tuple[jax.Array, jax.Array]]:
        # Whoever's turn it is: a round begins with a step of flow-tree selection.
        begun = environment.step(problem, before, everything, workload).state
        state = states.where(is_turn(before), begun, before)
        available = environment.workload_mask(problem, state)[workload]
        after = environment.step(problem, state, everything, workload).state
        return states.where(workload < 0, before, after), (state.round, available)

    state, (when, available) = jax.lax.scan(send, environment.reset(problem), workloads)
    return state, when, available


@QUICK
@pytest.mark.parametrize(("name", "setting"), TRIED)
def test_rollouts_replay_in_the_environment(name: str, setting: str):
    tried, episodes = instance(name, setting), played(name, setting)
    problem = Problem.of(tried, COMMON if tried.size.servers <= COMMON.servers else tried.size)
    trees, transfers = len(problem.root), problem.pending.size
    assert episodes.sent_round is not None
    assert episodes.sent_hop is not None
    for one in (0, int(episodes.rounds[0].argmin())):
        sent = np.asarray(episodes.sent_round[one])
        workload = np.asarray(episodes.sent_hop[one]) * trees + np.arange(sent.shape[1])
        order = np.argsort(sent[sent >= 0], kind="stable")
        count = len(order)
        workloads = np.full(transfers, -1, np.int32)
        workloads[:count] = workload[sent >= 0][order]
        state, when, available = _replayed(problem, workloads)
        assert np.asarray(available)[:count].all()
        # A workload left that could be sent would not have let the environment's round end.
        assert (np.asarray(when)[:count] == sent[sent >= 0][order]).all()
        assert state.done
        assert int(state.round) == int(episodes.rounds[0, one])


@QUICK
@pytest.mark.parametrize(
    ("name", "setting", "share"),
    [(*tried, 1.0) for tried in TRIED] + [(*tried, 0.4) for tried in TRIED[2:8:2]],
)
def test_rollouts_are_schedules(name: str, setting: str, share: float):
    tried, episodes = instance(name, setting), played(name, setting, share)
    assert episodes.sent_round is not None
    assert episodes.sent_hop is not None
    for one in range(4):
        made = tried.schedule(episodes.sent_round[one], episodes.sent_hop[one])
        verdict = verify(made)
        assert verdict.valid, verdict.violation
        assert int(np.max(episodes.sent_round[one])) + 1 == int(episodes.rounds[0, one])


@functools.partial(jax.jit, static_argnums=3)
def _stepped(problem: Problem, keys: jax.Array, share: jax.Array, steps: int) -> tuple:
    """Rounds that episodes take, and whether they ended in so many steps."""
    environment = SchedulingEnvironment()

    def step(state: State, key: jax.Array) -> State:
        trees_key, key = jax.random.split(key)
        trees = jax.random.bernoulli(trees_key, share, problem.root.shape)
        hop, tree, _ = draw(problem, state, jax.random.bits(key, (), jnp.uint32))
        after = environment.step(problem, state, trees, hop * problem.root.shape[0] + tree).state
        return states.where(state.done, state, after)

    def steps_of_all(carry: tuple[State, jax.Array]) -> tuple[State, jax.Array]:
        state, number = carry
        now = jax.vmap(lambda key: jax.random.fold_in(key, number))(keys)
        return jax.vmap(step)(state, now), number + 1

    first = environment.reset(problem)
    begun = jax.tree.map(lambda x: jnp.broadcast_to(x, (len(keys), *jnp.shape(x))), first)
    last, _ = jax.lax.while_loop(
        lambda carry: ~carry[0].done.all() & (carry[1] < steps), steps_of_all, (begun, jnp.array(0))
    )
    return last.round, last.done


FEW = Size(servers=6, trees=12, hops=32, links=24, route=3)
"""Holds the networks on which rounds are counted."""
KEYS = 4000


@pytest.fixture(scope="module")
def stepped() -> Callable[..., tuple]:
    """One program for all cases; with XLA's optimisations, as it runs for long without them."""
    problem = Problem.of(instance("irregular", "fixed all_reduce"), FEW)
    keys = jax.random.split(jax.random.key(2), KEYS)
    compiled = _stepped.lower(problem, keys, jnp.float32(1), 1000).compile()
    return lambda problem, share: compiled(problem, keys, jnp.float32(share))


@QUICK
@pytest.mark.parametrize("share", [1.0, 0.25])
@pytest.mark.parametrize(
    ("name", "setting"),
    [("bcube:n=2,k=1", "grown all_reduce"), ("irregular", "fixed all_reduce")],
)
def test_rollouts_take_as_many_rounds_as_the_environment(stepped, name, setting, share: float):
    tried = instance(name, setting)
    taken, done = (np.asarray(x) for x in stepped(Problem.of(tried, FEW), share))
    assert done.all()
    play = Rollouts(Problem.of(tried), KEYS // 4, episodes=4, share=share)
    rolled = np.asarray(play(jax.random.key(3)).rounds)
    most = max(taken.max(), rolled.max()) + 1
    both = np.stack([np.bincount(x.reshape(-1), minlength=most) for x in (taken, rolled)])
    both = both[:, both.sum(0) >= 20]
    expected, freedom = both.sum(0) / 2, both.shape[1] - 1
    differ = ((both - expected) ** 2 / expected).sum() - freedom
    assert differ < 5 * (2 * max(freedom, 1)) ** 0.5


@QUICK
def test_rollouts_repeat_with_their_key_and_do_not_see_each_other():
    problem = Problem.of(instance("bcube:n=2,k=1", "grown all_gather"))
    play = Rollouts(problem, 16, episodes=3, schedules=True)
    one, again, other = (play(jax.random.key(seed)) for seed in (4, 4, 5))
    assert one.rounds.shape == (3, 16)
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), one, again))
    assert (one.sent_hop != other.sent_hop).any()
    assert len(np.unique(np.asarray(one.sent_hop), axis=0)) > 1


@QUICK
def test_padding_changes_nothing():
    tried = instance("irregular", "fixed all_reduce")
    size = tried.size
    larger = type(size)(size.servers + 2, size.trees + 3, size.hops + 5, size.links + 4, size.route)
    one, other = (
        Rollouts(problem, 32)(jax.random.key(6)).rounds
        for problem in (Problem.of(tried), Problem.of(tried, larger))
    )
    assert (one == other).all()


def test_what_rollouts_do_not_do():
    overlapping = Problem.of(instance("ring:5", "fixed all_reduce overlap"))
    with pytest.raises(OptionError, match="overlap"):
        Rollouts(overlapping)
    for share in (0.0, 1.5):
        with pytest.raises(OptionError, match="share"):
            Rollouts(Problem.of(instance("ring:5")), share=share)
