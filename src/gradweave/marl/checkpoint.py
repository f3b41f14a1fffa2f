"""Learners in safetensors files: arrays by name, random keys among them; nothing that executes."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as to_bytes

from gradweave.atomic import atomic_write
from gradweave.errors import FileError

T = TypeVar("T")
FORMAT, VERSION = "gradweave-marl", "1"
_ENTRY = "gradweave"
KINDS = {
    "BOOL": np.bool_,
    **{f"I{bits}": np.dtype(f"int{bits}") for bits in (8, 16, 32, 64)},
    **{f"U{bits}": np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64)},
    **{f"F{bits}": np.dtype(f"float{bits}") for bits in (16, 32, 64)},
}
"""What safetensors calls the types that games and learners have."""


def save(path: Path, tree: Any, about: Mapping[str, Any]) -> None:
    """Writes a tree's arrays; the file appears whole or not at all.

    Args:
        path: the file.
        tree: of arrays.
        about: what to say beside them, as JSON.
    """
    names, leaves, _ = _named(tree)
    arrays = {name: _bare(leaf) for name, leaf in zip(names, leaves, strict=True)}
    # One entry alone: safetensors writes several in no order, and the same bits should be the same.
    said = {"format": FORMAT, "version": VERSION, "about": dict(about)}
    atomic_write(path, to_bytes(arrays, {_ENTRY: json.dumps(said, sort_keys=True)}))


def about(path: Path) -> dict[str, Any]:
    """Reads what a file says beside its arrays.

    Raises:
        FileError: where it cannot be read or is none that `save` wrote.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            found = file.metadata() or {}
    except (OSError, SafetensorError) as error:
        raise FileError(f"{path}: cannot be read as safetensors: {error}") from error
    try:
        said = json.loads(found.get(_ENTRY, "null"))
    except ValueError:
        said = None
    if not isinstance(said, dict) or (said.get("format"), said.get("version")) != (FORMAT, VERSION):
        raise FileError(f"{path}: expected a {FORMAT} file of version {VERSION}, got another")
    if not isinstance(said.get("about"), dict):
        raise FileError(f"{path}: does not say what it is of")
    return said["about"]


def load(path: Path, like: T) -> T:
    """Reads a tree's arrays, into memory of the host; random keys are made keys again.

    Args:
        path: the file.
        like: a tree of the same shapes; of shapes alone, if need be.

    Raises:
        FileError: where the file cannot be read, or has other arrays.
    """
    names, leaves, structure = _named(like)
    about(path)
    try:
        with safe_open(path, framework="numpy") as file:
            if set(file.keys()) != set(names):
                odd = sorted(set(file.keys()) ^ set(names))[0]
                raise FileError(f"{path}: array {odd!r} is missing, or there is no use for it")
            for name in names:
                kind = file.get_slice(name).get_dtype()  # NumPy does not know all that there are
                if kind not in KINDS:
                    raise FileError(f"{path}: array {name!r}: expected no {kind}")
            arrays = [file.get_tensor(name) for name in names]
    except (OSError, SafetensorError) as error:
        raise FileError(f"{path}: cannot be read as safetensors: {error}") from error
    whole = zip(names, arrays, leaves, strict=True)
    read = [_as(path, name, array, leaf) for name, array, leaf in whole]
    return jax.tree.unflatten(structure, read)


def _named(tree: Any) -> tuple[list[str], list[Any], Any]:
    found, structure = jax.tree_util.tree_flatten_with_path(tree)
    names = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in found]
    return names, [leaf for _, leaf in found], structure


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _bare(leaf: Any) -> np.ndarray:
    """An array on the host, whatever devices it lies on."""
    return np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf, order="C")


def _as(path: Path, name: str, array: np.ndarray, like: Any) -> Any:
    """The array, if it is one like another."""
    key = _is_key(like)
    expected = jax.eval_shape(jax.random.key_data, like) if key else like
    if array.shape != expected.shape or array.dtype != expected.dtype:
        raise FileError(
            f"{path}: array {name!r}: expected {expected.dtype} {expected.shape}, "
            f"got {array.dtype} {array.shape}"
        )
    if not key:
        return array
    keys = jax.random.wrap_key_data(jnp.asarray(array))
    if keys.dtype != like.dtype:
        raise FileError(f"{path}: array {name!r}: expected {like.dtype}, got {keys.dtype}")
    return keys
