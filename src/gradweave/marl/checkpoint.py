"""Learners and policies of agents in safetensors files."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from gradweave import arrays, pytrees
from gradweave.errors import FileError

T = TypeVar("T")
FORMAT, VERSION = "gradweave-marl", "1"
_ENTRY = "gradweave"
"""The one entry of a file's metadata, which holds JSON."""
_OLD_NAMES = {"log_spread": "log_std", "told": "last_sent"}
"""Parts of arrays' names in earlier files."""


def save(path: Path, tree: Any, about: Mapping[str, Any]) -> None:
    """Writes a tree's arrays; the file appears whole or not at all.

    Args:
        path: the file.
        tree: of arrays.
        about: what to say beside them, as JSON.
    """
    metadata = {"format": FORMAT, "version": VERSION, "about": dict(about)}
    pytrees.save(path, tree, {_ENTRY: json.dumps(metadata, sort_keys=True)})


def about(path: Path) -> dict[str, Any]:
    """Reads what a file says beside its arrays.

    Raises:
        FileError: where it cannot be read, or `save` did not write it.
    """
    metadata = arrays.json_entry(path, arrays.metadata(path), _ENTRY)
    if not isinstance(metadata, dict) or (metadata.get("format"), metadata.get("version")) != (
        FORMAT,
        VERSION,
    ):
        raise FileError(f"{path}: expected a {FORMAT} file of version {VERSION}, got another")
    if not isinstance(metadata.get("about"), dict):
        raise FileError(f"{path}: does not say what it is of")
    return metadata["about"]


def load(path: Path, like: T) -> T:
    """Reads a tree's arrays, into memory of the host; random keys are made keys again.

    Args:
        path: the file.
        like: a tree of the same shapes; of shapes alone, if need be.

    Raises:
        FileError: where the file cannot be read, or has other arrays.
    """
    about(path)
    return pytrees.load(path, like, old_names=_OLD_NAMES)
