"""Shares of a gradient, and the elements that they come to."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gradweave as gw
from gradweave.errors import OptionError, ScheduleError
from gradweave.schedules import Schedule, integer_shares
from gradweave.schedules.file import load
from gradweave.schedules.shares import MAX_DENOMINATOR, apportion

RING = gw.schedulers.Ring().schedule(gw.topology.ring(4))


@given(st.integers(0, 1 << 40), st.integers(1, 300))
def test_equal_pieces_differ_by_one_element_at_most_larger_ones_first(length: int, pieces: int):
    sizes = apportion(length, np.ones(pieces, np.int64))
    assert sizes.dtype == np.int64
    assert (sizes.sum(), len(sizes)) == (length, pieces)
    assert sizes.max() - sizes.min() <= 1
    assert (np.diff(sizes) <= 0).all()


@given(
    st.integers(0, 1 << 40),
    st.lists(st.integers(0, MAX_DENOMINATOR // 40), min_size=1, max_size=40).filter(any),
)
def test_every_piece_is_its_share_rounded_down_or_up(length: int, shares: list[int]):
    sizes = apportion(length, np.array(shares)).tolist()
    assert sum(sizes) == length
    for size, share in zip(sizes, shares, strict=True):
        exact = Fraction(share * length, sum(shares))
        assert abs(size - exact) < 1


def test_fewer_elements_than_pieces():
    assert RING.piece_offsets(2).tolist() == [0, 1, 2, 2, 2]
    assert RING.piece_offsets(0).tolist() == [0, 0, 0, 0, 0]
    with pytest.raises(OptionError, match="expected a length of at least 0, got -1"):
        RING.piece_offsets(-1)


def test_shares_are_kept_in_lowest_terms_and_equal_ones_are_none():
    assert RING.replace(shares=[4, 0, 2, 2]).shares.tolist() == [2, 0, 1, 1]
    assert RING.replace(shares=np.full(4, 7)).shares is None
    assert RING.share.tolist() == [0.25] * 4
    assert RING.replace(shares=[4, 0, 2, 2]).share.tolist() == [0.5, 0, 0.25, 0.25]


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ([1, 2, 3], "expected 4 integers, one a piece; got 3 of int64"),
        ([[1, 2, 3, 4]], "got 2 dimensions"),
        ([1, -1, 3, 4], r"shares\[1\]: expected at least 0, got -1"),
        ([0, 0, 0, 0], "expected a positive sum, got 0"),
        ([0.5, 0.5, 0, 0], "expected 4 integers, one a piece; got 4 of float64"),
        ([1, 1, 1, MAX_DENOMINATOR], f"expected a sum of at most {MAX_DENOMINATOR}"),
        ([(1 << 62) + 1] * 3 + [1], f"expected a sum of at most {MAX_DENOMINATOR}"),
        ([1 << 70, 1, 1, 1], "expected 4 integers, one a piece; got 4 of object"),
    ],
)
def test_a_schedule_refuses_other_shares(shares: list, message: str):
    with pytest.raises(ScheduleError, match=message) as caught:
        RING.replace(shares=shares)
    assert "\n" not in str(caught.value)


def test_fractions_become_integers():
    assert integer_shares([0, "1/7", "13/29", Fraction(83, 203)]).tolist() == [0, 29, 91, 83]


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        (["1/2", "1/3"], "shares: expected a sum of 1, got 0.833333333"),
        (
            ["-1/2", "3/2"],
            r"shares\[0\]: expected a fraction from 0 to 1, .* got '-1/2'",
        ),
        ([1, "nan"], r"shares\[1\]: expected a fraction .* got 'nan'"),
        ([0.5, 0.5], r"shares\[0\]: expected a fraction .* got 0.5, which is not exact"),
        ([1, float("nan")], r"shares\[1\]: expected a fraction .* got nan, which is not exact"),
        (["1/0", 1], r"shares\[0\]: expected a fraction"),
        ([1, None], r"shares\[1\]: expected a fraction .* got None"),
        (["1/" + "7" * 10**6, 1], r"shares\[0\]: expected a denominator of at most"),
        ([Fraction(1, 10**1000), 1], r"shares\[0\]: expected a common denominator of at most"),
        ([Fraction(1, p) for p in (65537, 65539)], r"shares\[1\]: expected a common denominator"),
    ],
)
def test_fractions_that_are_no_shares(shares: list, message: str):
    with pytest.raises(ScheduleError, match=message) as caught:
        integer_shares(shares)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 200


def test_a_file_of_unequal_shares_is_of_version_2_and_one_of_equal_shares_of_version_1(tmp_path):
    unequal: Schedule = RING.replace(shares=[0, 29, 91, 83])
    unequal.save(tmp_path / "unequal.json")
    assert '"version":2' in (tmp_path / "unequal.json").read_text()
    assert load(tmp_path / "unequal.json").shares.tolist() == [0, 29, 91, 83]
    RING.save(tmp_path / "equal.json")
    text = (tmp_path / "equal.json").read_text()
    assert '"version":1' in text and "shares" not in text
    assert load(tmp_path / "equal.json").shares is None


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[0,29,91,83]", "[0,-29,149,83]", "Expected `int` >= 0"),
        ("[0,29,91,83]", "[0,NaN,91,83]", "not a schedule file: JSON is malformed"),
        ("[0,29,91,83]", "[0,29.5,91,83]", "Expected `int`, got `float`"),
        ("[0,29,91,83]", "[0,29,91,82]", "the numerators sum to 202, the denominator is 203"),
        ("[0,29,91,83]", "[29,91,83]", "expected 4 integers, one a piece; got 3"),
        ("[0,29,91,83]", f"[0,{'9' * 10**6},91,83]", "not a schedule file"),
        ('"denominator":203', f'"denominator":{"9" * 10**6}', "not a schedule file"),
        (
            '[0,29,91,83],"denominator":203',
            f'[0,1,1,{2**63}],"denominator":{2**63 + 2}',
            "shares: an integer does not fit in 64 bits",
        ),
        (
            '[0,29,91,83],"denominator":203',
            f'[0,1,1,{2**31 - 1}],"denominator":{2**31 + 1}',
            "shares: expected a sum of at most 2147483648 in lowest terms",
        ),
        ('"version":2', '"version":1', "shares: not in version 1, whose pieces are equal"),
        ('"version":2', '"version":3', "demand: expected one in version 3 alone, got none in 3"),
        ('"version":2', '"version":4', "Invalid enum value 4"),
    ],
)
def test_hostile_shares_in_a_file(tmp_path, old: str, new: str, message: str):
    path = tmp_path / "hostile.json"
    RING.replace(shares=[0, 29, 91, 83]).save(path)
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(gw.errors.FileError, match=message) as caught:
        load(path)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300
