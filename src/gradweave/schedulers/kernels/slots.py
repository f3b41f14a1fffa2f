"""Slots of links in one round: one for each transfer that a link can carry."""

from typing import Any, NamedTuple

import numpy as np

from gradweave.common.compiled import kernel
from gradweave.schedulers.problem import Integers

SKIPPED_EQUALS = 0.3
"""Share of the swaps between equals that are skipped, so that a pass does not undo itself. Chosen
by hand; compiled in, because it is used in the hottest loops of the search."""


class Slots(NamedTuple):
    """The holders of slots. A link's taken slots come first, in any order."""

    capacity: Integers
    """[L] slots of each link."""
    first: Integers
    """[L+1] index of each link's first slot."""
    used: Integers
    """[L] slots taken of each link."""
    holder: Integers
    """[sum of capacities] hop in each taken slot."""


@kernel(inner=True)
def no_slots_taken(capacity: Integers) -> Slots:
    """A round before anything is sent; `slots.used[:] = 0` begins the next one."""
    first = np.zeros(len(capacity) + 1, np.int64)
    for link in range(len(capacity)):
        first[link + 1] = first[link] + capacity[link]
    return Slots(capacity, first, np.zeros(len(capacity), np.int64), np.empty(first[-1], np.int64))


@kernel(inlined=True)
def is_full(slots: Slots, link: int) -> bool:
    """Whether all of a link's slots are taken."""
    return slots.used[link] >= slots.capacity[link]


@kernel(inner=True, allocates=False)
def claim(slots: Slots, links: Integers, begin: int, end: int, hop: int) -> bool:
    """Takes a slot of each link of a hop's route, ``links[begin:end]``, or none.

    Slots are taken one after the other, since a route may use a link twice.
    """
    for i in range(begin, end):
        link = links[i]
        if is_full(slots, link):
            for j in range(begin, i):
                _give_back(slots, links[j], hop)
            return False
        slots.holder[slots.first[link] + slots.used[link]] = hop
        slots.used[link] += 1
    return True


@kernel(inner=True, allocates=False)
def release(slots: Slots, links: Integers, begin: int, end: int, hop: int) -> None:
    """Frees the slots that `claim` took."""
    for i in range(begin, end):
        _give_back(slots, links[i], hop)


@kernel(inlined=True)
def _give_back(slots: Slots, link: int, hop: int) -> None:
    """Frees one of a hop's slots; the last taken slot moves there: taken slots stay first."""
    last = slots.first[link] + slots.used[link] - 1
    for slot in range(slots.first[link], last):
        if slots.holder[slot] == hop:
            slots.holder[slot] = slots.holder[last]
            break
    slots.used[link] -= 1


@kernel(inlined=True)
def holds_slot(slots: Slots, link: int, hop: int) -> bool:
    """Whether a hop has a slot of a link."""
    found = False
    for slot in range(slots.first[link], slots.first[link] + slots.used[link]):
        found |= slots.holder[slot] == hop
    return found


@kernel(inlined=True)
def any_holder(slots: Slots, link: int) -> Any:
    """A random hop with a slot of a link; the link must have one."""
    return slots.holder[slots.first[link] + np.random.randint(slots.used[link])]


@kernel(inner=True, allocates=False)
def fits(capacity: Integers, used: Integers, links: Integers, begin: int, end: int) -> bool:
    """Whether each link of a route has a free slot for each time that the route uses it."""
    for i in range(begin, end):
        needed = 1
        for j in range(begin, i):
            needed += links[j] == links[i]
        if used[links[i]] + needed > capacity[links[i]]:
            return False
    return True
