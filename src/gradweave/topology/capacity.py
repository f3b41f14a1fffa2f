"""Capacities, where only bandwidths are known."""

import functools
import math
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from gradweave.errors import TopologyError
from gradweave.topology.units import format_bandwidth

MAX_CAPACITY = 10_000
"""Largest capacity derived from bandwidths; more means that they have no useful common unit."""


def capacities_from_bandwidths(bandwidth_bytes_per_s: NDArray[np.float64]) -> NDArray[np.int64]:
    """Divides bandwidths by their greatest common unit.

    Args:
        bandwidth_bytes_per_s: [L] bandwidths, positive.

    Returns:
        [L] transfers that each link carries in one round.

    Raises:
        TopologyError: the greatest common unit is so small that a link would carry more than
            `MAX_CAPACITY`.

    Source: docs/concepts/semantics.md.

    >>> capacities_from_bandwidths(np.array([10e9, 25e9, 40e9]) / 8)
    array([2, 5, 8])
    """
    values, place = np.unique(bandwidth_bytes_per_s, return_inverse=True)
    # Exact: every float is a fraction, and a whole number of bits per second is a whole number of
    # eighths.
    exact = [Fraction(value) for value in values.tolist()]
    unit = functools.reduce(_common_unit, exact, Fraction(0))
    capacities = [int(value / unit) for value in exact]
    if capacities and max(capacities) > MAX_CAPACITY:
        shown = ", ".join(format_bandwidth(value) for value in values[:4].tolist())
        raise TopologyError(
            f"bandwidths {shown}{', …' * (len(values) > 4)}: the largest is more than "
            f"{MAX_CAPACITY:,} times their greatest common unit; give a capacity for each link"
        )
    return np.array(capacities, np.int64)[place]


def _common_unit(a: Fraction, b: Fraction) -> Fraction:
    """The largest number of which both are whole multiples."""
    return Fraction(
        math.gcd(a.numerator * b.denominator, b.numerator * a.denominator),
        a.denominator * b.denominator,
    )
