"""List scheduling by a fixed order: each link takes the first transfer that is ready and fits.

The transfers waiting for a link are a bitset, with one bit for each transfer over it, in that
order.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradweave.common.compiled import kernel
from gradweave.schedulers.kernels.bitset import WORD, Bitset, bit, lowest
from gradweave.schedulers.kernels.events import Events, no_events, pop_event, push_event
from gradweave.schedulers.kernels.precedence import Dependencies
from gradweave.schedulers.kernels.wires import Wires
from gradweave.topology.topology import Floats, Integers
from gradweave.topology.units import ROUNDING

MOST_PASSED, MOST_MOVED = 8, 16
"""Transfers tried in a row on a link with free bandwidth before it is left until more is freed or
a transfer added: those that need more of this link than is free, and those blocked on another link,
to which they move. This bounds the hot loop: without a limit, congested links would go through all
waiting transfers again and again. Chosen by hand, and compiled in."""
FREED, ARRIVED, READY = 0, 1, 2
"""Kinds of events: a transfer frees its links, it arrives, its source becomes ready."""


class _State(NamedTuple):
    """Progress of T transfers, piece by piece; a use is a link of a transfer's route."""

    rank: NDArray[np.int32]
    """[T] position of each transfer in the order."""
    hop: NDArray[np.int32]
    """[T] hop of each transfer."""
    piece: NDArray[np.int32]
    """[T] the first transfer of the same piece."""
    follows: NDArray[np.int32]
    """[T] place of its first follower's index in the next array."""
    first_following: NDArray[np.int64]
    """[parts·(M+1)] as in `Dependencies`, row by row."""
    waits: NDArray[np.int32]
    """[T] transfers that each still waits for, plus one until its source is ready."""
    first: NDArray[np.int64]
    """[T+1] the first use of each transfer; its uses follow each other."""
    bit: NDArray[np.int32]
    """[U] the bit that is set while the transfer waits at the use's link."""
    user: NDArray[np.int32]
    """[64·W] transfer of each bit."""
    first_word: NDArray[np.int64]
    """[L+1] index of each link's first word of bits."""
    waiting: Bitset
    """[W] bits of waiting transfers."""
    low: NDArray[np.int64]
    """[L] all words of the link before this one are zero."""
    top: NDArray[np.int64]
    """[L] rank of the first transfer that waits for the link; T for none."""
    left: NDArray[np.float64]
    """[L] free bandwidth."""
    slowest: NDArray[np.float64]
    """[L] smallest rate of a transfer over the link; with less bandwidth free, none fits."""
    load_s: NDArray[np.float64]
    """[L] total seconds of load of the link."""
    heap: NDArray[np.int64]
    """[L] links whose transfers may start now, after bandwidth was freed or a transfer added: a
    binary heap by their first transfers."""
    place: NDArray[np.int64]
    """[L] position of each link in the heap, or −1."""
    length: NDArray[np.int64]
    """[1] number of links in the heap."""
    events: Events
    """Four times the transfer plus the kind of event."""


@kernel
def dispatch(
    trees: Dependencies, wires: Wires, part: Integers, hold_s: Floats, order: Integers
) -> tuple[NDArray[np.float64], float, int]:
    """Start of each transfer, and the last arrival.

    Whenever links become free or data arrives, the first transfer in order goes first among those
    that are ready and fit on these links. A transfer waits for one link of its route that lacks
    bandwidth for it. It is tried when that link becomes free, and then starts or waits for another
    link. A transfer over no link only joins those that it waits for.

    Args:
        trees: the trees of the parts.
        wires: the network's wires.
        part: [P] part that each piece belongs to.
        hold_s: [P·M] seconds for which each transfer holds its links, piece by piece.
        order: [P·M] the transfers in order of priority.

    Returns:
        [P·M] start of each transfer, piece by piece, infinite over no link; the total seconds; and
        how often a transfer was tried.
    """
    start = np.full(len(hold_s), np.inf)
    state = _begun(trees, wires, part, hold_s, order)
    return start, *_play(trees, wires, state, hold_s, start)


