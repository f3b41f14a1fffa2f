"""Sets as bits of words, and integer types that are as short as possible."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, UInt32

WORD = 32
"""Bits in a word."""


def packed(table: Bool[Array, "..."], axis: int = -1) -> UInt32[Array, "..."]:
    """Truth values as bits; a word has those of `WORD` places along an axis.

    >>> import jax.numpy as jnp
    >>> packed(jnp.arange(40) % 20 == 0).tolist()
    [1048577, 0]
    """
    axis %= table.ndim
    words, spare = -(-table.shape[axis] // WORD), [(0, 0)] * table.ndim
    spare[axis] = (0, WORD * words - table.shape[axis])
    shape = (*table.shape[:axis], words, WORD, *table.shape[axis + 1 :])
    shift = jnp.arange(WORD, dtype=jnp.uint32).reshape(WORD, *(1,) * (table.ndim - axis - 1))
    bits = jnp.pad(table, spare).reshape(shape).astype(jnp.uint32)
    return (bits << shift).sum(axis + 1, dtype=jnp.uint32)


def unpacked(words: UInt32[Array, "... W"], length: int) -> Bool[Array, "... Q"]:
    """The first `length` bits as truth values.

    >>> import jax.numpy as jnp
    >>> unpacked(packed(jnp.arange(40) % 20 == 0), 40).nonzero()[0].tolist()
    [0, 20]
    """
    bits = words[..., None] >> jnp.arange(WORD, dtype=jnp.uint32) & 1
    return (bits != 0).reshape(*words.shape[:-1], -1)[..., :length]


def narrow(most: int) -> Any:
    """The shortest type for numbers from 0 to `most` and a sentinel."""
    return next(kind for kind in (jnp.uint8, jnp.uint16, jnp.uint32) if most < jnp.iinfo(kind).max)


def passed(counts: Sequence[Array], number: Array) -> tuple[Array, Array]:
    """The index at which the running sum of counts exceeds a number, and the remainder there."""
    upto, index, before = counts[0], jnp.zeros_like(number), jnp.zeros_like(number)
    for i, count in enumerate(counts[1:], start=1):
        beyond = upto <= number
        index = jnp.where(beyond, jnp.asarray(i, number.dtype), index)
        before = jnp.where(beyond, upto, before)
        upto = upto + count
    return index, number - before


def nth_bit(words: Sequence[UInt32[Array, "*B"]], nth: Array) -> Array:
    """The position of the n-th bit that is set in consecutive words.

    >>> import jax.numpy as jnp
    >>> nth_bit(jnp.uint32([5, 6]), jnp.uint32([0, 1, 2, 3])).tolist()
    [0, 2, 33, 34]
    """
    counts = [jax.lax.population_count(word).astype(nth.dtype) for word in words]
    index, nth = passed(counts, nth)
    word, place = words[0], jnp.zeros_like(nth)
    for i, other in enumerate(words[1:], start=1):
        word = jnp.where(index == i, other, word)
    for half in (16, 8, 4, 2, 1):
        low = word >> place.astype(jnp.uint32) & jnp.uint32((1 << half) - 1)
        below = jax.lax.population_count(low).astype(nth.dtype)
        beyond = nth >= below
        place = jnp.where(beyond, place + jnp.asarray(half, place.dtype), place)
        nth = jnp.where(beyond, nth - below, nth)
    return index.astype(jnp.int32) * WORD + place.astype(jnp.int32)
