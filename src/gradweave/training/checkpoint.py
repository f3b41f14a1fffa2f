"""The files of a training: arrays by name, and metadata that say which training they belong to."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from gradweave.common.lazy import LazyModule
from gradweave.errors import FileError, OptionError

if TYPE_CHECKING:
    from gradweave.common import arrays, pytrees
else:  # they import JAX, which settings are checked without
    arrays = LazyModule("gradweave.common.arrays")
    pytrees = LazyModule("gradweave.common.pytrees")

T = TypeVar("T")
CHECKPOINT = "checkpoint.safetensors"
"""Name of the checkpoint in a training's folder."""
_ABOUT = "about"
"""Entry of a file's metadata that describes its training, as JSON."""
_OLD_ABOUT = "run"
_OLD_ALL = "gradweave"
"""The same entry, and one entry with all metadata, in earlier files."""
_SHOWN = 3
"""Number of differences that a message names."""


@dataclasses.dataclass(frozen=True)
class Format:
    """A format of safetensors files."""

    name: str
    version: str = "1"
    old_names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Renamed parts of arrays' names: the name in earlier files, and the name today."""

    def save(self, path: Path, tree: Any, about: Mapping[str, Any]) -> None:
        """Writes the arrays of a tree atomically: readers see the whole file or none.

        Args:
            path: the file.
            tree: tree of arrays.
            about: metadata to store with the arrays, as JSON.
        """
        text = {"format": self.name, "version": self.version}
        pytrees.save(path, tree, text | {_ABOUT: json.dumps(dict(about), sort_keys=True)})

    def about(self, path: Path) -> dict[str, Any]:
        """Reads the metadata stored with a file's arrays.

        An earlier file without an entry for them has its entries returned, as text.

        Raises:
            FileError: the file cannot be read, or has another format.
        """
        text = arrays.metadata(path)
        if isinstance(old := arrays.json_entry(path, text, _OLD_ALL), dict):
            text = {k: v if isinstance(v, str) else json.dumps(v) for k, v in old.items()}
        arrays.check_format(path, text, self.name, self.version)
        entry = next((name for name in (_ABOUT, _OLD_ABOUT) if name in text), None)
        about = text if entry is None else arrays.json_entry(path, text, entry)
        if not isinstance(about, dict):
            raise FileError(f"{path}: does not say what it contains")
        return about

    def load(self, path: Path, like: T) -> T:
        """Reads the arrays of a tree into host memory; random keys become typed keys again.

        Args:
            path: the file.
            like: a tree of the same shapes; shapes without values suffice.

        Raises:
            FileError: the file cannot be read, or contains other arrays.
        """
        self.about(path)
        return pytrees.load(path, like, old_names=self.old_names)


def differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """The fields in which two trainings differ, as text for a message."""
    return [
        f"{name} {there.get(name)!r:.80} there, {here.get(name)!r:.80} here"
        for name in sorted({*there, *here})
        if there.get(name) != here.get(name)
    ]


def check_same(path: Path, differ: Sequence[str], place: str = "folder") -> None:
    """Refuses the checkpoint of another training.

    Args:
        path: the checkpoint.
        differ: the result of `differences`.
        place: what a training can be given instead.

    Raises:
        OptionError: names the first differences.
    """
    if differ:
        more = f" and {len(differ) - _SHOWN} more" if len(differ) > _SHOWN else ""
        raise OptionError(
            f"{path} belongs to another training: {'; '.join(differ[:_SHOWN])}{more}; "
            f"give another {place}, or remove it"
        )
