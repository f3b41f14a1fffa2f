"""Transfers in event time: each link takes, of what is ready and fits, what has the first place.

As `unequal.event_simulation_kernel`, with an order that is fixed beforehand: what waits for a link
is a set of bits, one for each transfer over it, in that order.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradweave.compiled import kernel
from gradweave.schedulers.kernels.bitset import WORD, Bitset, bit, lowest
from gradweave.schedulers.kernels.events import Events, no_events, pop_event, push_event
from gradweave.schedulers.kernels.precedence import topological_order
from gradweave.schedulers.kernels.wires import Wires
from gradweave.schedulers.kernels.worklist import (
    Worklist,
    empty_worklist,
    list_member,
    unlist_at,
)
from gradweave.schedulers.unequal.event_simulation_kernel import Trees
from gradweave.topology.topology import Floats, Integers
from gradweave.topology.units import ROUNDING

MOST_TRIED = 8
"""Transfers that are tried on a link with little room before it is left until it has more: what
bounds the hot loop, `_first_that_fits`. Chosen by hand, and compiled in."""
FREED, ARRIVED, BOTH = 0, 1, 2
"""Kinds of events: a transfer's links get free, it arrives, or both at once."""
FEATURES = ("order", "tail", "head", "load", "second stage", "leaf")
"""What is known of a transfer: its piece's place in the order; the longest path from it to the
piece's end, itself included; the longest one from the piece's beginning; what its route's busiest
link carries in all; whether it is of the second stage; whether none waits for it. Paths and loads
are seconds over those of the busiest link of all."""


class _State(NamedTuple):
    """What has begun, and what waits for which link.

    Transfers are numbered in their order. A use is a link of a transfer's route; a transfer's
    follow each other.
    """

    waits: NDArray[np.int64]
    """[P·M] transfers that each transfer still waits for."""
    place: NDArray[np.int64]
    """[P·M] number of each transfer, piece by piece."""
    first: NDArray[np.int64]
    """[P·M+1] the first use of each transfer."""
    rate: NDArray[np.float64]
    """[P·M] bytes per second of each transfer."""
    hold_s: NDArray[np.float64]
    """[P·M] seconds for which it takes its links."""
    latency_s: NDArray[np.float64]
    """[P·M] seconds from then until it has arrived."""
    link: NDArray[np.int64]
    """[U] link of each use."""
    bit: NDArray[np.int64]
    """[U] the bit that says whether its transfer waits there."""
    user: NDArray[np.int64]
    """[64·W] transfer of each bit."""
    waiting: Bitset
    """[W] bits of those that wait, link by link."""
    first_word: NDArray[np.int64]
    """[L+1] where each link's bits start."""
    low: NDArray[np.int64]
    """[L] a word before which none of the link's has a bit set."""
    top: NDArray[np.int64]
    """[L] the first of the transfers that wait for the link; as many as there are, where none."""
    left: NDArray[np.float64]
    """[L] bandwidth that no transfer has taken."""
    slowest: NDArray[np.float64]
    """[L] least rate of a transfer over the link."""
    load_s: NDArray[np.float64]
    """[L] seconds for which the link carries in all."""
    worklist: Worklist
    """Links whose transfers may start now: those that got room, or something to carry."""
    events: Events
    """Transfers, times three, plus the kind of event."""
    tried: NDArray[np.int64]
    """[1] how often a transfer was tried."""


@kernel
def features_of(trees: Trees, wires: Wires, part: Integers, size: Floats) -> NDArray[np.float32]:
    """[P, M, F] what is known of each transfer.

    Args:
        trees: of the parts.
        wires: of the network.
        part: [P] part that each piece belongs to, in order.
        size: [P] bytes of each piece.
    """
    pieces, each = len(part), trees.hop.shape[1]
    load, head_s, head_s_per_byte = np.zeros(len(wires.bandwidth)), *_heads(trees, wires)
    for p in range(pieces):
        for m in range(each):
            hop = trees.hop[part[p], m]
            for link in wires.links[wires.first[hop] : wires.first[hop + 1]]:
                load[link] += wires.overhead[hop] + size[p] / wires.bandwidth[link]
    most = load.max()
    known = np.zeros((pieces, each, 6), np.float32)
    for p in range(pieces):
        one = part[p]
        for m in range(each):
            hop = trees.hop[one, m]
            busiest = 0.0
            for link in wires.links[wires.first[hop] : wires.first[hop + 1]]:
                busiest = max(busiest, load[link])
            tail = trees.tail_s[one, m] + size[p] * trees.tail_s_per_byte[one, m]
            head = head_s[one, m] + size[p] * head_s_per_byte[one, m]
            known[p, m, 0], known[p, m, 1] = (p + 0.5) / pieces, tail / most
            known[p, m, 2], known[p, m, 3] = head / most, busiest / most
            known[p, m, 4] = 2 * m >= each
            known[p, m, 5] = trees.first_following[one, m] == trees.first_following[one, m + 1]
    return known


