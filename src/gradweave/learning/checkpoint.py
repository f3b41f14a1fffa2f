"""Learners and policies in safetensors files: arrays by name, nothing that executes."""

import json
from pathlib import Path
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as to_bytes

from gradweave.atomic import atomic_write
from gradweave.errors import FileError
from gradweave.learning.networks import COMMON, HierarchicalPolicy
from gradweave.schedulers.learned import FORMAT, VERSION

T = TypeVar("T", bound=eqx.Module)

CHECKPOINT_FORMAT = "gradweave-training"


def _names(tree: eqx.Module) -> tuple[list[str], list[Any], Any]:
    """The names of a module's arrays, the arrays, and how to put them back."""
    arrays = eqx.filter(tree, eqx.is_array)
    found, structure = jax.tree_util.tree_flatten_with_path(arrays)
    names = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in found]
    return names, [leaf for _, leaf in found], structure


def save(path: Path, tree: eqx.Module, metadata: dict[str, str]) -> None:
    """Writes a module's arrays; the file appears whole or not at all.

    Args:
        path: the file.
        tree: the module.
        metadata: text by name.
    """
    names, leaves, _ = _names(tree)
    arrays = {name: np.asarray(leaf) for name, leaf in zip(names, leaves, strict=True)}
    atomic_write(path, to_bytes(arrays, metadata))


def metadata(path: Path, kind: str) -> dict[str, str]:
    """Reads a file's text by name.

    Args:
        path: the file.
        kind: the format that the file must say it is of.

    Raises:
        FileError: where the file cannot be read or is of another format.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            found = file.metadata() or {}
    except (OSError, SafetensorError) as error:
        raise FileError(f"{path}: cannot be read as safetensors: {error}") from error
    if found.get("format") != kind or found.get("version") != VERSION:
        raise FileError(
            f"{path}: expected a {kind} file of version {VERSION}, "
            f"got {found.get('format')!r} of version {found.get('version')!r}"
        )
    return found


def load(path: Path, like: T, kind: str) -> tuple[T, dict[str, str]]:
    """Reads a module's arrays.

    Args:
        path: the file.
        like: a module of the same shapes.
        kind: the format that the file must say it is of.

    Raises:
        FileError: where the file cannot be read, is of another format or of other shapes.
    """
    names, leaves, structure = _names(like)
    found = metadata(path, kind)
    try:
        with safe_open(path, framework="numpy") as file:
            if set(file.keys()) != set(names):
                odd = sorted(set(file.keys()) ^ set(names))[0]
                raise FileError(f"{path}: array {odd!r} is missing, or there is no use for it")
            for name in names:
                kind = file.get_slice(name).get_dtype()  # NumPy does not know all that there are
                if kind not in ("F32", "I32"):
                    raise FileError(f"{path}: array {name!r}: expected no {kind}")
            arrays = [file.get_tensor(name) for name in names]
    except (OSError, SafetensorError) as error:
        raise FileError(f"{path}: cannot be read as safetensors: {error}") from error
    for name, array, leaf in zip(names, arrays, leaves, strict=True):
        if array.shape != leaf.shape or array.dtype != leaf.dtype:
            raise FileError(
                f"{path}: array {name!r}: expected {leaf.dtype} {leaf.shape}, "
                f"got {array.dtype} {array.shape}"
            )
    read = jax.tree_util.tree_unflatten(structure, [jnp.asarray(array) for array in arrays])
    return eqx.combine(read, like), found


def save_policy(path: Path, policy: HierarchicalPolicy, about: dict[str, Any]) -> None:
    """Writes the policies as `schedulers.learned` reads them.

    Args:
        path: the file.
        policy: both agents.
        about: how they were trained.
    """
    metadata = {
        "format": FORMAT,
        "version": VERSION,
        "common": repr(COMMON),
        "training": json.dumps(about, sort_keys=True),
    }
    save(path, policy, metadata)


def load_policy(path: Path) -> HierarchicalPolicy:
    """Reads the policies that `save_policy` wrote.

    Raises:
        FileError: where the file is none of its kind.
    """
    return load(path, HierarchicalPolicy(jax.random.key(0)), FORMAT)[0]
