"""A binary heap of events by time: O(log n) per operation."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradweave.common.compiled import kernel
from gradweave.schedulers.problem import Integers


class Events(NamedTuple):
    """Pending events; the first is the earliest."""

    when: NDArray[np.float64]
    """[most] seconds."""
    what: Integers
    """[most] numbers that identify the events."""
    length: Integers
    """[1] number of events."""


@kernel(inner=True)
def no_events(most: int) -> Events:
    """An empty heap with space for `most` events at a time."""
    return Events(np.empty(most), np.empty(most, np.int64), np.zeros(1, np.int64))


@kernel(inner=True, allocates=False)
def push_event(events: Events, when: float, what: int, numbered: bool) -> None:
    """Adds an event.

    Args:
        events: changed.
        when: seconds.
        what: its number.
        numbered: whether simultaneous events are sorted by number; otherwise their order is
            arbitrary, but always the same.
    """
    at = events.length[0]
    events.length[0] += 1
    while at > 0:
        above = (at - 1) // 2
        if not _sooner(when, what, events.when[above], events.what[above], numbered):
            break
        events.when[at], events.what[at] = events.when[above], events.what[above]
        at = above
    events.when[at], events.what[at] = when, what


@kernel(inner=True, allocates=False)
def pop_event(events: Events, numbered: bool) -> Any:
    """Removes the earliest event and returns its number; the heap must not be empty.

    Args:
        events: changed.
        numbered: as in `push_event`; the same in all calls.
    """
    first = events.what[0]
    events.length[0] -= 1
    count = events.length[0]
    when, what, at = events.when[count], events.what[count], 0
    while True:
        child = 2 * at + 1
        if child >= count:
            break
        if child + 1 < count and _sooner(
            events.when[child + 1],
            events.what[child + 1],
            events.when[child],
            events.what[child],
            numbered,
        ):
            child += 1
        if not _sooner(events.when[child], events.what[child], when, what, numbered):
            break
        events.when[at], events.what[at] = events.when[child], events.what[child]
        at = child
    events.when[at], events.what[at] = when, what
    return first


@kernel(inlined=True)
def _sooner(when: float, what: int, other_when: float, other_what: int, numbered: bool) -> bool:
    """Whether an event comes before another."""
    if when != other_when:
        return when < other_when
    return numbered and what < other_what
