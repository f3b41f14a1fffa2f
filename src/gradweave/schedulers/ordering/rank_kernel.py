"""Transfers in event time: each link takes the first in order that is ready and fits.

Like `unequal.event_simulation_kernel`, but with a fixed order: the transfers waiting for a link are
a bitset, with one bit for each transfer over it, in that order.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradweave.compiled import kernel
from gradweave.schedulers.kernels.bitset import WORD, Bitset, bit, lowest
from gradweave.schedulers.kernels.events import no_events, pop_event, push_event
from gradweave.schedulers.kernels.precedence import topological_order
from gradweave.schedulers.kernels.wires import Wires
from gradweave.schedulers.ordering.event_simulation_kernel import Trees
from gradweave.topology.topology import Floats, Integers
from gradweave.topology.units import ROUNDING

MOST_TRIED = 8
"""Transfers tried on a link with little free bandwidth before it is left until it has more: this
bounds the hot loop. Chosen by hand, and compiled in."""
FREED, ARRIVED, BOTH = 0, 1, 2
"""Kinds of events: a transfer frees its links, arrives, or both at the same time."""
FEATURES = ("order", "tail", "head", "load", "second stage", "leaf")
"""Features of a transfer: its piece's position in the order; the longest path from it to the
piece's end, itself included; the longest path from the piece's beginning to it; the total load of
its route's busiest link; whether it is of the second stage; whether no transfer waits for it. Paths
and loads are in units of the largest link load."""


@kernel
def features_of(trees: Trees, wires: Wires, part: Integers, size: Floats) -> NDArray[np.float32]:
    """[P, M, F] the features of each transfer.

    Args:
        trees: the trees of the parts.
        wires: the network's wires.
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
    """[parts, M] seconds, and seconds per byte, before each transfer of a piece may start."""
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


class _Transfers(NamedTuple):
    """Transfers, numbered in their order; a use is a link of a transfer's route."""

    number: NDArray[np.int64]
    """[P·M] number of each transfer, piece by piece."""
    waits: NDArray[np.int64]
    """[P·M] transfers that each transfer still waits for."""
    rate: NDArray[np.float64]
    """[P·M] bytes per second of each transfer."""
    hold_s: NDArray[np.float64]
    """[P·M] seconds for which each transfer holds its links."""
    latency_s: NDArray[np.float64]
    """[P·M] seconds from then until it has arrived."""
    first: NDArray[np.int64]
    """[P·M+1] the first use of each transfer; its uses follow each other."""
    link: NDArray[np.int64]
    """[U] link of each use."""
    bit: NDArray[np.int64]
    """[U] the bit that is set while the transfer waits there."""
    user: NDArray[np.int64]
    """[64·W] transfer of each bit."""
    first_word: NDArray[np.int64]
    """[L+1] index of each link's first word of bits."""
    slowest: NDArray[np.float64]
    """[L] smallest rate of a transfer over the link."""
    load_s: NDArray[np.float64]
    """[L] total seconds of load of the link."""


