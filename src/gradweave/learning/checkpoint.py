"""The trained policies in safetensors files."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from gradweave.common import arrays, pytrees
from gradweave.learning.networks import HierarchicalPolicy
from gradweave.learning.policies.policy import COMMON, FORMAT, OLD_NAMES, VERSION


def save_policy(path: Path, policy: HierarchicalPolicy, about: dict[str, Any]) -> None:
    """Writes the policies in the format that `learning.policies.policy` reads.

    Args:
        path: the file.
        policy: both policies.
        about: how they were trained.
    """
    text = {"common": repr(COMMON), "training": json.dumps(about, sort_keys=True)}
    pytrees.save(path, policy, {"format": FORMAT, "version": VERSION, **text})


def load_policy(path: Path) -> HierarchicalPolicy:
    """Reads the policies that `save_policy` wrote.

    Raises:
        FileError: the file cannot be read or has another format.
    """
    arrays.check_format(path, arrays.metadata(path), FORMAT, VERSION)
    like = jax.eval_shape(HierarchicalPolicy, jax.random.key(0))
    return jax.tree.map(jnp.asarray, pytrees.load(path, like, old_names=OLD_NAMES))
