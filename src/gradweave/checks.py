"""Checks of settings: each refuses values of named fields, in one line."""

import difflib
import math
from collections.abc import Iterable
from typing import Any

from gradweave.errors import OptionError


def check_above_zero(settings: Any, *names: str) -> None:
    """Refuses fields that are not above 0."""
    for name in names:
        value = getattr(settings, name)
        if not 0 < value < math.inf:
            raise OptionError(f"{name}: expected a number above 0, got {value}")


def check_not_below_zero(settings: Any, *names: str) -> None:
    """Refuses numbers below 0."""
    for name in names:
        value = getattr(settings, name)
        if not 0 <= value < math.inf:
            raise OptionError(f"{name}: expected a finite number of at least 0, got {value}")


def check_at_least_one(settings: Any, *names: str) -> None:
    """Refuses counts below 1."""
    for name in names:
        value = getattr(settings, name)
        if value < 1:
            raise OptionError(f"{name}: expected at least 1, got {value}")


def check_share(settings: Any, *names: str) -> None:
    """Refuses numbers outside of 0 to 1."""
    for name in names:
        value = getattr(settings, name)
        if not 0 <= value <= 1:
            raise OptionError(f"{name}: expected 0 to 1, got {value}")


_ALIKE = 0.65
"""Least similarity of two names for one to be suggested for the other."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The known name most similar to an unknown one, as a question with a space after it.

    Empty where none is similar. Case does not count.

    >>> did_you_mean("clib", ["clip", "value_clip"])
    'did you mean clip? '
    >>> did_you_mean("speed", ["clip"])
    ''
    """
    by_lower = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=_ALIKE)
    return f"did you mean {by_lower[near[0]]}? " if near else ""


def expected_one_of(
    what: str, known: Iterable[str], name: Any, shown: Iterable[str] | None = None
) -> str:
    """Message for an unknown name.

    Args:
        what: kind of thing that it should name.
        known: the known names.
        name: the unknown one.
        shown: names for the message, where the known ones are too many for a line.

    >>> expected_one_of("algorithm", ["ippo", "vdn"], "ipo")
    "algorithm: expected one of ippo, vdn, got 'ipo'; did you mean ippo?"
    """
    names = list(known)
    hint = did_you_mean(str(name), names)
    listed = ", ".join(names if shown is None else shown)
    message = f"{what}: expected one of {listed}, got {name!r:.60}"
    return f"{message}; {hint.rstrip()}" if hint else message
