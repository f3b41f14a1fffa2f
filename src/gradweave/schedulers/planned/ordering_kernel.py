"""Transfers in event time: each link takes, of what is ready and fits, what has the first place.

As `unequal.playing_kernel`, with places that are fixed beforehand: what waits for a link is a heap.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradweave.compiled import kernel
from gradweave.schedulers.planned.laying_kernel import waiting_order
from gradweave.schedulers.trees.timed_kernel import pop_event, push_event
from gradweave.schedulers.unequal.playing_kernel import Trees, Wires
from gradweave.topology.topology import Floats, Integers

ROUNDING = 1e-9
MOST_LOOKED = 8
"""Transfers that a link with little room is tried for before it is left until it has more."""
FREED, ARRIVED = 0, 1
FEATURES = ("order", "tail", "head", "load", "second stage", "leaf")
"""What is known of a transfer: its piece's place in the order; the longest path from it to the
piece's end, itself included; the longest one from the piece's beginning; what its route's busiest
link carries in all; whether it is of the second stage; whether none waits for it. Paths and loads
are seconds over those of the busiest link of all."""


class _State(NamedTuple):
    """What has begun, and what waits for which link."""

    waits: NDArray[np.int64]
    """[P·M] transfers that each transfer still waits for."""
    left: NDArray[np.float64]
    """[L] bandwidth that no transfer has taken."""
    slowest: NDArray[np.float64]
    """[L] least rate of a transfer over the link."""
    top: NDArray[np.int64]
    """[L] of the transfers that wait for the link the one of the first place, or −1."""
    child: NDArray[np.int64]
    """[P·M] a pairing heap for each link: the first child of each transfer, or −1."""
    sibling: NDArray[np.int64]
    """[P·M] and the next child of its parent."""
    to_look: NDArray[np.int64]
    """[L+1] links to look at, and at the end how many they are."""
    looked: NDArray[np.bool_]
    """[L] whether the link is among those."""
    when: NDArray[np.float64]
    """[2·P·M] times of events, as a heap."""
    what: NDArray[np.int64]
    """[2·P·M] transfer of each event, times two, plus its kind."""
    pending: NDArray[np.int64]
    """[1] events in the heap."""


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
        for m in waiting_order(trees.waits[p], first, trees.following):
            hop = trees.hop[p, m]
            after = seconds[p, m] + wires.latency[hop] + wires.overhead[hop]
            for then in trees.following[first[m] : first[m + 1]]:
                seconds[p, then] = max(seconds[p, then], after)
                per_byte[p, then] = max(per_byte[p, then], per_byte[p, m] + 1 / wires.rate[hop])
    return seconds, per_byte


@kernel
def dispatch(
    trees: Trees, wires: Wires, part: Integers, size: Floats, place: NDArray[np.float32]
) -> tuple[NDArray[np.float64], float]:
    """Start of each transfer, and when the last one arrives.

    A transfer waits for one link of its route that has not its rate left; it is looked at when that
    link gets free, and then waits for another one or starts.

    Args:
        trees: of the parts.
        wires: of the network.
        part: [P] part that each piece belongs to.
        size: [P] bytes of each piece.
        place: [P·M] of each transfer, the least first.

    Returns:
        [P·M] start of each transfer, piece by piece, and the seconds in all.
    """
    each = trees.hop.shape[1]
    start, now, last = np.full(len(place), np.inf), 0.0, 0.0
    state = _begun(trees, wires, part)
    for t in range(len(place)):
        if not state.waits[t]:
            _make_ready(trees, wires, state, part, place, t)
    while True:
        _start_all(trees, wires, state, part, size, place, now, start)
        if not state.pending[0]:
            return start, last
        now = state.when[0]
        while state.pending[0] and state.when[0] <= now * (1 + ROUNDING):
            event = state.what[0]
            state.pending[0] = pop_event(state, state.pending[0])
            t = event // 2
            p, m = t // each, t % each
            hop = trees.hop[part[p], m]
            if event % 2 == FREED:
                for link in wires.links[wires.first[hop] : wires.first[hop + 1]]:
                    state.left[link] += wires.rate[hop]
                    _look_at(state, link)
                continue
            last = now
            first = trees.first_following[part[p]]
            for then in trees.following[first[m] : first[m + 1]]:
                follower = p * each + then
                state.waits[follower] -= 1
                if not state.waits[follower]:
                    _make_ready(trees, wires, state, part, place, follower)


@kernel(inner=True)
def _begun(trees: Trees, wires: Wires, part: Integers) -> Any:
    """Nothing has begun."""
    links, each = len(wires.bandwidth), trees.hop.shape[1]
    slowest = np.full(links, np.inf)
    for hop in range(len(wires.rate)):
        for link in wires.links[wires.first[hop] : wires.first[hop + 1]]:
            slowest[link] = min(slowest[link], wires.rate[hop])
    count = len(part) * each
    waits = np.empty(count, np.int64)
    for p in range(len(part)):
        waits[p * each : (p + 1) * each] = trees.waits[part[p]]
    return _State(
        waits,
        wires.bandwidth.copy(),
        slowest,
        np.full(links, -1),
        np.full(count, -1),
        np.full(count, -1),
        np.zeros(links + 1, np.int64),
        np.zeros(links, np.bool_),
        np.empty(2 * count),
        np.empty(2 * count, np.int64),
        np.zeros(1, np.int64),
    )


@kernel(inner=True)
def _look_at(state: Any, link: int) -> None:
    if not state.looked[link]:
        state.looked[link] = True
        state.to_look[state.to_look[-1]] = link
        state.to_look[-1] += 1


@kernel(inner=True)
def _make_ready(
    trees: Trees, wires: Wires, state: Any, part: Integers, place: NDArray[np.float32], t: int
) -> None:
    """Lets a transfer wait for its first link, which is to be looked at."""
    each = trees.hop.shape[1]
    link = wires.links[wires.first[trees.hop[part[t // each], t % each]]]
    state.top[link] = _meld(state, place, state.top[link], t)
    _look_at(state, link)


@kernel(inner=True)
def _meld(state: Any, place: NDArray[np.float32], one: int, other: int) -> int:
    """The top of two heaps made one."""
    if one < 0:
        return other
    if other < 0:
        return one
    if place[other] < place[one]:
        one, other = other, one
    state.sibling[other] = state.child[one]
    state.child[one] = other
    return one


@kernel(inner=True)
def _take_top(state: Any, place: NDArray[np.float32], link: int) -> int:
    """Takes the transfer of the first place out of a link's heap."""
    top = state.top[link]
    rest, pairs = state.child[top], -1
    while rest >= 0:
        one, other = rest, state.sibling[rest]
        rest = -1 if other < 0 else state.sibling[other]
        state.sibling[one] = -1
        if other >= 0:
            state.sibling[other] = -1
        pair = _meld(state, place, one, other)
        state.sibling[pair] = pairs
        pairs = pair
    merged = -1
    while pairs >= 0:
        following = state.sibling[pairs]
        state.sibling[pairs] = -1
        merged = _meld(state, place, merged, pairs)
        pairs = following
    state.child[top], state.top[link] = -1, merged
    return top