@kernel(inner=True, allocates=False)
def _play(
    trees: Dependencies, wires: Wires, state: Any, hold_s: Floats, start: Floats
) -> tuple[float, int]:
    """Simulates all transfers; returns the last arrival, and how often a transfer was tried."""
    now, last, tried, events = 0.0, 0.0, 0, state.events
    first_of = state.first_following
    for t in range(len(start)):
        if not state.waits[t]:
            _make_ready(state, wires, t, now)
    while True:
        while state.length[0]:  # the link with the first transfer is first
            t, tries = _first_fitting(state, wires, state.heap[0])
            tried += tries
            if t >= 0:
                hop = state.hop[t]
                for i in range(wires.first[hop], wires.first[hop + 1]):
                    state.left[wires.links[i]] -= wires.rate[hop]
                start[t] = now
                push_event(events, now + hold_s[t], 4 * t + FREED, False)
            if t < 0 or not _may_fit(state, state.heap[0]):
                _leave_first(state)
            else:
                _sink_first(state)
        if not events.length[0]:
            return last, tried
        now = events.when[0]
        # Events that differ by rounding only are one moment: whatever they free is there before the
        # next transfer starts, so that rounding does not decide which one it is.
        while events.length[0] and events.when[0] <= now * (1 + ROUNDING):
            at = events.when[0]
            what = pop_event(events, False)
            t, kind = what >> 2, what & 3
            if kind == READY:
                _count_down(state, wires, t, now)
                continue
            hop = state.hop[t]
            if kind == FREED:
                for i in range(wires.first[hop], wires.first[hop + 1]):
                    state.left[wires.links[i]] += wires.rate[hop]
                    _list(state, wires.links[i])
                last = max(last, at + wires.latency[hop])
                if (
                    wires.latency[hop]
                    and first_of[state.follows[t]] < first_of[state.follows[t] + 1]
                ):
                    push_event(events, at + wires.latency[hop], 4 * t + ARRIVED, False)
                    continue
            for i in range(first_of[state.follows[t]], first_of[state.follows[t] + 1]):
                _count_down(state, wires, state.piece[t] + trees.following[i], now)


@kernel(inner=True)
def _begun(
    trees: Dependencies, wires: Wires, part: Integers, hold_s: Floats, order: Integers
) -> Any:
    """The state before the first transfer."""
    links, each, count = len(wires.bandwidth), trees.hop.shape[1], len(order)
    hops, rank = np.empty(count, np.int32), np.empty(count, np.int32)
    piece, follows = np.empty(count, np.int32), np.empty(count, np.int32)
    waits, first = np.empty(count, np.int32), np.zeros(count + 1, np.int64)
    slowest, load_s = np.full(links, np.inf), np.zeros(links)
    uses, events = np.zeros(links, np.int64), no_events(count)  # each has one event at a time
    t = 0
    for p in range(len(part)):
        for m in range(each):
            hop = trees.hop[part[p], m]
            hops[t], piece[t], follows[t] = hop, t - m, part[p] * (each + 1) + m
            waits[t] = trees.waits[part[p], m]
            if trees.ready[part[p], m] > 0.0:
                waits[t] += 1
                push_event(events, trees.ready[part[p], m], 4 * t + READY, False)
            first[t + 1] = first[t] + wires.first[hop + 1] - wires.first[hop]
            for over in wires.links[wires.first[hop] : wires.first[hop + 1]]:
                slowest[over] = min(slowest[over], wires.rate[hop])
                load_s[over] += wires.rate[hop] * hold_s[t] / wires.bandwidth[over]
                uses[over] += 1
            t += 1
    first_word = np.zeros(links + 1, np.int64)
    for over in range(links):
        first_word[over + 1] = first_word[over] + (uses[over] + WORD - 1) // WORD
    bits, user = np.empty(first[-1], np.int32), np.empty(WORD * first_word[-1], np.int32)
    uses[:] = WORD * first_word[:-1]
    for r in range(count):
        t = order[r]
        rank[t] = r
        for i in range(wires.first[hops[t]], wires.first[hops[t] + 1]):
            over = wires.links[i]
            bits[first[t] + i - wires.first[hops[t]]] = uses[over]
            user[uses[over]] = t
            uses[over] += 1
    return _State(
        rank,
        hops,
        piece,
        follows,
        trees.first_following.reshape(-1),
        waits,
        first,
        bits,
        user,
        first_word,
        np.zeros(first_word[-1], np.uint64),
        first_word[1:].copy(),
        np.full(links, count),
        wires.bandwidth.copy(),
        slowest * (1 - ROUNDING),
        load_s,
        np.empty(links, np.int64),
        np.full(links, -1),
        np.zeros(1, np.int64),
        events,
    )


@kernel(inlined=True)
def _first_fitting(state: Any, wires: Wires, over: int) -> tuple[int, int]:
    """Takes the first transfer off a link's queue that fits, or −1; and how many were tried.

    Transfers blocked on another link move to that link's queue.
    """
    found, passed, tried, end = -1, 0, 0, state.first_word[over + 1]
    word = state.low[over]
    if not _may_fit(state, over):
        return found, tried
    # The bits of this word's waiting transfers that were not tried yet.
    untried = state.waiting[word]
    while found < 0 and passed < MOST_PASSED and tried - passed < MOST_MOVED:
        while not untried and word < end:
            word += 1
            untried = state.waiting[word] if word < end else untried
        if word == end:
            break
        here = WORD * word + lowest(untried)
        untried &= ~bit(here)
        tried += 1
        t = state.user[here]
        blocking, link = _blocked_on(state, wires, t, over)
        if blocking < 0:
            found = t
        elif link == over:
            passed += 1
            continue
        else:  # from now on it waits for that link
            _wait(state, t, blocking, link)
            # A link outside the heap has no room for this transfer, and is listed when some is
            # freed. In the heap, it may now have to move up.
            if state.place[link] >= 0:
                _list(state, link)
        state.waiting[word] &= ~bit(here)
    word = state.low[over]
    while word < end and not state.waiting[word]:
        word += 1
    state.low[over] = word
    state.top[over] = len(state.hop)
    if word < end:
        state.top[over] = state.rank[state.user[WORD * word + lowest(state.waiting[word])]]
    return found, tried


