"""Checks of settings, which reject values of named fields in one line."""

import difflib
import math
from collections.abc import Iterable
from typing import Any

from gradweave.errors import OptionError


def check_above_zero(settings: Any, *names: str) -> None:
    """Rejects fields that are not above 0."""
    for name in names:
        value = getattr(settings, name)
        if not 0 < value < math.inf:
            raise OptionError(f"{name}: expected a number above 0, got {value}")


def check_not_below_zero(settings: Any, *names: str) -> None:
    """Rejects numbers below 0."""
    for name in names:
        value = getattr(settings, name)
        if not 0 <= value < math.inf:
            raise OptionError(f"{name}: expected a finite number of at least 0, got {value}")


def check_at_least_one(settings: Any, *names: str) -> None:
    """Rejects counts below 1."""
    for name in names:
        value = getattr(settings, name)
        if value < 1:
            raise OptionError(f"{name}: expected at least 1, got {value}")


def check_share(settings: Any, *names: str) -> None:
    """Rejects numbers outside 0 to 1."""
    for name in names:
        value = getattr(settings, name)
        if not 0 <= value <= 1:
            raise OptionError(f"{name}: expected 0 to 1, got {value}")


_ALIKE = 0.65
"""Minimum similarity of two names for one to be suggested for the other."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The known name most similar to an unknown one, as a question followed by a space.

    Empty if no name is similar and none contains it as a word. Case does not matter.

    >>> did_you_mean("clib", ["clip", "value_clip"])
    'did you mean clip? '
    >>> did_you_mean("tree", ["ring", "double_tree"])
    'did you mean double_tree? '
    >>> did_you_mean("speed", ["clip"])
    ''
    """
    by_lower = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=_ALIKE)
    near += [each for each in by_lower if name.lower() in each.split("_")]
    return f"did you mean {by_lower[near[0]]}? " if near else ""


def expected_one_of(
    what: str, known: Iterable[str], name: Any, shown: Iterable[str] | None = None
) -> str:
    """Message for an unknown name.

    Args:
        what: kind of thing that the name should denote.
        known: the known names.
        name: the unknown name.
        shown: names for the message, if the known names are too many for a line.

    >>> expected_one_of("algorithm", ["ippo", "vdn"], "ipo")
    "algorithm: expected one of ippo, vdn, got 'ipo'; did you mean ippo?"
    """
    names = list(known)
    hint = did_you_mean(str(name), names)
    listed = ", ".join(names if shown is None else shown)
    message = f"{what}: expected one of {listed}, got {name!r:.60}"
    return f"{message}; {hint.rstrip()}" if hint else message
