"""Pytrees of arrays as buffers of rows of one length, one row per piece, and back."""

from typing import Any

import jax
import jax.numpy as jnp

from gradweave.errors import OptionError

PyTree = Any
"""Arrays in any nesting of containers that JAX knows."""


def by_dtype(leaves: list[jax.Array]) -> dict[jnp.dtype, list[int]]:
    """Numbers of the leaves of each type; elements of different types are never concatenated.

    Raises:
        OptionError: a leaf is not of numbers, but of random keys or the like.
    """
    numbers: dict[jnp.dtype, list[int]] = {}
    for number, leaf in enumerate(leaves):
        if not (jnp.issubdtype(leaf.dtype, jnp.number) or leaf.dtype == jnp.bool_):
            raise OptionError(
                f"leaf {number} of the gradient: expected numbers or booleans, got {leaf.dtype}; "
                "leave it out"
            )
        numbers.setdefault(leaf.dtype, []).append(number)
    return numbers


def joined(leaves: list[jax.Array]) -> jax.Array:
    """The elements of all leaves, concatenated."""
    return jnp.concatenate([leaf.reshape(-1) for leaf in leaves])


def divided(elements: jax.Array, like: list[jax.Array]) -> list[jax.Array]:
    """The inverse of `joined`.

    Args:
        elements: [sum of the leaves' sizes]
        like: the leaves; only their shapes are used.
    """
    leaves, start = [], 0
    for leaf in like:
        leaves.append(elements[start : start + leaf.size].reshape(leaf.shape))
        start += leaf.size
    return leaves


def to_rows(elements: jax.Array, pieces: int) -> jax.Array:
    """Cuts elements into pieces, as `piece_offsets` does.

    Returns:
        [P, L] one row per piece; shorter pieces are padded with a zero.
    """
    least, larger = divmod(elements.size, pieces)
    if not larger:
        return elements.reshape(pieces, least)
    split = larger * (least + 1)
    long = elements[:split].reshape(larger, least + 1)
    short = elements[split:].reshape(pieces - larger, least)
    return jnp.concatenate([long, jnp.pad(short, ((0, 0), (0, 1)))])


def from_rows(rows: jax.Array, size: int) -> jax.Array:
    """The inverse of `to_rows`.

    Args:
        rows: [P, L]
        size: number of elements.
    """
    least, larger = divmod(size, len(rows))
    if not larger:
        return rows.reshape(-1)
    return jnp.concatenate([rows[:larger].reshape(-1), rows[larger:, :least].reshape(-1)])
