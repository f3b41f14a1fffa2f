"""Learners and policies in safetensors files."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from gradweave.common import arrays, pytrees
from gradweave.errors import FileError

T = TypeVar("T")
FORMAT, VERSION = "gradweave-marl", "1"
_ENTRY = "gradweave"
"""Key of the single entry in a file's metadata; its value is JSON."""
_OLD_NAMES = {"log_spread": "log_std", "told": "last_sent"}
"""Renamed parts of array names: the name in earlier files, and the name today."""


def save(path: Path, tree: Any, about: Mapping[str, Any]) -> None:
    """Writes the arrays of a tree atomically: readers see the whole file or none.

    Args:
        path: the file.
        tree: tree of arrays.
        about: metadata to store with the arrays, as JSON.
    """
    metadata = {"format": FORMAT, "version": VERSION, "about": dict(about)}
    pytrees.save(path, tree, {_ENTRY: json.dumps(metadata, sort_keys=True)})


def about(path: Path) -> dict[str, Any]:
    """Reads the metadata stored with a file's arrays.

    Raises:
        FileError: the file cannot be read, or `save` did not write it.
    """
    metadata = arrays.json_entry(path, arrays.metadata(path), _ENTRY)
    if not isinstance(metadata, dict) or (metadata.get("format"), metadata.get("version")) != (
        FORMAT,
        VERSION,
    ):
        raise FileError(f"{path}: expected a {FORMAT} file of version {VERSION}, got another")
    if not isinstance(metadata.get("about"), dict):
        raise FileError(f"{path}: does not say what it contains")
    return metadata["about"]


def load(path: Path, like: T) -> T:
    """Reads the arrays of a tree into host memory; random keys become typed keys again.

    Args:
        path: the file.
        like: a tree of the same shapes; shapes without values suffice.

    Raises:
        FileError: the file cannot be read, or contains other arrays.
    """
    about(path)
    return pytrees.load(path, like, old_names=_OLD_NAMES)
