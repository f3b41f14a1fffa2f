"""Specifications: ``name:key=value,key=value``, of networks, schedulers and aggregations."""

import dataclasses
import re
import types
import typing
from collections.abc import Mapping
from typing import Any

from gradweave.common.checks import did_you_mean
from gradweave.errors import SpecError

UNNAMED = ""
"""Key of `parse_spec` for a value without a key, as in ``torus:4x4``."""

_NAME = r"[A-Za-z][A-Za-z0-9_-]*"


def parse_spec(text: str) -> tuple[str, dict[str, str]]:
    """Splits a specification into name and values, without interpreting them.

    Args:
        text: ``name``, or ``name:key=value,key=value``; the first value may have no key.

    Returns:
        The name, and the values by key, in the order given; a value without a key has the key
        `UNNAMED`.

    Raises:
        SpecError: the text does not have this form, or gives a key twice.

    >>> parse_spec("ring:order=hamiltonian,steps=paper")
    ('ring', {'order': 'hamiltonian', 'steps': 'paper'})
    >>> parse_spec("torus:4x4")
    ('torus', {'': '4x4'})
    """
    name, colon, rest = text.partition(":")
    name = name.strip()
    if not re.fullmatch(_NAME, name):
        joined = "_".join(name.split())
        guess = f"; did you mean {joined}?" if re.fullmatch(_NAME, joined) else ""
        raise SpecError(
            f"{text!r:.60}: expected a name, then parameters, as in bcube:n=3,k=1{guess}"
        )
    values: dict[str, str] = {}
    for place, part in enumerate(rest.split(",") if colon else []):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals and place == 0:
            key, value = UNNAMED, key
        elif not equals or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]*", key):
            raise SpecError(f"{text!r:.60}: expected key=value, got {part!r:.60}")
        if not value or "=" in value:
            after = f"{key}=" if key else f"{name}:"
            raise SpecError(f"{text!r:.60}: expected a value after {after}, got {value!r:.60}")
        if key in values:
            raise SpecError(f"{text!r:.60}: {key} is given twice")
        values[key] = value
    return name, values


def read_options(name: str, values: Mapping[str, str], kinds: Mapping[str, Any]) -> dict[str, Any]:
    """Reads the options of a specification by their types.

    Args:
        name: owner of the options, for messages.
        values: texts of the options by key, from `parse_spec`.
        kinds: the type of each known option, for `read_value`.

    Raises:
        SpecError: an option is unknown, or its value is not of its type.
    """
    for key in values:
        if key not in kinds:
            shown = "a value without a key" if key == UNNAMED else f"{key!r:.60}"
            known = f"options are {', '.join(kinds)}" if kinds else "it has no options"
            hint = did_you_mean(key, kinds)
            raise SpecError(f"{name}: {shown} is not an option; {hint}{known}")
    return {key: read_value(f"{name}: {key}", kinds[key], text) for key, text in values.items()}


def field_kinds(of: type) -> dict[str, Any]:
    """The fields of a dataclass that its repr shows, in order, with their types."""
    kinds = typing.get_type_hints(of)
    return {field.name: kinds[field.name] for field in dataclasses.fields(of) if field.repr}


def read_value(name: str, kind: object, text: str) -> Any:
    """Reads a value by its type.

    Args:
        name: name of the value for the message.
        kind: its type: bool, int, float, str, a tuple of integers, a Literal, or a union of these.
        text: the value.

    Raises:
        SpecError: names the value and what is expected.
    """
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        errors: list[SpecError] = []
        for choice in typing.get_args(kind):
            if choice is types.NoneType and text.lower() == "none":
                return None
            if choice is not types.NoneType:
                try:
                    return read_value(name, choice, text)
                except SpecError as error:
                    errors.append(error)
        raise errors[0]
    if typing.get_origin(kind) is typing.Literal:
        if text in typing.get_args(kind):
            return text
        raise SpecError(
            f"{name} must be one of {', '.join(typing.get_args(kind))}, got {text!r:.60}"
        )
    try:
        if kind is bool:
            return {"true": True, "false": False}[text.lower()]
        if kind is int:
            return int(text)
        if kind is float:
            return float(text)
        if kind is str:
            return text
        return tuple(int(part) for part in text.split("."))
    except (KeyError, ValueError):
        expected = {bool: "true or false", int: "an integer", float: "a number"}.get(
            kind, "integers joined by dots"
        )  # type: ignore[arg-type]
        raise SpecError(f"{name} must be {expected}, got {text!r:.60}") from None
