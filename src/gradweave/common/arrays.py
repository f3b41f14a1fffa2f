"""NumPy arrays in safetensors files, which hold named arrays and no executable content."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as to_bytes

from gradweave.common.atomic import atomic_write
from gradweave.errors import FileError

KINDS = (
    "BOOL",
    *(f"I{bits}" for bits in (8, 16, 32, 64)),
    *(f"U{bits}" for bits in (8, 16, 32, 64)),
    *(f"F{bits}" for bits in (16, 32, 64)),
)
"""The types that NumPy also has, by safetensors' names."""
_METADATA = "__metadata__"
_ALIGNMENT = 8
"""The header is padded with spaces to a multiple of this length."""


def save(path: Path, arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]) -> None:
    """Writes arrays by name, each in C order; the file is written completely or not at all.

    Args:
        path: the file.
        arrays: by name.
        metadata: text by name.
    """
    atomic_write(path, _sorted_metadata(to_bytes(dict(arrays), dict(metadata))))


def _sorted_metadata(content: bytes) -> bytes:
    """Sorts a file's metadata by name, so that the same arrays and text give the same bytes.

    safetensors writes metadata in the order of a hash table, which varies between runs.
    """
    start = 8  # the header's length precedes it
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
        FileError: it cannot be read.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            return file.metadata() or {}
    except (OSError, SafetensorError) as error:
        raise _unreadable(path, error) from error


def json_entry(path: Path, metadata: Mapping[str, str], name: str) -> Any:
    """The JSON value of a metadata entry, or None if there is no such entry.

    Raises:
        FileError: it is not JSON.
    """
    try:
        return json.loads(metadata.get(name, "null"))
    except (ValueError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else error
        raise FileError(f"{path}: metadata: {name}: not JSON: {why}") from None


def whole_entry(path: Path, metadata: Mapping[str, str], name: str) -> int:
    """The count in a metadata entry.

    Raises:
        FileError: it is not a count.
    """
    text = metadata.get(name, "")
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise FileError(f"{path}: metadata: {name}: expected a count, got {text!r:.40}")
    return int(text)


def check_format(path: Path, metadata: Mapping[str, str], kind: str, version: str) -> None:
    """Rejects a file whose metadata do not name the expected format.

    Raises:
        FileError: names both formats.
    """
    found = metadata.get("format"), metadata.get("version")
    if found != (kind, version):
        raise FileError(
            f"{path}: expected a {kind} file of version {version}, "
            f"got {found[0]!r:.60} of version {found[1]!r:.60}"
        )


def read(path: Path) -> dict[str, NDArray[Any]]:
    """Reads all arrays by name.

    Raises:
        FileError: the file cannot be read, or has a type that NumPy lacks.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            names = list(file.keys())
            for name in names:
                kind = file.get_slice(name).get_dtype()
                if kind not in KINDS:
                    raise FileError(f"{path}: array {name!r:.60}: expected no {kind}")
            return {name: file.get_tensor(name) for name in names}
    except FileError:
        raise
    except (OSError, SafetensorError, ValueError) as error:  # ValueError: a shape beyond memory
        raise _unreadable(path, error) from error


def renamed(
    arrays: Mapping[str, NDArray[Any]], old_names: Mapping[str, str]
) -> dict[str, NDArray[Any]]:
    """Renames arrays, given new names for the dot-separated parts of their paths."""
    return {
        ".".join(old_names.get(part, part) for part in name.split(".")): array
        for name, array in arrays.items()
    }


def _unreadable(path: Path, error: Exception) -> FileError:
    # safetensors repeats text that it does not understand verbatim.
    return FileError(f"{path}: cannot be read as safetensors: {error!s:.300}")
