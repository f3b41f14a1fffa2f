"""JAX pytrees in safetensors files: each leaf by its path, such as ``policy.tree.bias``."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from gradweave.common import arrays
from gradweave.errors import FileError

T = TypeVar("T")


def save(path: Path, tree: Any, metadata: Mapping[str, str]) -> None:
    """Writes a pytree of arrays and random keys; the file is written completely or not at all.

    Args:
        path: the file.
        tree: a pytree of arrays only.
        metadata: text by name.
    """
    arrays.save(path, by_name(tree), metadata)


def by_name(tree: Any) -> dict[str, NDArray[Any]]:
    """A pytree's leaves in host memory, by path; random keys are replaced by their data."""
    names, leaves, _ = _flatten(tree)
    return {name: on_host(leaf) for name, leaf in zip(names, leaves, strict=True)}


def load(
    path: Path, like: T, hint: str = "", old_names: Mapping[str, str] = MappingProxyType({})
) -> T:
    """Reads a pytree into host memory; random keys become keys again.

    Args:
        path: the file.
        like: a pytree of arrays with the same shapes and types, or of `jax.ShapeDtypeStruct`.
        hint: added to the message if the file has other arrays.
        old_names: names that a file may use for parts of the paths.

    Raises:
        FileError: the file cannot be read, or has other arrays.
    """
    names, leaves, structure = _flatten(like)
    held = arrays.renamed(arrays.read(path), old_names)
    if set(held) != set(names):
        odd = sorted(set(held) ^ set(names))[0]
        raise FileError(f"{path}: array {odd!r} is missing, or there is no use for it{hint}")
    read = [
        _checked(path, name, held[name], leaf) for name, leaf in zip(names, leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, read)


def is_key(array: Any) -> bool:
    """Whether an array, or a shape, is of random keys."""
    return jnp.issubdtype(array.dtype, jax.dtypes.prng_key)


def on_host(array: Any) -> NDArray[Any]:
    """An array on any device as an array in host memory; random keys become their data."""
    return np.asarray(jax.random.key_data(array) if is_key(array) else array, order="C")


def _flatten(tree: Any) -> tuple[list[str], list[Any], Any]:
    """The names of a tree's leaves, the leaves, and its structure."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    names = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in leaves]
    return names, [leaf for _, leaf in leaves], structure


def _checked(path: Path, name: str, array: NDArray[Any], like: Any) -> Any:
    """The array, if it has the expected shape and type."""
    expected = jax.eval_shape(jax.random.key_data, like) if is_key(like) else like
    if array.shape != expected.shape or array.dtype != expected.dtype:
        raise FileError(
            f"{path}: array {name!r}: expected {expected.dtype} {expected.shape}, "
            f"got {array.dtype} {array.shape}"
        )
    if not is_key(like):
        return array
    keys = jax.random.wrap_key_data(jnp.asarray(array))
    if keys.dtype != like.dtype:
        raise FileError(f"{path}: array {name!r}: expected {like.dtype}, got {keys.dtype}")
    return keys
