"""A worklist: members to process again, each listed at most once."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradweave.common.compiled import kernel
from gradweave.schedulers.problem import Integers


class Worklist(NamedTuple):
    """Members in the order in which they were added."""

    members: Integers
    """[M] those on the list come first."""
    listed: NDArray[np.bool_]
    """[M] whether each member is on the list."""
    length: Integers
    """[1] number of members on the list."""


@kernel(inner=True)
def empty_worklist(most: int) -> Worklist:
    """An empty list."""
    return Worklist(np.empty(most, np.int64), np.zeros(most, np.bool_), np.zeros(1, np.int64))


@kernel(inlined=True)
def list_member(worklist: Worklist, member: int) -> None:
    """Adds a member unless it is already on the list."""
    count = worklist.length[0]
    worklist.length[0] = add_once(worklist.members, worklist.listed, member, count)


@kernel(inlined=True)
def add_once(members: Integers, listed: NDArray[np.bool_], member: int, count: int) -> int:
    """Adds a member to a list kept as bare arrays; returns the new number of members."""
    if not listed[member]:
        listed[member] = True
        members[count] = member
        count += 1
    return count