@kernel(inner=True)
def _heads(trees: Trees, wires: Wires) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """[parts, M] seconds, and for each byte, before each transfer of a piece may begin."""
    parts, each = trees.hop.shape
    seconds, per_byte = np.zeros((parts, each)), np.zeros((parts, each))
    for p in range(parts):
        first = trees.first_following[p]
        for m in topological_order(trees.waits[p], first, trees.following):
            hop = trees.hop[p, m]
            after = seconds[p, m] + wires.latency[hop] + wires.overhead[hop]
            for then in trees.following[first[m] : first[m + 1]]:
                seconds[p, then] = max(seconds[p, then], after)
                per_byte[p, then] = max(per_byte[p, then], per_byte[p, m] + 1 / wires.rate[hop])
    return seconds, per_byte


@kernel
def dispatch(
    trees: Trees, wires: Wires, part: Integers, size: Floats, order: Integers
) -> tuple[NDArray[np.float64], float, int]:
    """Start of each transfer, and when the last one arrives.

    A transfer waits for one link of its route that has not its rate left; it is tried when that
    link gets free, and then waits for another one or starts.

    Args:
        trees: of the parts.
        wires: of the network.
        part: [P] part that each piece belongs to.
        size: [P] bytes of each piece.
        order: [P·M] the transfers, by their places.

    Returns:
        [P·M] start of each transfer, piece by piece, the seconds in all, and how often a transfer
        was tried.
    """
    each = trees.hop.shape[1]
    start, now, last = np.full(len(order), np.inf), 0.0, 0.0
    state = _begun(trees, wires, part, size, order)
    for r in range(len(order)):
        if not state.waits[r]:
            _wait(state, state.first[r], r)
    while True:
        _start_all(state, order, now, start)
        if not state.events.length[0]:
            return start, last, state.tried[0]
        now = state.events.when[0]
        while state.events.length[0] and state.events.when[0] <= now * (1 + ROUNDING):
            r, kind = divmod(pop_event(state.events, False), 3)
            if kind != ARRIVED:
                for link in state.link[state.first[r] : state.first[r + 1]]:
                    state.left[link] += state.rate[r]
                    list_member(state.worklist, link)
            if kind == FREED:
                continue
            last = now
            p, m = order[r] // each, order[r] % each
            first = trees.first_following[part[p]]
            for then in trees.following[first[m] : first[m + 1]]:
                follower = state.place[p * each + then]
                state.waits[follower] -= 1
                if not state.waits[follower]:
                    _wait(state, state.first[follower], follower)


@kernel(inner=True)
def _begun(trees: Trees, wires: Wires, part: Integers, size: Floats, order: Integers) -> Any:
    """Nothing has begun."""
    links, each, count = len(wires.bandwidth), trees.hop.shape[1], len(order)
    place, waits, hops = np.empty(count, np.int64), np.empty(count, np.int64), np.empty_like(order)
    first, hold_s = np.zeros(count + 1, np.int64), np.empty(count)
    for r in range(count):
        p, m = order[r] // each, order[r] % each
        place[order[r]], waits[r], hops[r] = r, trees.waits[part[p], m], trees.hop[part[p], m]
        hold_s[r] = wires.overhead[hops[r]] + size[p] / wires.rate[hops[r]]
        first[r + 1] = first[r] + wires.first[hops[r] + 1] - wires.first[hops[r]]
    link, bits = np.empty(first[-1], np.int64), np.empty(first[-1], np.int64)
    slowest, uses, use = np.full(links, np.inf), np.zeros(links, np.int64), 0
    load_s = np.zeros(links)
    for r in range(count):
        for over in wires.links[wires.first[hops[r]] : wires.first[hops[r] + 1]]:
            slowest[over] = min(slowest[over], wires.rate[hops[r]])
            load_s[over] += wires.rate[hops[r]] * hold_s[r] / wires.bandwidth[over]
            link[use], bits[use] = over, uses[over]
            uses[over] += 1
            use += 1
    first_word = np.zeros(links + 1, np.int64)
    for over in range(links):
        first_word[over + 1] = first_word[over] + (uses[over] + WORD - 1) // WORD
    user = np.empty(WORD * first_word[-1], np.int64)
    for r in range(count):
        for i in range(first[r], first[r + 1]):
            bits[i] += WORD * first_word[link[i]]
            user[bits[i]] = r
    return _State(
        waits,
        place,
        first,
        wires.rate[hops],
        hold_s,
        wires.latency[hops],
        link,
        bits,
        user,
        np.zeros(first_word[-1], np.uint64),
        first_word,
        first_word[1:].copy(),
        np.full(links, count),
        wires.bandwidth.copy(),
        slowest,
        load_s,
        empty_worklist(links),
        no_events(2 * count),
        np.zeros(1, np.int64),
    )


