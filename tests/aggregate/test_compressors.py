"""Compressors: sizes on the wire, and that stated errors hold and are not idle."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradweave.aggregate import (
    Grid,
    MaxNorm,
    RandomK,
    RandomKUnscaled,
    TopK,
    TopKChunks,
    Uncompressed,
)
from gradweave.aggregate.bits import pack, unpack
from gradweave.errors import OptionError

DRAWS = 4000
SIZE = 48
COMPRESSORS = [
    Uncompressed(),
    MaxNorm(bits=2, block=None),
    MaxNorm(bits=3, block=16),
    MaxNorm(bits=8),
    Grid(step=0.05),
    RandomK(share=0.25),
    RandomK(share=1.0),
    RandomKUnscaled(share=0.25),
    TopK(share=0.1),
    TopK(share=1.0),
    TopKChunks(share=0.25, block=10),
]


OF_EACH_KIND = [*COMPRESSORS[:3], *COMPRESSORS[4:6], *COMPRESSORS[7:9], COMPRESSORS[10]]
"""Without those that do the same by other numbers."""


def vectors() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    one_large = np.full(SIZE, 0.02)
    one_large[::16] = 1.0
    return {
        "normal": rng.standard_normal(SIZE),
        "tiny": 1e-20 * rng.standard_normal(SIZE),
        "one large": one_large,
        "flat": np.ones(SIZE),
        "zero": np.zeros(SIZE),
        "one": np.eye(SIZE)[7] * -3,
    }


def arrived(compressor, *vectors: np.ndarray) -> np.ndarray:
    """[vectors, DRAWS, SIZE] what arrives."""

    def once(z, key):
        return compressor.decompress(compressor.compress(key, z), z.size, z.dtype)

    drawn = jax.vmap(once, in_axes=(None, 0))
    keys = jax.random.split(jax.random.key(1), DRAWS)
    batch = jnp.asarray(np.stack(vectors), jnp.float32)
    return np.asarray(jax.jit(jax.vmap(drawn, in_axes=(0, None)))(batch, keys), np.float64)


@functools.partial(jax.jit, static_argnums=0)
def sent(compressor, z: jax.Array) -> tuple[tuple, jax.Array]:
    """What is on the wire, and what arrives; as one program, which compiles sooner than its parts.

    So do trainings send it.
    """
    payload = compressor.compress(jax.random.key(0), z)
    return payload, compressor.decompress(payload, z.size, z.dtype)


@pytest.mark.parametrize("compressor", COMPRESSORS, ids=str)
def test_errors_stay_within_what_is_stated(compressor):
    alpha, sigma = compressor.relative_error(SIZE), compressor.absolute_error(SIZE)
    for z, came in zip(vectors().values(), arrived(compressor, *vectors().values()), strict=True):
        z = z.astype(np.float32)
        error = math.sqrt(((came - z) ** 2).sum(1).mean())
        norm = np.linalg.norm(z)
        if math.isfinite(alpha):
            assert error <= 1.03 * alpha * norm + 1e-6 * norm
        if math.isfinite(sigma):
            assert error <= 1.03 * sigma + 1e-6 * norm
        if compressor.unbiased:
            # Five standard errors of the mean, each element on its own, and rounding.
            grain = 1e-6 * (np.abs(z).max() + 1e-30) + (1e-8 if math.isfinite(sigma) else 0)
            assert (np.abs(came.mean(0) - z) <= 5 * came.std(0) / math.sqrt(DRAWS) + grain).all()


def worst_for_max_norm(compressor: MaxNorm, size: int) -> np.ndarray:
    c = (size - 1) / compressor.levels**2
    z = np.full(size, (math.sqrt(1 + c) - 1) / c / compressor.levels)
    z[0] = 1
    return z


@pytest.mark.parametrize(
    ("compressor", "z"),
    [
        (MaxNorm(bits=2, block=None), worst_for_max_norm(MaxNorm(bits=2, block=None), SIZE)),
        (MaxNorm(bits=4, block=None), worst_for_max_norm(MaxNorm(bits=4, block=None), SIZE)),
        (RandomK(share=0.25), np.ones(SIZE)),
        (RandomKUnscaled(share=0.25), np.ones(SIZE)),
        (TopK(share=0.25), np.ones(SIZE)),
    ],
    ids=str,
)
def test_the_relative_error_is_attained(compressor, z):
    (came,) = arrived(compressor, z)
    error = math.sqrt(((came - z) ** 2).sum(1).mean()) / np.linalg.norm(z)
    assert error == pytest.approx(compressor.relative_error(SIZE), rel=0.03)


@pytest.mark.parametrize("compressor", OF_EACH_KIND, ids=str)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_does_not_become_a_number(compressor, bad):
    """Under the elements that are sent: none is silently made a number."""
    came = np.asarray(sent(compressor, jnp.full(SIZE, bad, jnp.float32))[1])
    assert (came == 0).sum() + (~np.isfinite(came)).sum() == SIZE
    assert (~np.isfinite(came)).any()


def test_the_absolute_error_is_attained():
    grid = Grid(step=0.1)
    (came,) = arrived(grid, np.full(SIZE, 0.05))
    error = math.sqrt(((came - 0.05) ** 2).sum(1).mean())
    assert error == pytest.approx(grid.absolute_error(SIZE), rel=0.03)


@pytest.mark.parametrize(
    ("compressor", "size", "expected"),
    [
        (Uncompressed(), 1000, 4000),
        (MaxNorm(bits=8, block=None), 1000, 1000 + 4),
        (MaxNorm(bits=8, block=128), 1000, 1000 + 8 * 4),
        (MaxNorm(bits=4, block=None), 1000, 500 + 4),
        (MaxNorm(bits=3, block=None), 1000, 400 + 4),  # ten to a word
        (Grid(bits=16), 1000, 2000),
        (RandomK(share=0.1), 1000, 400 + 8),
        (TopK(share=0.1), 1000, 800),
        (TopK(share=0.001), 10, 8),
        (TopKChunks(), 2 * 4096, 2 * (96 + 16 + 8)),
        (TopKChunks(share=0.1, block=100), 1000, 100 + 28 + 80),  # 200 digits, 100 codes
    ],
    ids=str,
)
def test_bytes_on_the_wire(compressor, size, expected):
    payload, _ = sent(compressor, jnp.ones(size))
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(payload)) == expected


@pytest.mark.parametrize("compressor", OF_EACH_KIND, ids=str)
@pytest.mark.parametrize(("size", "dtype"), [(0, "float32"), (1, "float16"), (33, "bfloat16")])
def test_any_size_and_type(compressor, size, dtype):
    z = jnp.arange(size, dtype=dtype)
    _, came = sent(compressor, z)
    assert came.shape == z.shape and came.dtype == z.dtype
    assert np.isfinite(np.asarray(came, np.float32)).all()


def test_the_largest_element_arrives_whole():
    z = np.random.default_rng(3).standard_normal(SIZE).astype(np.float32)
    (came,) = arrived(MaxNorm(bits=2, block=None), z)
    at = np.abs(z).argmax()
    np.testing.assert_allclose(came[:, at], z[at], rtol=1e-6)


def test_beyond_the_grid():
    grid = Grid(step=1.0, bits=4)
    (came,) = arrived(grid, np.array([100.0, -100.0, 7.0]))
    np.testing.assert_array_equal(came[0], [7, -7, 7])


@functools.partial(jax.jit, static_argnums=1)
def there_and_back(codes: jax.Array, bits: int) -> tuple[jax.Array, jax.Array]:
    words = pack(codes, bits)
    return words, unpack(words, bits, len(codes))


@pytest.mark.parametrize("bits", range(1, 21))
def test_bits_come_back(bits):
    """Of one code more than fill a word, and of two full words: each length is compiled."""
    in_word = 32 // bits
    for length in (in_word + 1, 2 * in_word, *([0, 1] if bits in (1, 7, 20) else [])):
        draw = np.random.default_rng([bits, length])
        codes = draw.integers(0, 2**bits, (100, length), np.uint32)
        codes[0], codes[1] = 0, 2**bits - 1
        for each in codes:
            words, back = there_and_back(each, bits)
            assert len(words) == -(-length // in_word)
            assert np.array_equal(back, each)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: MaxNorm(bits=1), "bits: expected 2 to 16, got 1"),
        (lambda: MaxNorm(block=0), "block: expected 1"),
        (lambda: Grid(step=0.0), "step: expected a number above 0"),
        (lambda: Grid(step=math.nan), "step: expected a number above 0"),
        (lambda: RandomK(share=0), "share: expected a number above 0 and at most 1"),
        (lambda: TopK(share=1.5), "share"),
        (lambda: TopKChunks(block=0), "block: expected 1 to 65536, got 0"),
    ],
)
def test_refusals(make, said):
    with pytest.raises(OptionError, match=said):
        make()
