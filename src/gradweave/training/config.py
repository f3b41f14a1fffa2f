"""Configurations: frozen dataclasses, read from TOML; unknown fields are refused."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from gradweave.common.checks import did_you_mean
from gradweave.errors import OptionError

T = TypeVar("T")

MAX_BYTES = 1 << 20
"""Largest TOML file read: 1 MiB."""
MOST_PARTS = 50
"""Maximum number of dot-separated parts of a key."""

OLD_NAMES = {
    "batch": "batch_size",
    "clip": "clip_ratio",
    "entropy": "entropy_coefficient",
    "explore": "epsilon",
    "explore_last": "epsilon_final",
    "explore_until": "epsilon_fraction",
    "gradient_norm": "max_gradient_norm",
    "log_spread": "log_std",
    "mixing": "mixing_width",
    "normalise": "normalise_advantages",
    "parameters": "parameter_sharing",
    "remembered": "replay_size",
    "shaping_until": "shaping_fraction",
    "smoothing": "gae_lambda",
    "target_rate": "target_update_rate",
    "trace": "td_lambda",
    "value": "value_coefficient",
}
"""Names of fields in earlier TOML files, checkpoints and policies, with the current names."""
_FIRST_NAMES = {new: old for old, new in OLD_NAMES.items()}


def read_toml(path: Path | None) -> dict[str, Any]:
    """Reads a TOML file; returns an empty table without a file.

    Raises:
        OptionError: the file cannot be read or is not TOML.
    """
    if path is None:
        return {}
    try:
        with path.open("rb") as file:
            return parse_toml(file.read(MAX_BYTES + 1), str(path))
    except OSError as error:
        raise OptionError(f"{path}: cannot be read: {error.strerror or error}") from error


def parse_toml(text: bytes, name: str) -> dict[str, Any]:
    """Parses TOML.

    Args:
        text: content of the file.
        name: name of the file for messages.

    Raises:
        OptionError: the text is not TOML.
    """
    if len(text) > MAX_BYTES:
        raise OptionError(f"{name}: larger than {MAX_BYTES >> 20} MiB, the maximum")
    for number, line in enumerate(text.splitlines(), 1):
        # The parser's time grows with the cube of the number of a key's parts.
        if line.partition(b"=")[0].count(b".") >= MOST_PARTS:
            raise OptionError(f"{name}: line {number}: a key of more than {MOST_PARTS} parts")
    try:
        return msgspec.toml.decode(text)
    except RecursionError:
        raise OptionError(f"{name}: not TOML: nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
        raise OptionError(f"{name}: not TOML: {error!s:.300}") from error


def convert(table: Mapping[str, Any], kind: type[T]) -> T:
    """Makes a dataclass, including nested ones, from a table.

    Args:
        table: values by the names of fields, old names included.
        kind: the dataclass.

    Raises:
        OptionError: a field is missing, unknown, or has a wrong type or value.
    """
    try:
        return msgspec.convert(_renamed(table, inspect.type_info(kind), ""), kind)
    except msgspec.ValidationError as error:
        raise OptionError(f"{error!s:.300}") from error
    except UnicodeEncodeError as error:  # an argument that is not UTF-8
        raise OptionError(f"expected text in UTF-8, got {error.object!r:.60}") from error


def new_names(table: Mapping[str, Any], known: Iterable[str], prefix: str = "") -> dict[str, Any]:
    """The table with the current names of fields.

    Args:
        table: values by name.
        known: the current names.
        prefix: prefix of the names in messages.

    Raises:
        OptionError: a name is unknown, or one field is given by both of its names.
    """
    known, result = list(known), {}
    for name, value in table.items():
        new = name if name in known else OLD_NAMES.get(name)
        if new not in known:
            hint = did_you_mean(name, known)
            raise OptionError(f"{prefix}{name:.60}: unknown; {hint}known are {', '.join(known)}")
        if new in result:
            raise OptionError(f"{prefix}{new}: given twice: {name} is its old name")
        result[new] = value
    return result


def first_names(value: Any) -> Any:
    """The value with the original names of its fields, so that a digest survives their renaming.

    Args:
        value: a value of built-in types, as from `msgspec.to_builtins`.
    """
    if isinstance(value, Mapping):
        return {_FIRST_NAMES.get(name, name): first_names(each) for name, each in value.items()}
    return [first_names(each) for each in value] if isinstance(value, list | tuple) else value


def _renamed(value: Any, kind: inspect.Type, prefix: str) -> Any:
    """The value with the current names of all fields; msgspec itself ignores unknown fields."""
    if isinstance(kind, inspect.VarTupleType) and isinstance(value, list):
        return [_renamed(item, kind.item_type, prefix) for item in value]
    if not isinstance(kind, inspect.DataclassType) or not isinstance(value, Mapping):
        return value
    kinds = {field.name: field.type for field in kind.fields}
    table = new_names(value, kinds, prefix)
    return {name: _renamed(each, kinds[name], f"{prefix}{name}.") for name, each in table.items()}
