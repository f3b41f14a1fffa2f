"""Cuts of parts into pieces, by hand."""

import numpy as np
import pytest

from gradweave.schedulers.ordering.cuts import (
    DENOMINATOR,
    equal_cut,
    in_turn,
    integer_shares,
    periodic_cut,
    usual_share,
    while_it_pays,
)
from gradweave.schedulers.packing.parts import parts_of
from gradweave.topology.faults import slowed
from gradweave.topology.spec import from_spec


def test_a_usual_share_counts_parts_of_half_the_largest_and_no_smaller():
    assert usual_share(np.array([1.0, 0.5, 0.49])) == 0.75
    assert usual_share(np.array([1.0, 0.8, 0.6, 0.1])) == 0.8


def test_pieces_of_parts_take_turns():
    """Three pieces of the first part, one of the second: the second is in the middle."""
    cut = in_turn(np.array([0.6, 0.4]), np.array([3, 1]))
    assert cut.part.tolist() == [0, 1, 0, 0] or cut.part.tolist() == [0, 0, 1, 0]
    assert cut.number[cut.part == 0].tolist() == [0, 1, 2]
    assert cut.share[cut.part == 0] == pytest.approx([0.2] * 3)
    assert cut.share[cut.part == 1] == pytest.approx([0.4])


@pytest.mark.parametrize("collective", ["all_gather", "all_reduce"])
def test_equal_pieces_are_shared_out_per_root_where_roots_are_fixed(collective):
    """A star with a slow server: an all-gather gives every root two of eight pieces."""
    network = slowed(from_spec("star:4"), {(0, 4): 0.5}).topology
    parts = parts_of(network, collective)
    cut = equal_cut(parts, 8)
    assert cut.share.tolist() == [1 / 8] * 8
    of_root = np.bincount(parts.root[cut.part], minlength=4)
    assert of_root.sum() == 8
    if collective == "all_gather":
        assert of_root.tolist() == [2, 2, 2, 2]
    else:
        # The slow server roots no more than the others.
        assert of_root[0] == of_root.min()
    for part in range(len(parts.share)):
        there = cut.part == part
        assert cut.number[there].tolist() == list(range(there.sum()))


def test_a_period_that_is_longer_than_all_pieces_is_none():
    parts = parts_of(from_spec("star:4"), "all_gather")
    assert periodic_cut(parts, 1) is None
    cut = periodic_cut(parts, 8)
    assert cut is not None
    assert len(set(np.bincount(cut.part))) == 1  # equal shares: as many pieces each


def test_integer_shares_add_up_in_each_group_and_none_is_zero():
    share = np.array([0.002, 0.5, 0.498, 3.0, 1.0])
    fine = integer_shares(share, np.array([0, 0, 0, 1, 1]), 1000)
    assert fine.tolist() == [2, 500, 498, 750, 250]
    assert integer_shares(np.array([1e-30, 1.0])).tolist() == [1, DENOMINATOR]
    alone = integer_shares(share[3:])
    assert alone.tolist() == [DENOMINATOR * 3 // 4, DENOMINATOR // 4]


def test_finer_pieces_are_tried_for_as_long_as_they_pay():
    seconds = {1: 9.0, 2: 7.0, 4: 8.0, 8: 8.5, 16: 1.0}
    tried: list[int] = []

    def seconds_of(number: int, _: float) -> float:
        tried.append(number)
        return seconds[number]

    while_it_pays([1, 2, 4, 8, 16], seconds_of)
    assert tried[:3] == [1, 2, 4] and 16 not in tried
