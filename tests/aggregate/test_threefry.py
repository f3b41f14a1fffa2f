"""PyTorch's tensors have the numbers of JAX's keys, and compressors the same messages of both."""

import itertools

import pytest

pytest.importorskip("jax")
pytest.importorskip("torch")

import jax
import jax.numpy as jnp
import numpy as np
import torch

from gradweave.aggregate import (
    Grid,
    MaxNorm,
    RandomK,
    RandomKUnscaled,
    TopK,
    Uncompressed,
    threefry,
)
from gradweave.aggregate.payloads import as_bytes, from_bytes

SEEDS = (0, 1, 123_456_789, 2**32 - 1)


def of_jax(key: threefry.Key) -> jax.Array:
    return jax.random.wrap_key_data(jnp.array(key, jnp.uint32))


@pytest.mark.parametrize("seed", SEEDS)
def test_keys_are_folded_and_split_alike(seed):
    key, other = threefry.key_of(seed), jax.random.key(np.uint32(seed))
    for number in (0, 7, 2**31 + 5):
        folded = threefry.fold_in(key, number)
        assert folded == tuple(jax.random.key_data(jax.random.fold_in(other, number)).tolist())
    parts = jax.random.key_data(jax.random.split(other, 3)).tolist()
    assert threefry.split(key, 3) == list(map(tuple, parts))


@pytest.mark.parametrize("count", [0, 1, 5, 65_537])
def test_numbers_are_the_same_bits(count, monkeypatch):
    key = (17, 2**32 - 3)
    drawn = jax.random.bits(of_jax(key), (count,))
    np.testing.assert_array_equal(threefry.bits(key, count).numpy().view(np.uint32), drawn)
    uniform = jax.random.uniform(of_jax(key), (count,), jnp.float32)
    np.testing.assert_array_equal(threefry.uniform(key, count).numpy(), uniform)
    monkeypatch.setattr(threefry, "_AT_ONCE", 1000)
    np.testing.assert_array_equal(threefry.uniform(key, count).numpy(), uniform)


@pytest.mark.parametrize("size", [1, 2, 1000, 5000])  # one, two and three sorts
def test_permutations_are_the_same(size):
    expected = jax.random.permutation(of_jax((3, 4)), size)
    np.testing.assert_array_equal(threefry.permutation((3, 4), size).numpy(), expected)


VECTORS = {
    "normal": np.random.default_rng(0).standard_normal(1000),
    "of equal sizes": np.tile([0.5, -0.5, 0.25], 100),
    "zeros": np.zeros(7),
    "one": np.array([3.0]),
}
NOT_FINITE = np.array([1.0, np.nan, -np.inf, 2.0])
"""Of which only the grid says what becomes."""
COMPRESSORS = [
    Uncompressed(),
    MaxNorm(bits=3, block=16),
    MaxNorm(bits=8, block=None),
    Grid(step=0.01, bits=12),
    RandomK(share=0.3),
    RandomKUnscaled(share=0.3),
    TopK(share=0.4),
]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("compressor", "vector"),
    [*itertools.product(COMPRESSORS, VECTORS), (Grid(step=0.01, bits=12), "not finite")],
    ids=str,
)
def test_messages_have_the_same_bytes_and_arrive_alike(compressor, vector, dtype):
    key, numbers = (5, 6), VECTORS.get(vector, NOT_FINITE).astype(np.float32)
    x, other = jnp.asarray(numbers, dtype), torch.from_numpy(numbers).to(getattr(torch, dtype))
    theirs, payload = compressor.compress(of_jax(key), x), compressor.compress(key, other)
    message = as_bytes(payload)
    assert message.numel() == sum(leaf.nbytes for leaf in jax.tree.leaves(theirs))
    if not isinstance(compressor, TopK):  # JAX's come by size, those of tensors by index
        sent = [np.asarray(leaf).view(np.uint8).reshape(-1) for leaf in jax.tree.leaves(theirs)]
        np.testing.assert_array_equal(message.numpy(), np.concatenate(sent))
    arrived = compressor.decompress(from_bytes(message, payload), len(numbers), torch.float32)
    expected = compressor.decompress(theirs, len(numbers), jnp.float32)
    # XLA may multiply by 1/3 where PyTorch divides by 3.
    np.testing.assert_allclose(arrived.numpy(), np.asarray(expected), rtol=3e-7)


def test_the_largest_of_tensors_with_nan_are_as_many():
    top = TopK(share=0.5)
    payload = top.compress((0, 0), torch.tensor([1.0, torch.nan, 2.0, torch.nan, torch.inf, 0.5]))
    assert payload["values"].shape == (3,)
