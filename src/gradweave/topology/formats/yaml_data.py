"""YAML as data: plain values only."""

import math
import re
from typing import Any

from gradweave.errors import FileError

MAX_YAML_BYTES = 8 << 20
"""Largest YAML file read: 8 MiB; reading YAML takes many times longer than JSON."""
_MAX_DEPTH = 50


def parse_yaml(content: bytes) -> Any:
    """Reads one YAML document into the types of JSON.

    Scalars are resolved as in YAML 1.2 and JSON: ``no``, ``010`` and ``10:20`` are strings and
    ``1e9`` is a number. Rejected are aliases, by which a small file can expand to a huge one, tags
    for other than plain values, and more than 50 levels of nesting.

    Args:
        content: the file.

    Raises:
        FileError: one line, with the line of the file if it is known.
    """
    import yaml

    if len(content) > MAX_YAML_BYTES:
        raise FileError(f"larger than {MAX_YAML_BYTES >> 20} MiB, the most that is read as YAML")
    try:
        text = content.decode("utf-8-sig")
        _check_events(yaml, text)
        return yaml.load(text, Loader=_loader(yaml))  # a safe one: plain values only
    except UnicodeDecodeError as error:
        raise FileError(f"not UTF-8 text: {error.reason} at byte {error.start}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "unreadable"
        where = "" if mark is None else f" at line {mark.line + 1}"
        raise FileError(f"not valid YAML: {problem!s:.100}{where}") from None
    except ValueError as error:  # an integer of thousands of digits
        raise FileError(f"not valid YAML: {str(error)[:100]}") from None


def write_yaml(data: Any) -> str:
    """Writes plain values as YAML.

    Args:
        data: dictionaries, lists, strings, numbers, truth values and None.
    """
    import yaml

    return yaml.dump(data, Dumper=yaml.SafeDumper, sort_keys=False, allow_unicode=True)


def _check_events(yaml: Any, text: str) -> None:
    """Rejects aliases and deep nesting before anything is constructed."""
    depth = 0
    for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        where = f"line {event.start_mark.line + 1}"
        if isinstance(event, yaml.AliasEvent):
            raise FileError(
                f"{where}: aliases (*{event.anchor!s:.40}) are rejected; write the value out"
            )
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > _MAX_DEPTH:
            raise FileError(f"{where}: nested too deeply, more than {_MAX_DEPTH} levels")


_SCALARS = (
    ("null", r"~|null|", ("~", "n", "")),
    ("bool", r"true|false", ("t", "f")),
    ("int", r"-?(?:0|[1-9][0-9]*)", tuple("-0123456789")),
    ("float", r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?", tuple("-0123456789")),
)
"""Types of unquoted scalars: tag, pattern and possible first characters; others are strings."""


def _loader(yaml: Any) -> type:
    class PlainLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012  PyYAML's own name

        def construct_yaml_float(self, node: Any) -> float:
            value = float(self.construct_scalar(node))
            if not math.isfinite(value):
                raise ValueError(f"{node.value[:40]}: too large for a number")
            return value

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            seen: set[str] = set()
            for key in (key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
                if key in seen:
                    line = node.start_mark.line + 1
                    raise FileError(f"{key!r:.60} is given twice in what begins at line {line}")
                seen.add(key)
            return super().construct_mapping(node, deep)

    for tag, words, first in _SCALARS:
        pattern = re.compile(f"(?:{words})\\Z")
        PlainLoader.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", pattern, first)
    PlainLoader.add_constructor("tag:yaml.org,2002:float", PlainLoader.construct_yaml_float)
    return PlainLoader
