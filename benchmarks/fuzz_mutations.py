"""Mutations of inputs by their structure, which bytes flipped at random would only break."""

import copy
import gzip
import json
import random
from collections.abc import Callable
from typing import Any

SCALARS = (
    None, True, -1, 0, 1, 2, 2**31, 2**32, 2**63, 2**64, 10**30, 0.5, -1e-9, 1e308, 5e-324, 1e18,
    "", "0", "a", "\x1b[31mred", "two\nlines", "\u202eback", "[red]", "</script>", "x" * 300,
    "é\u0000", [], {}, [[]], [0], {"a": 0},
)  # fmt: skip
"""What stands in place of a value."""
TOKENS = (
    b"\x00", b"\xff", b"\x1b[31m", b"\xe2\x80\xae", b"1e999", b"-1", b"99999999999999999999", b"#",
    b"\r\n", b"\n\n", b'"', b"''", b",", b":", b"=", b"[[", b"]]", b"{", b"}", b"nan", b"inf", b"<",
    b"&amp;", b"true", b"switches:", b"# directed\n", b"<nvlink/>", b'count="0"', b" -> ", b"G(",
)  # fmt: skip
"""What is put into text."""
_CHANGES = (1, 1, 1, 2)
"""Changes at once: what is changed in many places is refused for the first."""


def mutated(data: bytes, shape: str, rng: random.Random) -> bytes:
    """An input, changed in a place or a few.

    Args:
        data: the input.
        shape: json, yaml, safetensors, gzip or text; what is not of it is changed as text.
        rng: draws.
    """
    try:
        return _BY_SHAPE[shape](data, rng)
    except Exception:  # not of this shape any more
        return _text(data, rng)


def _json(data: bytes, rng: random.Random) -> bytes:
    return json.dumps(_value(json.loads(data), rng)).encode()


def _yaml(data: bytes, rng: random.Random) -> bytes:
    import yaml

    value = _value(yaml.load(data, Loader=yaml.CSafeLoader), rng)
    return yaml.dump(value, Dumper=yaml.CSafeDumper, sort_keys=False).encode()


def _gzip(data: bytes, rng: random.Random) -> bytes:
    return gzip.compress(_json(gzip.decompress(data), rng), compresslevel=1, mtime=0)


def _safetensors(data: bytes, rng: random.Random) -> bytes:
    """The header changed; the arrays stay, but for a byte."""
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.dumps(_value(json.loads(data[8:end]), rng)).encode()
    body = bytearray(data[end:])
    if body and rng.random() < 0.3:
        body[rng.randrange(len(body))] = rng.randrange(256)
    return len(header).to_bytes(8, "little") + header + bytes(body)


def _text(data: bytes, rng: random.Random) -> bytes:
    """Pieces put in, taken out, repeated or moved, mostly between words."""
    for _ in range(rng.choice(_CHANGES)):
        breaks = [0, *(i for i, byte in enumerate(data) if byte in b' \n,:="<>()[]'), len(data)]
        start, end = sorted(rng.choices(breaks, k=2))
        piece = data[start:end]
        change = rng.randrange(4)
        if change == 0:
            data = data[:start] + rng.choice(TOKENS) + data[start:]
        elif change == 1:
            data = data[:start] + data[min(end, start + 64) :]
        elif change == 2:
            data = data[:end] + piece[:512] * rng.choice((1, 1, 1, 8)) + data[end:]
        else:
            data = data[:start] + rng.choice(TOKENS) + data[min(end, start + 16) :]
    return data


def _value(value: Any, rng: random.Random) -> Any:
    value = copy.deepcopy(value)
    for _ in range(rng.choice(_CHANGES)):
        places = list(_places(value))
        if not places:
            return rng.choice(SCALARS)
        inside, key = rng.choice(places)
        _change(inside, key, rng.choice(places), rng)
    return value


def _places(value: Any) -> Any:
    """(container, key) of all that is in a value."""
    keys = (
        value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    )
    for key in list(keys):
        yield value, key
        yield from _places(value[key])


def _change(inside: Any, key: Any, other: tuple[Any, Any], rng: random.Random) -> None:
    change = rng.randrange(6)
    if change == 0:
        inside[key] = rng.choice(SCALARS)
    elif change == 1:
        del inside[key]
    elif change == 2:
        from_there = copy.deepcopy(other[0].get(other[1])) if isinstance(other[0], dict) else 0
        inside[key] = from_there
    elif change == 3 and isinstance(inside, list):
        inside.insert(key, rng.choice((inside[key], rng.choice(SCALARS))))
    elif change == 4 and isinstance(inside, dict):
        name = str(key)
        inside[rng.choice((name[:-1], name + "s", name.upper(), "\x1b[0m", "a\nb"))] = inside[key]
    elif isinstance(inside[key], int | float) and not isinstance(inside[key], bool):
        inside[key] = rng.choice((inside[key] + 1, -inside[key], inside[key] * 2, inside[key] / 3))
    else:
        inside[key] = [inside[key]]


_BY_SHAPE: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "json": _json,
    "yaml": _yaml,
    "gzip": _gzip,
    "safetensors": _safetensors,
    "text": _text,
}