@kernel
def dispatch(
    trees: Trees, wires: Wires, part: Integers, size: Floats, order: Integers
) -> tuple[NDArray[np.float64], float, int]:
    """Start of each transfer, and the last arrival.

    A transfer waits for one link of its route that lacks bandwidth for it. It is tried when that
    link becomes free, and then starts or waits for another link.

    Args:
        trees: the trees of the parts.
        wires: the network's wires.
        part: [P] part that each piece belongs to.
        size: [P] bytes of each piece.
        order: [X] the transfers in order of priority; all but missing ones.

    Returns:
        [P·M] start of each transfer, piece by piece; the total seconds; and how often a transfer
        was tried.
    """
    # One loop over local arrays: each access to an array in a named tuple counts references,
    # which made this 5 to 20 times slower.
    each, count, links = trees.hop.shape[1], len(order), len(wires.bandwidth)
    (
        number,
        waits,
        rate,
        hold_s,
        latency_s,
        first,
        link,
        place,
        user,
        first_word,
        slowest,
        load_s,
    ) = _transfers(trees, wires, part, size, order)
    first_following, following = trees.first_following, trees.following
    start, now, last, tried = np.full(len(part) * each, np.inf), 0.0, 0.0, 0
    waiting, low = np.zeros(first_word[-1], np.uint64), first_word[1:].copy()
    """[W] bits of waiting transfers; [L] all words of the link before this one are zero."""
    top, left = np.full(links, count), wires.bandwidth.copy()
    """[L] the first transfer waiting for the link; [L] free bandwidth."""
    members, listed, is_listed = np.empty(links, np.int64), 0, np.zeros(links, np.bool_)
    """Links whose transfers may start now, after bandwidth was freed or a transfer added."""
    events = no_events(2 * count)
    for r in range(count):
        if not waits[r]:
            _wait(first[r], r, link, place, waiting, low, top)
            listed = _listed(link[first[r]], members, listed, is_listed)
    while True:
        while True:  # start all transfers that fit on the listed links, in order
            best, at, i = -1, -1, 0
            while i < listed:
                over = members[i]
                if top[over] < count and left[over] >= slowest[over] * (1 - ROUNDING):
                    if best < 0 or top[over] < top[best]:
                        best, at = over, i
                    i += 1
                else:  # nothing waits, or nothing fits
                    listed -= 1
                    is_listed[over], members[i] = False, members[listed]
            if best < 0:
                break
            found, passed, end = -1, 0, first_word[best + 1]
            word = low[best]
            untried = waiting[word] if word < end else np.uint64(0)
            while found < 0 and passed < MOST_TRIED:
                while not untried and word < end:
                    word += 1
                    untried = waiting[word] if word < end else untried
                if word == end:
                    break
                here = WORD * word + lowest(untried)
                untried &= ~bit(here)
                tried += 1
                r = user[here]
                blocking = _blocked_on(r, best, first, link, rate, left, load_s)
                if blocking < 0:
                    found = r
                elif link[blocking] == best:
                    passed += 1
                    continue
                else:  # from now on it waits for that link
                    _wait(blocking, r, link, place, waiting, low, top)
                    listed = _listed(link[blocking], members, listed, is_listed)
                waiting[word] &= ~bit(here)
            word = low[best]
            while word < end and not waiting[word]:
                word += 1
            low[best] = word
            top[best] = user[WORD * word + lowest(waiting[word])] if word < end else count
            if found < 0:
                listed -= 1
                is_listed[best], members[at] = False, members[listed]
                continue
            for use in range(first[found], first[found + 1]):
                left[link[use]] -= rate[found]
            start[order[found]], free = now, now + hold_s[found]
            if latency_s[found]:
                push_event(events, free, 3 * found + FREED, False)
            kind = ARRIVED if latency_s[found] else BOTH
            push_event(events, free + latency_s[found], 3 * found + kind, False)
        if not events.length[0]:
            return start, last, tried
        now = events.when[0]
        while events.length[0] and events.when[0] <= now * (1 + ROUNDING):
            r, kind = divmod(pop_event(events, False), 3)
            if kind != ARRIVED:
                for use in range(first[r], first[r + 1]):
                    left[link[use]] += rate[r]
                    listed = _listed(link[use], members, listed, is_listed)
            if kind == FREED:
                continue
            last = now
            p, m = order[r] // each, order[r] % each
            for i in range(first_following[part[p], m], first_following[part[p], m + 1]):
                follower = number[p * each + following[i]]
                waits[follower] -= 1
                if not waits[follower]:
                    use = first[follower]
                    _wait(use, follower, link, place, waiting, low, top)
                    listed = _listed(link[use], members, listed, is_listed)


