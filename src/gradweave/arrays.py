"""Trees of JAX's arrays in safetensors files: arrays by name, nothing that executes."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as to_bytes

from gradweave.atomic import atomic_write
from gradweave.errors import FileError

T = TypeVar("T")

KINDS = (
    "BOOL",
    *(f"I{bits}" for bits in (8, 16, 32, 64)),
    *(f"U{bits}" for bits in (8, 16, 32, 64)),
    *(f"F{bits}" for bits in (16, 32, 64)),
)
"""The types that NumPy has too, by safetensors' names."""
_METADATA = "__metadata__"
_ALIGNMENT = 8
"""What the header's length, filled up with spaces, is a multiple of."""


def save(path: Path, tree: Any, metadata: Mapping[str, str]) -> None:
    """Writes a tree's arrays, random keys among them; the file appears whole or not at all.

    Args:
        path: the file.
        tree: of arrays alone.
        metadata: text by name.
    """
    names, leaves, _ = _named(tree)
    arrays = {name: on_host(leaf) for name, leaf in zip(names, leaves, strict=True)}
    atomic_write(path, _in_order(to_bytes(arrays, dict(metadata))))


def _in_order(content: bytes) -> bytes:
    """The same file with its metadata by name: the same tree and text are the same bytes.

    safetensors writes them in the order of a hash table, which differs from run to run.
    """
    start = 8  # after the header's length
    end = start + int.from_bytes(content[:start], "little")
    header = json.loads(content[start:end])
    if _METADATA in header:
        header[_METADATA] = dict(sorted(header[_METADATA].items()))
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(start, "little") + text + content[end:]


def metadata(path: Path) -> dict[str, str]:
    """Reads a file's text by name.

    Raises:
        FileError: where it cannot be read.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            return file.metadata() or {}
    except (OSError, SafetensorError) as error:
        raise _unreadable(path, error) from error


def check_format(path: Path, metadata: Mapping[str, str], kind: str, version: str) -> None:
    """Refuses a file whose metadata do not name the format.

    Raises:
        FileError: names both.
    """
    found = metadata.get("format"), metadata.get("version")
    if found != (kind, version):
        raise FileError(
            f"{path}: expected a {kind} file of version {version}, "
            f"got {found[0]!r} of version {found[1]!r}"
        )


def read(path: Path) -> dict[str, NDArray[Any]]:
    """Reads all arrays, by name.

    Raises:
        FileError: where the file cannot be read, or has a type that NumPy has not.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            names = list(file.keys())
            for name in names:
                kind = file.get_slice(name).get_dtype()
                if kind not in KINDS:
                    raise FileError(f"{path}: array {name!r}: expected no {kind}")
            return {name: file.get_tensor(name) for name in names}
    except (OSError, SafetensorError) as error:
        raise _unreadable(path, error) from error


def load(path: Path, like: T, hint: str = "") -> T:
    """Reads a tree's arrays, into memory of the host; random keys are made keys again.

    Args:
        path: the file.
        like: a tree of the same shapes; of shapes alone, if need be.
        hint: what to say where the file has other arrays.

    Raises:
        FileError: where the file cannot be read, or has other arrays.
    """
    names, leaves, structure = _named(like)
    arrays = read(path)
    if set(arrays) != set(names):
        odd = sorted(set(arrays) ^ set(names))[0]
        raise FileError(f"{path}: array {odd!r} is missing, or there is no use for it{hint}")
    found = [_as(path, name, arrays[name], leaf) for name, leaf in zip(names, leaves, strict=True)]
    return jax.tree.unflatten(structure, found)


def is_key(array: Any) -> bool:
    """Whether an array, or a shape, is of random keys."""
    return jnp.issubdtype(array.dtype, jax.dtypes.prng_key)


def on_host(array: Any) -> NDArray[Any]:
    """An array in the host's memory, whatever devices it lies on; of random keys, their data."""
    return np.asarray(jax.random.key_data(array) if is_key(array) else array, order="C")


def _unreadable(path: Path, error: Exception) -> FileError:
    return FileError(f"{path}: cannot be read as safetensors: {error}")


def _named(tree: Any) -> tuple[list[str], list[Any], Any]:
    """The names of a tree's arrays, the arrays, and how to put them back."""
    found, structure = jax.tree_util.tree_flatten_with_path(tree)
    names = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in found]
    return names, [leaf for _, leaf in found], structure


def _as(path: Path, name: str, array: NDArray[Any], like: Any) -> Any:
    """The array, if it is one like another."""
    key = is_key(like)
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
