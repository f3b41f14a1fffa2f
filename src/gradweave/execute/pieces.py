"""How a gradient is cut into a schedule's pieces."""

import numpy as np
from numpy.typing import NDArray

from gradweave.errors import OptionError


def piece_offsets(length: int, pieces: int) -> NDArray[np.int64]:
    """Cuts a gradient into pieces whose sizes differ by one element at most, larger ones first.

    Args:
        length: elements of the gradient; where it is smaller than the number of pieces, the last
            pieces are empty.
        pieces: P.

    Returns:
        [P+1] piece p is the elements ``offsets[p]`` to ``offsets[p + 1] − 1``.

    >>> piece_offsets(10, 4).tolist()
    [0, 3, 6, 8, 10]
    """
    if length < 0 or pieces < 1:
        raise OptionError(
            f"expected a length of at least 0 and at least 1 piece, got {length} and {pieces}"
        )
    least, larger = divmod(length, pieces)
    numbers = np.arange(pieces + 1, dtype=np.int64)
    return numbers * least + np.minimum(numbers, larger)
