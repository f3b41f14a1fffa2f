"""All outer steps by hand, in JAX; in PyTorch they are in `test_torch_steps.py`."""

import functools

import pytest

pytest.importorskip("optax", reason="the extra train is not installed")

import jax
import jax.numpy as jnp
import numpy as np
import optax

from gradweave import aggregate
from gradweave.aggregate.spec import LocalSpec, parse
from gradweave.errors import OptionError
from tests.aggregate.local_reference import outer_steps

N, SIZE, RATE, STEPS = 4, 21, 0.1, 24
AIMS = np.random.default_rng(0).standard_normal((N, SIZE)).astype(np.float32)
SPECS = [
    "diloco:local_steps=4",
    "noloco:local_steps=3,seed=5",
    "noloco:local_steps=3,outer_rate=0.6,consensus=0.8,mixing=matchings",
    "gasloc:local_steps=3,outer_momentum=0.6",
    "gasloc:local_steps=4,consensus=0.5,mixing=matchings,network=hypercube:dimension=2",
    "sparseloco:local_steps=3,share=0.25,block=8,outer_rate=0.8",
    "sparse_averaging:local_steps=6,fragments=3,delay=1,seed=2",
    "sparse_averaging:local_steps=4,fragments=1,delay=2,correction=0.7,smoothing=0.3",
]


@functools.cache
def trained(spec: str, stop: int = 0):
    """[STEPS, N, SIZE] θ, [STEPS, N] bytes and [STEPS, N, SIZE] φ; in two runs, by a copy."""
    optimizer = aggregate.aggregator(spec, N)(optax.sgd(RATE))

    def step(carry, _):
        x, state = carry
        updates, state = jax.vmap(optimizer.update, axis_name="server")(x - AIMS, state, x)
        x += updates
        return (x, state), (x, aggregate.sent_bytes(state), state.shared)

    begin = jnp.zeros((N, SIZE))
    carry, made = (begin, jax.vmap(optimizer.init)(begin)), []
    for steps in (stop, STEPS - stop):
        carry, found = jax.jit(lambda carry, n=steps: jax.lax.scan(step, carry, None, n))(carry)
        carry = jax.tree.map(np.asarray, carry)
        made.append(found)
    return [np.concatenate(each) for each in zip(*made, strict=True)]


def parts_of(spec: LocalSpec):
    """The places of each communication of sparse averaging: shares of a new order every time."""
    fragments = spec.method.fragments
    length = -(-SIZE // fragments)

    def parts(number: int) -> np.ndarray:
        turns, turn = divmod(number - 1, fragments)
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(spec.seed), 0), turns)
        order = np.asarray(jax.random.permutation(key, SIZE))
        return order[turn * length : (turn + 1) * length]

    return parts


@pytest.mark.parametrize("text", SPECS)
def test_by_hand(text):
    spec = parse(text)
    assert isinstance(spec, LocalSpec)
    expected = outer_steps(
        spec.method,
        spec.mixing_matrix(N).weights,
        lambda theta, _: theta + RATE * (AIMS - theta),
        np.zeros((N, SIZE)),
        STEPS,
        parts_of(spec) if spec.method.scattered else None,
    )
    np.testing.assert_allclose(trained(text)[0], expected, atol=1e-5)
    assert np.abs(expected[-1]).max() > 0.5, "the workers have moved"


@pytest.mark.parametrize("text", SPECS[1:])
def test_a_training_goes_on_with_the_same_bits(text):
    """Ten steps are between a message of sparse averaging and its average."""
    assert np.array_equal(trained(text, stop=10)[0], trained(text)[0])


@pytest.mark.parametrize(
    ("number", "each"),
    [
        (1, 4 * SIZE),  # a partner
        (3, 2 * 4 * SIZE),  # two neighbours
        (5, (N - 1) * (4 + 4 + 2 * 3 * 4)),  # 6 digits, 6 codes and 2 magnitudes of 3 chunks
        (6, 2 * (N - 1) / N * 4 * SIZE / 3),  # a third of the parameters
    ],
)
def test_bytes(number, each):
    spec = parse(SPECS[number])
    assert isinstance(spec, LocalSpec)
    sent, interval = trained(SPECS[number])[1], spec.method.interval
    assert sent[interval - 1 :: interval] == pytest.approx(each)
    assert not np.delete(sent, np.s_[interval - 1 :: interval], 0).any()


def test_a_worker_without_a_partner():
    """Of three workers one is idle in each exchange."""
    spec = parse("noloco:local_steps=2")
    assert isinstance(spec, LocalSpec)
    optimizer = aggregate.aggregator(spec.text, 3)(optax.sgd(RATE))
    x, aims = jnp.zeros((3, SIZE)), AIMS[:3]
    state, update = jax.vmap(optimizer.init)(x), jax.vmap(optimizer.update, axis_name="server")
    for _ in range(6):
        updates, state = update(x - aims, state, x)
        x += updates
    weights = spec.mixing_matrix(3).weights
    assert (np.diagonal(weights, axis1=1, axis2=2) == 1).any(1).all()
    expected = outer_steps(
        spec.method, weights, lambda theta, _: theta + RATE * (aims - theta), 0 * aims, 6
    )
    np.testing.assert_allclose(x, expected[-1], atol=1e-5)


def test_the_mean_of_gossip_moves_like_diloco():
    """With the same aims, on any mixing matrix."""
    one = trained("gasloc:local_steps=4,outer_rate=0.7,outer_momentum=0.9")[0].mean(1)
    np.testing.assert_allclose(one, trained("diloco:local_steps=4")[0].mean(1), atol=1e-5)


def test_all_have_the_same_where_all_average():
    for text in (SPECS[0], SPECS[5]):
        shared = trained(text)[2]
        assert (shared == shared[:, :1]).all() and shared[-1].any()


def test_late_workers_of_sparse_averages():
    """Worker 1 makes no step: its message does not count, and what it has left over decays."""
    method = aggregate.SparseLoCo(local_steps=2, decay=0.5)
    optimizer = aggregate.local_updates(
        method, optax.sgd(1.0), 2, aggregate.TopKChunks(share=0.5, block=2)
    )
    x = jnp.zeros((2, 2))
    state = jax.vmap(optimizer.init)(x)
    for active in ([1, 1], [1, 1], [1, 0], [1, 0]):
        update = jax.vmap(
            lambda g, s, p, on: optimizer.update(g, s, p, active=on), axis_name="server"
        )
        updates, state = update(jnp.array([[-2.0, -1.0]] * 2), state, x, jnp.array(active))
        x = x + updates
    # First e = (4, 2), of which 4 is sent; then (0, 1) + (4, 2), and of worker 0 alone 4 is sent.
    np.testing.assert_array_equal(x, [[8, 0], [8, 0]])
    np.testing.assert_array_equal(state.momentum, [[0, 3], [0, 1]])


def test_refusals():
    adam, ring = optax.adam(1.0), aggregate.MixingMatrix.ring(N)
    with pytest.raises(OptionError, match="noloco: neighbours send each other one vector"):
        aggregate.local_updates(aggregate.NoLoCo(), adam, N, aggregate.MaxNorm())
    with pytest.raises(OptionError, match="diloco: all workers average, without a mixing matrix"):
        aggregate.local_updates(aggregate.DiLoCo(), adam, N, mixing=ring)
