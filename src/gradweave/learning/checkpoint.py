"""Checkpoints of a training, and its final policies, in safetensors files."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from gradweave.common import arrays, pytrees
from gradweave.learning.networks import HierarchicalPolicy
from gradweave.learning.policies.policy import COMMON, FORMAT, OLD_NAMES, VERSION

T = TypeVar("T")

CHECKPOINT_FORMAT = "gradweave-training"
NO_NAMES: Mapping[str, str] = MappingProxyType({})


def save(path: Path, tree: Any, kind: str, metadata: dict[str, str]) -> None:
    """Writes a pytree atomically.

    Args:
        path: the file.
        tree: tree of arrays.
        kind: format to record in the file.
        metadata: further text by name.
    """
    pytrees.save(path, tree, {"format": kind, "version": VERSION, **metadata})


def metadata(path: Path, kind: str) -> dict[str, str]:
    """Reads a file's text by name.

    Args:
        path: the file.
        kind: the format that the file must have recorded.
        old_names: renamed parts of the paths.

    Raises:
        FileError: the file cannot be read or has another format.
    """
    text = arrays.metadata(path)
    arrays.check_format(path, text, kind, VERSION)
    return text


def load(path: Path, like: T, kind: str, old_names: Mapping[str, str] = NO_NAMES) -> T:
    """Reads a pytree.

    Args:
        path: the file.
        like: a pytree of the same shapes.
        kind: the format that the file must have recorded.
        old_names: renamed parts of the paths.

    Raises:
        FileError: the file cannot be read, or has another format or other shapes.
    """
    metadata(path, kind)
    return jax.tree.map(jnp.asarray, pytrees.load(path, like, old_names=old_names))


def save_policy(path: Path, policy: HierarchicalPolicy, about: dict[str, Any]) -> None:
    """Writes the policies in the format that `learning.policies.policy` reads.

    Args:
        path: the file.
        policy: both policies.
        about: how they were trained.
    """
    text = {"common": repr(COMMON), "training": json.dumps(about, sort_keys=True)}
    save(path, policy, FORMAT, text)


def load_policy(path: Path) -> HierarchicalPolicy:
    """Reads the policies that `save_policy` wrote.

    Raises:
        FileError: the file cannot be read or has another format.
    """
    like = jax.eval_shape(HierarchicalPolicy, jax.random.key(0))
    return load(path, like, FORMAT, OLD_NAMES)