@kernel(inlined=True)
def _wait(state: Any, use: int, r: int) -> None:
    """Lets a transfer wait for the link of a use, which is put on the worklist."""
    link, word = state.link[use], state.bit[use] // WORD
    state.waiting[word] |= bit(state.bit[use])
    state.low[link] = min(state.low[link], word)
    state.top[link] = min(state.top[link], r)
    list_member(state.worklist, link)


@kernel(inlined=True)
def _take(state: Any, place: int) -> None:
    state.waiting[place // WORD] &= ~bit(place)


@kernel(inlined=True)
def _next(words: Bitset, place: int, end: int) -> int:
    """The first bit set from one on, or `end`."""
    if place >= end:
        return end
    word, below = place // WORD, np.uint64(place % WORD)
    bits = words[word] >> below << below
    while not bits:
        word += 1
        if WORD * word >= end:
            return end
        bits = words[word]
    return WORD * word + lowest(bits)


@kernel(inlined=True)
def _start_all(state: Any, order: Integers, now: float, start: Floats) -> None:
    """Starts what the links on the worklist have room for, the first in order first."""
    none, worklist = len(order), state.worklist
    while True:
        best, at, i = -1, -1, 0
        while i < worklist.length[0]:
            link = worklist.members[i]
            if state.top[link] < none and state.left[link] >= state.slowest[link] * (1 - ROUNDING):
                if best < 0 or state.top[link] < state.top[best]:
                    best, at = link, i
                i += 1
            else:  # it has nothing, or no room
                unlist_at(worklist, i)
        if best < 0:
            return
        r = _first_that_fits(state, best, none)
        if r < 0:
            unlist_at(worklist, at)
            continue
        for link in state.link[state.first[r] : state.first[r + 1]]:
            state.left[link] -= state.rate[r]
        start[order[r]] = now
        free = now + state.hold_s[r]
        if state.latency_s[r]:
            push_event(state.events, free, 3 * r + FREED, False)
        arrival, kind = free + state.latency_s[r], ARRIVED if state.latency_s[r] else BOTH
        push_event(state.events, arrival, 3 * r + kind, False)


@kernel(inlined=True)
def _first_that_fits(state: Any, link: int, none: int) -> int:
    """Takes the first of those that wait for a link and can start, or −1.

    What is blocked on another link then waits for that one.
    """
    found, passed, end = -1, 0, WORD * state.first_word[link + 1]
    place = _next(state.waiting, WORD * state.low[link], end)
    while place < end and found < 0 and passed < MOST_TRIED:
        state.tried[0] += 1
        r = state.user[place]
        blocking = _blocked_on(state, r, link)
        if blocking < 0:
            found = r
            _take(state, place)
        elif state.link[blocking] == link:
            passed += 1
        else:
            _take(state, place)
            _wait(state, blocking, r)
        place = _next(state.waiting, place + 1, end)
    place = _next(state.waiting, WORD * state.low[link], end)
    state.low[link], state.top[link] = place // WORD, state.user[place] if place < end else none
    return found


@kernel(inlined=True)
def _blocked_on(state: Any, r: int, link: int) -> int:
    """The use on whose link a transfer is blocked, since its rate is not left there; or −1.

    `link` before others, then the busiest: it gets free seldom, so that less is tried in vain.
    """
    blocking = -1
    for use in range(state.first[r], state.first[r + 1]):
        if state.rate[r] > state.left[state.link[use]] * (1 + ROUNDING):
            if blocking < 0 or (
                state.link[blocking] != link
                and (
                    state.link[use] == link
                    or state.load_s[state.link[use]] > state.load_s[state.link[blocking]]
                )
            ):
                blocking = use
    return blocking
