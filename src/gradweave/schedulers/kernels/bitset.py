"""Sets as bits of words: operations handle 64 members at a time."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradweave.common.compiled import kernel

Bitset = NDArray[np.uint64]

WORD = 64
"""Bits in a word."""
_ONE, _TWO, _FOUR, _TOP = np.uint64(1), np.uint64(2), np.uint64(4), np.uint64(56)
_PAIRS, _FOURS = np.uint64(0x5555555555555555), np.uint64(0x3333333333333333)
_EIGHTS, _SUM = np.uint64(0x0F0F0F0F0F0F0F0F), np.uint64(0x0101010101010101)


@kernel(inlined=True)
def count(word: Any) -> Any:
    """The number of set bits in a word."""
    # Counts of 2, 4 and then 8 bits are added side by side; the product collects the eight bytes'
    # counts in the top byte.
    word = word - ((word >> _ONE) & _PAIRS)
    word = (word & _FOURS) + ((word >> _TWO) & _FOURS)
    word = (word + (word >> _FOUR)) & _EIGHTS
    return np.int64((word * _SUM) >> _TOP)


@kernel(inlined=True)
def lowest(word: Any) -> Any:
    """The position of the lowest set bit of a nonzero word."""
    return count(~word & (word - _ONE))


@kernel(inlined=True)
def without_lowest(word: Any) -> Any:
    """A word without its lowest bit."""
    return word & (word - _ONE)


@kernel(inlined=True)
def bit(member: int) -> Any:
    """The word with only the bit of one member, given by its position in the set."""
    return _ONE << np.uint64(member % WORD)


@kernel(inlined=True)
def has(words: Bitset, row: int, member: int) -> bool:
    """Whether a set, a row of [A, W], has a member."""
    return (words[row, member // WORD] & bit(member)) != 0


@kernel
def pack(table: NDArray[np.bool_]) -> Bitset:
    """[A, W] sets as bits.

    Args:
        table: [A, B] truth values: each row a set of at most B members.
    """
    rows, members = table.shape
    words = np.zeros((rows, (members + WORD - 1) // WORD), np.uint64)
    for row in range(rows):
        for place in range(words.shape[1]):
            word, first = np.uint64(0), WORD * place
            for member in range(first, min(first + WORD, members)):
                word |= np.uint64(table[row, member]) << np.uint64(member - first)
            words[row, place] = word
    return words
