"""Capacities derived from bandwidths: multiples of their greatest common unit."""

import math
import warnings
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from gradweave.errors import InputWarning, TopologyError
from gradweave.topology.units import format_bandwidth

MAX_CAPACITY = 10_000
"""Largest capacity derived from bandwidths; beyond it they have no useful common unit."""
TOLERANCE = 0.05
"""Largest relative error of rounded capacities in proportion to the bandwidths."""
_FEW = 256
"""Capacities up to here stay exact, unless rounding makes them `_MUCH_FEWER` times smaller."""
_MUCH_FEWER = 16


def capacities_from_bandwidths(
    bandwidth_bytes_per_s: NDArray[np.float64], name: str = "network", *, rounded: bool = True
) -> NDArray[np.int64]:
    """Divides bandwidths by their greatest common unit; measured ones approximately.

    Measured bandwidths, such as 97, 100.3 and 33.333 Gbit/s, have no useful common unit. They get
    the smallest capacities that are proportional to them within `TOLERANCE`, if those are many
    times smaller, with an `InputWarning`. So do those whose capacities would exceed
    `MAX_CAPACITY`; a link that is more than that many times slower than the fastest still carries
    one transfer.

    Args:
        bandwidth_bytes_per_s: [L] bandwidths, positive.
        name: the network's name, for the warning.
        rounded: whether an error of up to `TOLERANCE` is allowed if exact capacities do not
            exceed `MAX_CAPACITY`.

    Returns:
        [L] transfers that each link carries in one round.

    Source: docs/concepts/semantics.md.

    >>> capacities_from_bandwidths(np.array([10e9, 25e9, 40e9]) / 8)
    array([2, 5, 8])
    """
    values, place = np.unique(bandwidth_bytes_per_s, return_inverse=True)
    # Every float is a fraction; a whole number of bits per second is a whole number of eighths.
    exact = _in_common_units([Fraction(value) for value in values.tolist()])
    largest = max(exact, default=1)
    limit = largest // (_MUCH_FEWER if largest <= _FEW else 2) if rounded else 0
    proportional = _in_proportion(values, limit)
    if proportional is not None:
        _warn_of_rounding(name, values, *proportional)
        return proportional[0][place]
    if largest > MAX_CAPACITY:
        found = _in_proportion(values, MAX_CAPACITY) or _rounded(values, MAX_CAPACITY)
        _warn_of_rounding(name, values, *found)
        return found[0][place]
    return np.array(exact, np.int64)[place]


def capacities_from_rates(name: str, rates: Sequence[Fraction]) -> list[int]:
    """Divides rates by their greatest common unit.

    Args:
        name: the network's name, for the message.
        rates: exact rates in any unit, positive.

    Raises:
        TopologyError: a capacity would exceed `MAX_CAPACITY`.

    >>> capacities_from_rates("net", [Fraction(1), Fraction(2, 3), Fraction(1)])
    [3, 2, 3]
    """
    capacities = _in_common_units(rates)
    if capacities and max(capacities) > MAX_CAPACITY:
        raise TopologyError(
            f"{name}: the fastest link is more than {MAX_CAPACITY:,} times the greatest common "
            "unit of all bandwidths; choose rounder rates"
        )
    return capacities


def _in_common_units(rates: Sequence[Fraction]) -> list[int]:
    """Rates divided by their greatest common unit."""
    common = math.lcm(*(rate.denominator for rate in rates))
    whole = [rate.numerator * (common // rate.denominator) for rate in rates]
    unit = math.gcd(*whole)
    return [value // unit for value in whole]


def _warn_of_rounding(
    name: str, values: NDArray[np.float64], capacities: NDArray[np.int64], error: float
) -> None:
    least, largest = int(capacities.min()), int(capacities.max())
    carried = f"{least} to {largest} transfers" if least < largest else f"{least} transfer"
    within = f"in proportion to within {error:.1%}"
    if error > TOLERANCE:
        within = "the slowest more than in proportion"
    warnings.warn(
        f"{name}: bandwidths {_listed(values)} have no useful common unit: links carry {carried} "
        f"per round, {within}; predicted seconds use the bandwidths as they are. Capacities of "
        "links, where a format has them, choose others",
        InputWarning,
        stacklevel=3,
    )


def _in_proportion(
    values: NDArray[np.float64], most: int
) -> tuple[NDArray[np.int64], float] | None:
    """The smallest capacities in proportion to bandwidths, and their relative error.

    Args:
        values: [K] bandwidths, ascending.
        most: largest capacity accepted.
    """
    if most < 1:
        return None
    digits = np.array([float(f"{value:.3e}") for value in values.tolist()])
    sample = np.unique(digits)  # a file may have a million measured bandwidths
    least = int(sample[-1] / sample[0] * (1 - TOLERANCE) / (1 + TOLERANCE))
    for capacity in range(max(1, least), min(most, MAX_CAPACITY) + 1):
        if _rounded(sample, capacity)[1] <= TOLERANCE:
            return _rounded(values, capacity)
    return None


def _rounded(values: NDArray[np.float64], largest: int) -> tuple[NDArray[np.int64], float]:
    """Capacities where the fastest link's is ``largest``, and their relative error."""
    capacities = np.maximum(np.rint(values * (largest / values[-1])), 1)
    ratio = capacities / values
    return capacities.astype(np.int64), float(np.ptp(ratio) / (ratio.max() + ratio.min()))


def _listed(values: NDArray[np.float64]) -> str:
    first = ", ".join(format_bandwidth(value) for value in values[:4].tolist())
    return first + ", …" * (len(values) > 4)
