"""The exponential function from basic operations only, so that all processors get the same bits.

The exponentials of NumPy and of C libraries differ in the last bit between processors with and
without certain instructions. When costs are compared, one bit can lead to another schedule.
"""

import math

import numpy as np

from gradweave.common.compiled import kernel
from gradweave.topology.topology import Floats

_LOG2_E = 1.4426950408889634
_LN_2, _LN_2_REST = 0.6931471803691238, 1.9082149292705877e-10
"""Their sum is the logarithm of 2, split as in fdlibm's `exp` (after Cody and Waite, 1980), so that
multiples of the first up to 2000 are exact."""
_TERMS = 14
"""Terms of the Taylor series, for up to half that logarithm: the next term is below one bit."""


@kernel
def exponentials(x: Floats) -> Floats:
    """[N] exponentials of finite numbers, within two bits of the last place.

    Args:
        x: [N] finite numbers.
    """
    found = np.empty(len(x))
    for i in range(len(x)):
        found[i] = exponential(x[i])
    return found


@kernel
def exponential(x: float) -> float:
    """The exponential of one number, as in `exponentials`."""
    power = math.floor(x * _LOG2_E + 0.5)
    rest = (x - power * _LN_2) - power * _LN_2_REST
    sum_ = 1.0
    for n in range(_TERMS, 0, -1):
        sum_ = 1.0 + rest * sum_ / n
    return math.ldexp(sum_, int(min(max(power, -2000), 2000)))
