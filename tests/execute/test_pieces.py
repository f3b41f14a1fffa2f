"""How a gradient is cut."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradweave.errors import OptionError
from gradweave.execute import piece_offsets


@given(st.integers(0, 1 << 40), st.integers(1, 300))
def test_pieces_cover_everything_once_and_are_nearly_equal(length: int, pieces: int):
    offsets = piece_offsets(length, pieces)
    sizes = np.diff(offsets)
    assert offsets.dtype == np.int64
    assert (offsets[0], offsets[-1], len(sizes)) == (0, length, pieces)
    assert sizes.max() - sizes.min() <= 1
    assert (np.diff(sizes) <= 0).all()


def test_fewer_elements_than_pieces():
    assert piece_offsets(2, 4).tolist() == [0, 1, 2, 2, 2]
    assert piece_offsets(0, 3).tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(("length", "pieces"), [(-1, 3), (3, 0), (3, -1)])
def test_refusals(length: int, pieces: int):
    with pytest.raises(OptionError, match=f"got {length} and {pieces}"):
        piece_offsets(length, pieces)
