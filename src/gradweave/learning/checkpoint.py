"""Learners and policies in safetensors files."""

import json
from pathlib import Path
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp

from gradweave import arrays
from gradweave.learning.networks import COMMON, HierarchicalPolicy
from gradweave.schedulers.learned.learned import FORMAT, VERSION

T = TypeVar("T", bound=eqx.Module)

CHECKPOINT_FORMAT = "gradweave-training"


def save(path: Path, tree: eqx.Module, metadata: dict[str, str]) -> None:
    """Writes a module's arrays; the file appears whole or not at all.

    Args:
        path: the file.
        tree: the module.
        metadata: text by name.
    """
    arrays.save(path, eqx.filter(tree, eqx.is_array), metadata)


def metadata(path: Path, kind: str) -> dict[str, str]:
    """Reads a file's text by name.

    Args:
        path: the file.
        kind: the format that the file must say it is of.

    Raises:
        FileError: where the file cannot be read or is of another format.
    """
    found = arrays.metadata(path)
    arrays.check_format(path, found, kind, VERSION)
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
    found = metadata(path, kind)
    read = arrays.load(path, eqx.filter(like, eqx.is_array))
    return eqx.combine(jax.tree.map(jnp.asarray, read), like), found


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
