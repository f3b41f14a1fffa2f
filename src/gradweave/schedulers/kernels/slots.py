"""Slots of links in one round: one for each transfer that a link carries in it."""

from typing import Any, NamedTuple

import numpy as np

from gradweave.compiled import kernel
from gradweave.schedulers.problem import Integers

SKIPPED_EQUALS = 0.3
"""Share of the swaps between equals that are left out, so that a pass does not undo itself. Chosen
by hand; compiled in, for it stands in the loops that most of a search's time goes into."""


class Slots(NamedTuple):
    """Who has which slot. A link's taken slots come first, in any order."""

    capacity: Integers
    """[L] slots of each link."""
    first: Integers
    """[L+1] where each link's slots start."""
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

    One after the other: a route may use a link twice.
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
    """Gives back what `claim` took."""
    for i in range(begin, end):
        _give_back(slots, links[i], hop)


@kernel(inlined=True)
def _give_back(slots: Slots, link: int, hop: int) -> None:
    """Gives one of a hop's slots back; the last slot moves there, so that taken ones stay first."""
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
    """One of the hops with a slot of a link, at random; there must be one."""
    return slots.holder[slots.first[link] + np.random.randint(slots.used[link])]


@kernel(inner=True, allocates=False)
def fits(capacity: Integers, used: Integers, links: Integers, begin: int, end: int) -> bool:
    """Whether each link of a route has a slot left for each time that the route uses it."""
    for i in range(begin, end):
        needed = 1
        for j in range(begin, i):
            needed += links[j] == links[i]
        if used[links[i]] + needed > capacity[links[i]]:
            return False
    return True
