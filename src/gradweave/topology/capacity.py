"""Capacities, where only bandwidths are known."""

import functools
import math
import warnings
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from gradweave.errors import InputWarning, TopologyError
from gradweave.topology.units import format_bandwidth

MAX_CAPACITY = 10_000
"""Largest capacity derived from bandwidths; more means that they have no useful common unit."""
TOLERANCE = 0.05
"""How far a link's share of a round may be from its share of bandwidth, where capacities are
rounded."""
_FEW = 256
"""Capacities up to here are left exact, unless rounding makes them `_MUCH_FEWER`."""
_MUCH_FEWER = 16


def capacities_from_bandwidths(
    bandwidth_bytes_per_s: NDArray[np.float64], name: str = "network", *, rounded: bool = True
) -> NDArray[np.int64]:
    """Divides bandwidths by their greatest common unit, or by about that where they are measured.

    Measured bandwidths, such as 97, 100.3 and 33.333 Gbit/s, have no common unit worth the name.
    They get the smallest capacities that are in proportion to them to within `TOLERANCE`, where
    those are many times smaller, and an `InputWarning` says so.

    Args:
        bandwidth_bytes_per_s: [L] bandwidths, positive.
        name: the network's name, for the warning.
        rounded: whether they may be in proportion to within `TOLERANCE` rather than exactly.

    Returns:
        [L] transfers that each link carries in one round.

    Raises:
        TopologyError: the bandwidths lie so far apart that a link would carry more than
            `MAX_CAPACITY`.

    Source: docs/concepts/semantics.md.

    >>> capacities_from_bandwidths(np.array([10e9, 25e9, 40e9]) / 8)
    array([2, 5, 8])
    """
    values, place = np.unique(bandwidth_bytes_per_s, return_inverse=True)
    # Exact: every float is a fraction, and a whole number of bits per second is a whole number of
    # eighths.
    fractions = [Fraction(value) for value in values.tolist()]
    unit = functools.reduce(_common_unit, fractions, Fraction(0))
    exact = [int(value / unit) for value in fractions]
    most = max(exact, default=1)
    fewer = most // (_MUCH_FEWER if most <= _FEW else 2) if rounded else 0
    near = _in_proportion(values, fewer)
    if near is not None:
        capacities, error = near
        least, largest = int(capacities.min()), int(capacities.max())
        carried = f"{least} to {largest} transfers" if least < largest else f"{least} transfer"
        warnings.warn(
            f"{name}: bandwidths {_shown(values)} have no common unit worth the name: links carry "
            f"{carried} a round, in proportion to within "
            f"{error:.1%}; seconds count the bandwidths as they are. State a capacity for each "
            "link to have other ones",
            InputWarning,
            stacklevel=2,
        )
        return capacities[place]
    if most > MAX_CAPACITY:
        raise TopologyError(
            f"bandwidths {_shown(values)}: the largest would carry more than {MAX_CAPACITY:,} "
            "transfers a round; give a capacity for each link"
        )
    return np.array(exact, np.int64)[place]


def _in_proportion(
    values: NDArray[np.float64], most: int
) -> tuple[NDArray[np.int64], float] | None:
    """The smallest capacities in proportion to bandwidths, and how far from it they are.

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


def _rounded(values: NDArray[np.float64], most: int) -> tuple[NDArray[np.int64], float]:
    """Capacities where the fastest link's is ``most``, and how far they are from proportion."""
    capacities = np.maximum(np.rint(values * (most / values[-1])), 1)
    ratio = capacities / values
    return capacities.astype(np.int64), float(np.ptp(ratio) / (ratio.max() + ratio.min()))


def _shown(values: NDArray[np.float64]) -> str:
    shown = ", ".join(format_bandwidth(value) for value in values[:4].tolist())
    return shown + ", …" * (len(values) > 4)


def _common_unit(a: Fraction, b: Fraction) -> Fraction:
    """The largest number of which both are whole multiples."""
    return Fraction(
        math.gcd(a.numerator * b.denominator, b.numerator * a.denominator),
        a.denominator * b.denominator,
    )
