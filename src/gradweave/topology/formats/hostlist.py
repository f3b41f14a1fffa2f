"""Slurm's hostlist expressions: ``tux[0-3,12],login1`` are six hosts."""

import itertools
import math
import re

from gradweave.errors import FileError

MAX_HOSTS = 1 << 16
"""Hosts of one expression at most."""
_PART = re.compile(r"[^\[\],\s]+|\[[^\[\]\s]*\]")
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


def hosts_of(text: str) -> list[str]:
    """The hosts of an expression, in its order.

    Args:
        text: names, comma-separated, each with any number of ranges in brackets; leading zeros are
            kept.

    Raises:
        FileError: it is no such expression, or has more than `MAX_HOSTS` hosts.

    >>> hosts_of("tux[0-2,12],r[1-2]n[08-09],login")
    ['tux0', 'tux1', 'tux2', 'tux12', 'r1n08', 'r1n09', 'r2n08', 'r2n09', 'login']
    """
    hosts: list[str] = []
    for name in _names(text):
        parts = _PART.findall(name)
        if "".join(parts) != name:
            raise FileError(f"expected names such as tux[0-3,12], got {name!r:.60}")
        choices = [_numbers(name, part) if part[0] == "[" else [part] for part in parts]
        if len(hosts) + math.prod(map(len, choices)) > MAX_HOSTS:
            raise FileError(f"{text!r:.60}: more than {MAX_HOSTS:,} hosts")
        hosts += map("".join, itertools.product(*choices))
    return hosts


def _names(text: str) -> list[str]:
    """The expression's names, at commas outside brackets."""
    names, depth, begun = [], 0, 0
    for place, character in enumerate(text):
        depth += {"[": 1, "]": -1}.get(character, 0)
        if character == "," and depth == 0:
            names.append(text[begun:place])
            begun = place + 1
    names.append(text[begun:])
    if depth or not all(names):
        raise FileError(f"expected names such as tux[0-3,12],login1, got {text!r:.60}")
    return names


def _numbers(name: str, brackets: str) -> list[str]:
    """The numbers of a pair of brackets, with their leading zeros."""
    numbers: list[str] = []
    for part in brackets[1:-1].split(","):
        match = _RANGE.fullmatch(part)
        first, last = (match[1], match[2] or match[1]) if match else ("1", "0")
        if int(first) > int(last):
            raise FileError(f"{name!r:.60}: expected a range such as 0-3, got {part!r:.40}")
        if int(last) - int(first) >= MAX_HOSTS:
            raise FileError(f"{name!r:.60}: more than {MAX_HOSTS:,} hosts")
        numbers += [str(n).zfill(len(first)) for n in range(int(first), int(last) + 1)]
    return numbers
