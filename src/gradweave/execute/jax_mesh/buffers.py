"""Packs pytrees of arrays into buffers with one row per piece, and unpacks them again."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp

from gradweave.errors import OptionError

PyTree = Any
"""Arrays in any nesting of containers that JAX supports."""
Groups = list[list[int]]
"""Numbers of a tree's leaves, for each group."""


def by_dtype(leaves: list[jax.Array]) -> dict[jnp.dtype, list[int]]:
    """Numbers of the leaves of each type; elements of different types are never concatenated.

    Raises:
        OptionError: a leaf has no numbers, but random keys, for example.
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


def to_vectors(tree: PyTree, groups: Groups | None = None) -> list[jax.Array]:
    """All elements of a tree, as one vector per group of leaves.

    Args:
        tree: a tree of arrays.
        groups: numbers of the leaves in each group; if not given, one group per type.
    """
    leaves = jax.tree.leaves(tree)
    groups = list(by_dtype(leaves).values()) if groups is None else groups
    return [joined([leaves[leaf] for leaf in numbers]) for numbers in groups]


def from_vectors(vectors: list[jax.Array], like: PyTree, groups: Groups | None = None) -> PyTree:
    """The inverse of `to_vectors`, for a tree of the same shapes."""
    leaves, structure = jax.tree.flatten(like)
    groups = list(by_dtype(leaves).values()) if groups is None else groups
    whole = list(leaves)
    for vector, numbers in zip(vectors, groups, strict=True):
        parts = divided(vector, [leaves[leaf] for leaf in numbers])
        for leaf, part in zip(numbers, parts, strict=True):
            whole[leaf] = part
    return structure.unflatten(whole)


def to_rows(elements: jax.Array, sizes: list[int]) -> jax.Array:
    """Cuts elements into pieces.

    Args:
        elements: [sum of sizes]
        sizes: [P] elements of each piece.

    Returns:
        [P, L] one row per piece; shorter pieces are padded with zeros.
    """
    longest, start, rows = max(sizes), 0, []
    for size, pieces in _runs(sizes):
        some = elements[start : start + pieces * size].reshape(pieces, size)
        rows.append(jnp.pad(some, ((0, 0), (0, longest - size))) if size < longest else some)
        start += pieces * size
    return jnp.concatenate(rows) if len(rows) > 1 else rows[0]


def from_rows(rows: jax.Array, sizes: list[int]) -> jax.Array:
    """The inverse of `to_rows`.

    Args:
        rows: [P, L]
        sizes: [P] elements of each piece.
    """
    first, parts = 0, []
    for size, pieces in _runs(sizes):
        parts.append(rows[first : first + pieces, :size].reshape(-1))
        first += pieces
    return jnp.concatenate(parts) if len(parts) > 1 else parts[0]


def _runs(sizes: list[int]) -> list[tuple[int, int]]:
    """Runs of equal sizes, as pairs of size and count; there are few if the sizes are even."""
    return [(size, len(list(run))) for size, run in itertools.groupby(sizes)]
