"""Reductions: sum, mean, maximum and minimum."""

from typing import Any, Literal, get_args

import numpy as np

from gradweave.errors import OptionError

Reduction = Literal["sum", "mean", "max", "min"]
"""How the elements of all servers are combined."""
REDUCTIONS: tuple[str, ...] = get_args(Reduction)


def check_reduction(reduction: str, *, floating: bool, dtype: Any) -> Reduction:
    """Checks the name of a reduction against an element type.

    Raises:
        OptionError: the name is unknown, or the mean is asked for of a type that is not floating.
    """
    if reduction not in REDUCTIONS:
        raise OptionError(f"reduction: expected one of {', '.join(REDUCTIONS)}, got {reduction!r}")
    if reduction == "mean" and not floating:
        raise OptionError(
            f"reduction: the mean needs a floating-point type, got {dtype}; use sum and divide, "
            "or convert first"
        )
    return reduction  # pyright: ignore[reportReturnType]  # checked above


def combine(reduction: Reduction, into: np.ndarray, other: np.ndarray) -> None:
    """Combines `other` into `into`, in place; the mean adds, and is divided later."""
    function = {"max": np.maximum, "min": np.minimum}.get(reduction, np.add)
    function(into, other, out=into)
