"""Pieces of unequal size: shares of the gradient, and the number of elements of each share."""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradweave.errors import OptionError, ScheduleError
from gradweave.topology.topology import Integers

MAX_DENOMINATOR = 1 << 31
"""Largest common denominator of the shares: a gradient of up to 4·10⁹ elements is divided without
overflow, and no share is lost in a float64."""


def integers(shares: Sequence[Fraction | int | str]) -> NDArray[np.int64]:
    """Shares as integers over their sum, as `gradweave.schedules.Schedule` takes them.

    Args:
        shares: [P] fractions that sum to one: ``Fraction(13, 29)``, ``"13/29"``, 0 or 1.

    Raises:
        ScheduleError: a share is not such a fraction, or is negative; they do not sum to one; or
            their common denominator is above `MAX_DENOMINATOR`.

    >>> integers(["1/2", "1/3", "1/6"]).tolist()
    [3, 2, 1]
    """
    exact = [_fraction(piece, share) for piece, share in enumerate(shares)]
    denominator = 1
    for piece, share in enumerate(exact):
        denominator = math.lcm(denominator, share.denominator)
        if denominator > MAX_DENOMINATOR:
            raise ScheduleError(
                f"shares[{piece}]: expected a common denominator of at most {MAX_DENOMINATOR}; "
                "round the shares"
            )
    if sum(exact) != 1:
        raise ScheduleError(f"shares: expected a sum of 1, got {float(sum(exact)):.9g}")
    return np.array([int(share * denominator) for share in exact], np.int64)


def normalised(
    shares: Any, pieces: int, starts: Integers | None = None
) -> NDArray[np.int64] | None:
    """Integer shares in lowest terms, validated, or None if all pieces are equal.

    Args:
        shares: [P] integers with any common factor, or None.
        pieces: P.
        starts: the first piece of each block that is divided separately; only 0 if not given.

    Raises:
        ScheduleError: names the first invalid share.
    """
    if shares is None:
        return None
    array = np.asarray(shares)
    if array.shape != (pieces,) or array.dtype.kind not in "iu":
        raise ScheduleError(
            f"shares: expected {pieces} integers, one a piece; got {_found(array)} "
            "(gradweave.schedules.integer_shares makes them of fractions)"
        )
    if array.min() < 0:
        piece = int(np.argmax(array < 0))
        raise ScheduleError(f"shares[{piece}]: expected at least 0, got {array[piece]}")
    starts = np.zeros(1, np.int64) if starts is None else starts
    common = np.gcd.reduceat(array, starts)
    if not common.all():
        raise ScheduleError("shares: expected a positive sum, got 0")
    block = np.repeat(np.arange(len(starts)), np.diff(starts, append=pieces))
    array = array // common[block]
    if np.add.reduceat(array.astype(np.float64), starts).max() > MAX_DENOMINATOR:
        raise ScheduleError(
            f"shares: expected a sum of at most {MAX_DENOMINATOR} in lowest terms; round the shares"
        )
    return None if (array == 1).all() else array.astype(np.int64)


def apportion(length: int, shares: Integers) -> NDArray[np.int64]:
    """Divides elements by shares: each piece gets its share rounded down or up.

    Remaining elements go to the pieces with the largest remainders, earlier pieces first. So equal
    pieces differ by at most one element, larger pieces first, and a share of zero gets nothing.

    Args:
        length: elements, at least 0.
        shares: [P] integers, at least 0, that sum to at most `MAX_DENOMINATOR`.

    Returns:
        [P] number of elements of each piece; they sum to `length`.

    Source: Hamilton's method of largest remainders.

    >>> apportion(10, np.array([13, 16, 0])).tolist()
    [4, 6, 0]
    """
    total = int(shares.sum())
    if length < 0:
        raise OptionError(f"expected a length of at least 0, got {length}")
    whole, rest = divmod(length, total)
    # rest < total ≤ 2³¹ and each share ≤ 2³¹: the products fit 64 bits.
    wide = shares.astype(np.int64)
    sizes, remainder = np.divmod(wide * rest, total)
    sizes += wide * whole
    largest_first = np.argsort(-remainder, kind="stable")
    sizes[largest_first[: length - int(sizes.sum())]] += 1
    return sizes


def _fraction(piece: int, share: Fraction | int | str) -> Fraction:
    """One share, exactly. Strings may be of any length, so the length is checked before parsing."""
    expected = "expected a fraction from 0 to 1, such as 13/29"
    if isinstance(share, str) and len(share) > 2 * len(str(MAX_DENOMINATOR)) + 1:
        raise ScheduleError(
            f"shares[{piece}]: expected a denominator of at most {MAX_DENOMINATOR}, got "
            f"{len(share)} characters"
        )
    if isinstance(share, bool | float | np.floating):
        raise ScheduleError(f"shares[{piece}]: {expected}; got {share}, which is not exact")
    try:
        exact = Fraction(share)
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise ScheduleError(f"shares[{piece}]: {expected}; got {share!r:.40}") from error
    if not 0 <= exact <= 1:
        raise ScheduleError(f"shares[{piece}]: {expected}; got {share!r:.40}")
    return exact


def _found(array: NDArray) -> str:
    if array.ndim != 1:
        return f"{array.ndim} dimensions"
    return f"{len(array)} of {array.dtype}"