@kernel(inlined=True)
def _may_fit(state: Any, link: int) -> bool:
    """Whether transfers wait for a link, and there is bandwidth for the slowest that it has."""
    return state.top[link] < len(state.hop) and state.left[link] >= state.slowest[link]


@kernel(inlined=True)
def _blocked_on(state: Any, wires: Wires, t: int, over: int) -> tuple[int, int]:
    """The use and link on which a transfer is blocked as its rate is not available; or −1.

    `over` has precedence, then the busiest link: it rarely becomes free, so that fewer tries fail.
    """
    hop, blocking, on = state.hop[t], -1, -1
    first = wires.first[hop]
    for i in range(first, wires.first[hop + 1]):
        link = wires.links[i]
        if wires.rate[hop] > state.left[link] * (1 + ROUNDING) and (
            on < 0 or (on != over and (link == over or state.load_s[link] > state.load_s[on]))
        ):
            blocking, on = state.first[t] + i - first, link
    return blocking, on


@kernel(inlined=True)
def _count_down(state: Any, wires: Wires, t: int, now: float) -> None:
    """Takes one off what a transfer waits for, and makes it ready after the last."""
    state.waits[t] -= 1
    if not state.waits[t]:
        _make_ready(state, wires, t, now)


@kernel(inlined=True)
def _make_ready(state: Any, wires: Wires, t: int, now: float) -> None:
    """Has a transfer wait for the first link of its route; over no link, it arrives at once."""
    if state.first[t] == state.first[t + 1]:
        push_event(state.events, now, 4 * t + FREED, False)
    else:
        link = wires.links[wires.first[state.hop[t]]]
        _wait(state, t, state.first[t], link)
        _list(state, link)


@kernel(inlined=True)
def _wait(state: Any, t: int, use: int, link: int) -> None:
    """Puts a transfer in the queue of a link."""
    word = state.bit[use] // WORD
    state.waiting[word] |= bit(state.bit[use])
    state.low[link] = min(state.low[link], word)
    state.top[link] = min(state.top[link], state.rank[t])


@kernel(inlined=True)
def _list(state: Any, link: int) -> None:
    """Puts a link in the heap if transfers may fit, or moves it up by its first transfer."""
    first, at = state.top[link], state.place[link]
    if at < 0:
        if not _may_fit(state, link):
            return
        at = state.length[0]
        state.length[0] += 1
    while at > 0 and state.top[state.heap[(at - 1) // 2]] > first:
        state.heap[at] = state.heap[(at - 1) // 2]
        state.place[state.heap[at]] = at
        at = (at - 1) // 2
    state.heap[at], state.place[link] = link, at


@kernel(inlined=True)
def _leave_first(state: Any) -> None:
    """Takes the first link out of the heap."""
    state.place[state.heap[0]] = -1
    state.length[0] -= 1
    if state.length[0]:
        state.heap[0] = state.heap[state.length[0]]
        _sink_first(state)


@kernel(inlined=True)
def _sink_first(state: Any) -> None:
    """Moves the first link of the heap down to its position by its first transfer."""
    link, at, count = state.heap[0], 0, state.length[0]
    while 2 * at + 1 < count:
        child = 2 * at + 1
        if child + 1 < count and (state.top[state.heap[child + 1]] < state.top[state.heap[child]]):
            child += 1
        if state.top[state.heap[child]] >= state.top[link]:
            break
        state.heap[at] = state.heap[child]
        state.place[state.heap[at]] = at
        at = child
    state.heap[at], state.place[link] = link, at


@kernel
def reversed_precedence(trees: Dependencies) -> Dependencies:
    """The transfers with dependencies reversed, as if time ran backwards.

    Args:
        trees: the transfers; the lengths of their paths are kept.
    """
    parts, each = trees.hop.shape
    # Parts may share their rows of `following`; here each has its own.
    waits, following = np.empty((parts, each), np.int64), np.empty(trees.waits.sum(), np.int64)
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
    return Dependencies(
        trees.hop,
        waits,
        following,
        first_following,
        np.zeros_like(trees.ready),
        trees.tail_s,
        trees.tail_s_per_byte,
    )