@kernel(inner=True)
def _start_all(
    trees: Trees,
    wires: Wires,
    state: Any,
    part: Integers,
    size: Floats,
    place: NDArray[np.float32],
    now: float,
    start: Floats,
) -> None:
    """Starts what the links to look at have room for, the first place first."""
    each = trees.hop.shape[1]
    while True:
        best, i = -1, 0
        while i < state.to_look[-1]:
            link = state.to_look[i]
            if state.top[link] >= 0 and state.left[link] >= state.slowest[link] * (1 - ROUNDING):
                if best < 0 or place[state.top[link]] < place[state.top[best]]:
                    best = link
                i += 1
            else:  # it has nothing, or no room
                state.looked[link] = False
                state.to_look[-1] -= 1
                state.to_look[i] = state.to_look[state.to_look[-1]]
        if best < 0:
            return
        t = _first_that_fits(trees, wires, state, part, place, best)
        if t < 0:
            state.looked[best] = False
            for j in range(state.to_look[-1]):
                if state.to_look[j] == best:
                    state.to_look[-1] -= 1
                    state.to_look[j] = state.to_look[state.to_look[-1]]
                    break
            continue
        p, hop = t // each, trees.hop[part[t // each], t % each]
        for link in wires.links[wires.first[hop] : wires.first[hop + 1]]:
            state.left[link] -= wires.rate[hop]
        start[t] = now
        free = now + wires.overhead[hop] + size[p] / wires.rate[hop]
        arrival = free + wires.latency[hop]
        state.pending[0] = push_event(state, state.pending[0], free, 2 * t + FREED)
        state.pending[0] = push_event(state, state.pending[0], arrival, 2 * t + ARRIVED)


@kernel(inner=True)
def _first_that_fits(
    trees: Trees,
    wires: Wires,
    state: Any,
    part: Integers,
    place: NDArray[np.float32],
    link: int,
) -> int:
    """Takes the first of those that wait for a link and can start, or −1.

    What another link holds back then waits for that one.
    """
    each, too_fast = trees.hop.shape[1], -1
    found, looked = -1, 0
    while state.top[link] >= 0 and found < 0 and looked < MOST_LOOKED:
        t = _take_top(state, place, link)
        hop = trees.hop[part[t // each], t % each]
        held = _held_by(wires, state, hop, link)
        if held < 0:
            found = t
        elif held == link:
            state.sibling[t] = too_fast
            too_fast = t
            looked += 1
        else:
            state.top[held] = _meld(state, place, state.top[held], t)
    while too_fast >= 0:
        following = state.sibling[too_fast]
        state.sibling[too_fast] = -1
        state.top[link] = _meld(state, place, state.top[link], too_fast)
        too_fast = following
    return found


@kernel(inner=True)
def _held_by(wires: Wires, state: Any, hop: int, link: int) -> int:
    """A link that has not the hop's rate left, `link` before others, or −1."""
    held = -1
    for used in wires.links[wires.first[hop] : wires.first[hop + 1]]:
        if wires.rate[hop] > state.left[used] * (1 + ROUNDING) and held != link:
            held = used
    return held
