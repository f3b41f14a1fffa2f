"""Checks that settings share: each refuses fields, by their names, in one line."""

import math
from typing import Any

from gradweave.errors import OptionError


def check_above_zero(settings: Any, *names: str) -> None:
    """Refuses numbers that are not above 0, by the fields' names."""
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
