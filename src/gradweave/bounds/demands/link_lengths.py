"""Link lengths of any certificate: validation, rounding to small integers, the best of several."""

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from gradweave.errors import OptionError
from gradweave.topology.topology import Floats, Topology

MAX_LENGTH = 1 << 40
"""Largest length of a link, so that sums along paths are exact in floats."""
DENOMINATORS = (1, 2, 3, 4, 6, 12, 60, 1_000, 1 << 14, 1 << 20, 1 << 30)
"""Lengths are rounded to multiples of the largest over one of these: the first that loses less
than `ROUNDING` is used, since small integers are easier to check."""
ROUNDING = 1e-6
"""Part of the bound that may be lost to small integers."""

Certificate = TypeVar("Certificate")


def given_lengths(topology: Topology, lengths: Floats) -> NDArray[np.float64]:
    """[L] lengths given by a caller.

    Raises:
        OptionError: unless there is one length of at least 0 for each link direction.
    """
    given = np.asarray(lengths, np.float64)
    sound = given.shape == (len(topology.source),) and np.isfinite(given).all()
    if not (sound and (given >= 0).all()):
        raise OptionError("lengths: expected one of at least 0 for each link direction")
    return given


def checked_integers(topology: Topology, lengths: NDArray) -> NDArray[np.int64]:
    """[L] lengths of a certificate.

    Raises:
        OptionError: unless there is an integer from 0 to `MAX_LENGTH` for each link direction.
    """
    given = np.asarray(lengths)
    if given.shape != (len(topology.source),) or given.dtype.kind not in "iu":
        raise OptionError("lengths: expected integers, one for each link direction")
    if given.min() < 0 or given.max() > MAX_LENGTH:
        link = int(np.argmax((given < 0) | (given > MAX_LENGTH)))
        raise OptionError(
            f"lengths: link {topology.link_name(link)}: expected 0 to {MAX_LENGTH:,}, "
            f"got {given[link]}"
        )
    return given.astype(np.int64)


def in_small_integers(
    length: Floats,
    farthest: float,
    certificate: Callable[[NDArray[np.int64]], Certificate],
    time: Callable[[Certificate], Fraction],
) -> Certificate:
    """A certificate with lengths in integers as small as possible without losing much of the bound.

    Args:
        length: [L] at least 0, not all 0.
        farthest: the longest of the shortest paths that count. Longer links are cut to this length,
            so that a link of tiny bandwidth, whose length is huge, does not round the others to 0.
        certificate: makes the certificate of integer lengths.
        time: the bound that a certificate proves.
    """
    length = np.minimum(length, farthest) if farthest > 0 else length

    def rounded(denominator: int) -> Certificate:
        scaled = np.rint(length / length.max() * denominator).astype(np.int64)
        return certificate(scaled // (np.gcd.reduce(scaled) or 1))

    finest = rounded(DENOMINATORS[-1])
    least = time(finest) * (1 - Fraction(ROUNDING))
    return next((one for one in map(rounded, DENOMINATORS[:-1]) if time(one) >= least), finest)


def strongest(found: Sequence[Certificate], time: Callable[[Certificate], Fraction]) -> Certificate:
    """The first certificate that proves about as much as the best; simple ones come first."""
    most = max(map(time, found))
    return next(one for one in found if time(one) >= most * (1 - Fraction(ROUNDING)))