@kernel
def reversed_precedence(trees: Trees) -> Trees:
    """The transfers with dependencies reversed, as if time ran backwards.

    Args:
        trees: the transfers; the lengths of their paths are kept.
    """
    parts, each = trees.hop.shape
    waits, following = np.empty((parts, each), np.int64), np.empty_like(trees.following)
    first_following, count = np.empty((parts, each + 1), np.int64), 0
    for p in range(parts):
        first, before = trees.first_following[p], first_following[p]
        before[0] = count
        for m in range(each):
            before[m + 1] = before[m] + trees.waits[p, m]
        count = before[each]
        place = before.copy()
        for m in range(each):
            waits[p, m] = first[m + 1] - first[m]
            for then in trees.following[first[m] : first[m + 1]]:
                following[place[then]] = m
                place[then] += 1
    return Trees(
        trees.hop,
        waits,
        following,
        first_following,
        trees.ready,
        trees.tail_s,
        trees.tail_s_per_byte,
    )


@kernel(inner=True)
def _transfers(trees: Trees, wires: Wires, part: Integers, size: Floats, order: Integers) -> Any:
    """The transfers with their durations and dependencies, before the first starts."""
    links, each, count = len(wires.bandwidth), trees.hop.shape[1], len(order)
    hop_of, before, links_of, first_of = trees.hop, trees.waits, wires.links, wires.first
    hop_rate, overhead, bandwidth = wires.rate, wires.overhead, wires.bandwidth
    number, hops = np.empty(len(part) * each, np.int64), np.empty(count, np.int64)
    waits, first, hold_s = np.empty(count, np.int64), np.zeros(count + 1, np.int64), np.empty(count)
    for r in range(count):
        p, m = order[r] // each, order[r] % each
        number[order[r]], hops[r], waits[r] = r, hop_of[part[p], m], before[part[p], m]
        hold_s[r] = overhead[hops[r]] + size[p] / hop_rate[hops[r]]
        first[r + 1] = first[r] + first_of[hops[r] + 1] - first_of[hops[r]]
    link, bits = np.empty(first[-1], np.int64), np.empty(first[-1], np.int64)
    slowest, uses, use = np.full(links, np.inf), np.zeros(links, np.int64), 0
    load_s = np.zeros(links)
    for r in range(count):
        for over in links_of[first_of[hops[r]] : first_of[hops[r] + 1]]:
            slowest[over] = min(slowest[over], hop_rate[hops[r]])
            load_s[over] += hop_rate[hops[r]] * hold_s[r] / bandwidth[over]
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
    return _Transfers(
        number,
        waits,
        wires.rate[hops],
        hold_s,
        wires.latency[hops],
        first,
        link,
        bits,
        user,
        first_word,
        slowest,
        load_s,
    )


@kernel(inlined=True)
def _wait(
    use: int,
    r: int,
    link: Integers,
    place: Integers,
    waiting: Bitset,
    low: Integers,
    top: Integers,
) -> None:
    """Marks a transfer as waiting for the link of a use."""
    over, word = link[use], place[use] // WORD
    waiting[word] |= bit(place[use])
    low[over], top[over] = min(low[over], word), min(top[over], r)


@kernel(inlined=True)
def _listed(over: int, members: Integers, listed: int, is_listed: Any) -> int:
    """Puts a link on the list; returns the list's new length."""
    if is_listed[over]:
        return listed
    is_listed[over], members[listed] = True, over
    return listed + 1


@kernel(inlined=True)
def _blocked_on(
    r: int,
    over: int,
    first: Integers,
    link: Integers,
    rate: Floats,
    left: Floats,
    load_s: Floats,
) -> int:
    """The use on whose link a transfer is blocked because its rate is not available; or −1.

    `over` has precedence, then the busiest link: it rarely becomes free, so that fewer tries fail.
    """
    blocking = -1
    for use in range(first[r], first[r + 1]):
        if rate[r] > left[link[use]] * (1 + ROUNDING):
            if blocking < 0 or (
                link[blocking] != over
                and (link[use] == over or load_s[link[use]] > load_s[link[blocking]])
            ):
                blocking = use
    return blocking
