"""How contributions are combined: sum, mean, maximum, minimum."""

from typing import Any, Literal, get_args

import numpy as np

from gradweave.errors import OptionError

Reduction = Literal["sum", "mean", "max", "min"]
"""How elements of all servers are combined."""
REDUCTIONS: tuple[str, ...] = get_args(Reduction)


def check_reduction(reduction: str, *, floating: bool, dtype: Any) -> Reduction:
    """The reduction of a name, for a type.

    Raises:
        OptionError: the name is unknown, or the reduction is the mean and the type not floating.
    """
    if reduction not in REDUCTIONS:
        raise OptionError(f"reduction: expected one of {', '.join(REDUCTIONS)}, got {reduction!r}")
    if reduction == "mean" and not floating:
        raise OptionError(
            f"reduction: the mean needs a floating-point type, got {dtype}; take sum and divide, "
            "or convert first"
        )
    return reduction  # pyright: ignore[reportReturnType]  # checked above


def combine(reduction: Reduction, into: np.ndarray, other: np.ndarray) -> None:
    """Adds (or maximises, minimises) `other` into `into`, in place; a mean adds."""
    function = {"max": np.maximum, "min": np.minimum}.get(reduction, np.add)
    function(into, other, out=into)
