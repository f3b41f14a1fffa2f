"""Given trees by event simulation: each link takes the most urgent transfer that is ready."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradweave.compiled import kernel
from gradweave.schedulers.kernels.events import Events, no_events, pop_event, push_event
from gradweave.schedulers.kernels.wires import Wires
from gradweave.schedulers.kernels.worklist import Worklist, empty_worklist, list_member
from gradweave.topology.topology import Floats, Integers
from gradweave.topology.units import ROUNDING

TAIL = 1.5
"""Weight of the longest path that a transfer heads, beside the urgency of its links: leaves of
trees are left for the end, when nothing else keeps links busy. Chosen by hand; compiled in, as it
would be one more argument of each call in the innermost loop."""
FREED, ARRIVED, READY = 0, 1, 2
"""Kinds of events: a transfer's links get free, it arrives, its source gets ready."""


class Trees(NamedTuple):
    """What moves: M transfers for each piece, the same for all pieces of a part.

    A transfer waits for all that its source needs first; `following` says which ones those are, the
    other way round.
    """

    hop: NDArray[np.int64]
    """[parts, M] hop of each transfer."""
    waits: NDArray[np.int64]
    """[parts, M] transfers of the same piece that each waits for."""
    following: NDArray[np.int64]
    """Transfers that wait for each one, part by part."""
    first_following: NDArray[np.int64]
    """[parts, M+1] where those of each transfer start."""
    ready: NDArray[np.float64]
    """[parts, M] seconds at which each transfer's source is ready."""
    tail_s: NDArray[np.float64]
    """[parts, M] seconds of latency and overhead on the longest path from a transfer, itself
    included, to the end of its piece."""
    tail_s_per_byte: NDArray[np.float64]
    """[parts, M] and for each byte of the piece."""


class _State(NamedTuple):
    """What has begun, and what waits for which link."""

    waits: NDArray[np.int64]
    """[P·M] prefixes that each transfer still waits for, and one more until its source is ready."""
    left: NDArray[np.float64]
    """[L] bandwidth that no transfer has taken."""
    load: NDArray[np.float64]
    """[L] seconds for which the link must still carry."""
    head: NDArray[np.int64]
    """[L] first of the transfers that wait for the link, or −1."""
    after: NDArray[np.int64]
    """[P·M] the next one that waits for the same link, or −1."""
    worklist: Worklist
    """Links whose transfers may start now: those that got room, or something to carry."""
    slowest: NDArray[np.float64]
    """[L] least rate of a transfer over the link: with less left, it can take none."""
    best: NDArray[np.int64]
    """[L] the most urgent transfer of each link on the worklist, in its order, or −1."""
    urgency: NDArray[np.float64]
    """[L] and how urgent it was when last tried; by now it may be less so."""
    events: Events
    """Transfers, times three, plus the kind of event; one at one time by their numbers."""


@kernel
def simulate(
    trees: Trees,
    wires: Wires,
    part: Integers,
    size: Floats,
    order: float,
    window: int,
    until: float,
) -> tuple[NDArray[np.float64], float]:
    """Start of each transfer, and when the last one arrives.

    At each moment at which links get free or data arrives, each such link takes, of what is ready
    and fits, the most urgent transfer: the one whose links have most left to carry, whose piece
    comes first and which heads the longest path. Right because
    a transfer starts only when its prefixes have arrived and every link of its route has its rate
    left; it is tried when it becomes ready and when the link that it waits for gets free. A
    piece begins when all but `window` before it have ended, so that no link has many waiting.

    Args:
        trees: of the parts.
        wires: of the network.
        part: [P] part that each piece belongs to, in the order in which they begin.
        size: [P] bytes of each piece.
        order: penalty of a piece further back in the order, as `Tuning.order_penalty`.
        window: pieces under way at one time, at most.
        until: seconds at which to give up.

    Returns:
        [P·M] start of each transfer, piece by piece, and the seconds in all; infinite where it was
        given up.
    """
    per_piece, pieces = trees.hop.shape[1], len(part)
    start = np.full(pieces * per_piece, np.inf)
    state = _begun(trees, wires, part, size)
    penalty = order * state.load.max() / pieces  # of a piece less far on in the order
    unfinished, oldest, admitted = np.full(pieces, per_piece), 0, 0
    now, last = 0.0, 0.0
    events = state.events
    _add_ready(trees, part, events)
    while True:
        while admitted < min(pieces, oldest + window):
            for m in range(per_piece):
                if not state.waits[admitted * per_piece + m]:
                    _make_ready(trees, wires, state, part, admitted * per_piece + m)
            admitted += 1
        last = max(last, _start_all(trees, wires, state, part, size, penalty, now, start))
        if not events.length[0] or events.when[0] > until:
            return start, np.inf if events.length[0] else last
        now = events.when[0]
        while events.length[0] and events.when[0] <= now * (1 + ROUNDING):
            t, kind = divmod(pop_event(events, True), 3)
            if kind == FREED:
                _free(trees, wires, state, part, t)
            elif kind == ARRIVED:
                unfinished[t // per_piece] -= 1
                _arrive(trees, wires, state, part, t)
            else:
                state.waits[t] -= 1
                if not state.waits[t] and t // per_piece < admitted:
                    _make_ready(trees, wires, state, part, t)
        if oldest < pieces and not unfinished[oldest]:
            if now + state.load.max() > until:  # some link has too much left to carry
                return start, np.inf
            while oldest < pieces and not unfinished[oldest]:
                oldest += 1


@kernel(inner=True)
def _add_ready(trees: Trees, part: Integers, events: Events) -> None:
    """When sources get ready that are not so from the start, as events."""
    per_piece = trees.hop.shape[1]
    for p in range(len(part)):
        for m in range(per_piece):
            ready_s = trees.ready[part[p], m]
            if ready_s > 0.0:
                push_event(events, ready_s, 3 * (p * per_piece + m) + READY, True)


@kernel(inner=True)
def _begun(trees: Trees, wires: Wires, part: Integers, size: Floats) -> _State:
    """Nothing has begun."""
    links, per_piece = len(wires.bandwidth), trees.hop.shape[1]
    waits, load = np.empty(len(part) * per_piece, np.int64), np.zeros(links)
    slowest = np.full(links, np.inf)
    for hop in range(len(wires.rate)):
        for i in range(wires.first[hop], wires.first[hop + 1]):
            slowest[wires.links[i]] = min(slowest[wires.links[i]], wires.rate[hop])
    for p in range(len(part)):
        for m in range(per_piece):
            waits[p * per_piece + m] = trees.waits[part[p], m] + (trees.ready[part[p], m] > 0.0)
            hop = trees.hop[part[p], m]
            for i in range(wires.first[hop], wires.first[hop + 1]):
                link = wires.links[i]
                load[link] += wires.overhead[hop] + size[p] / wires.bandwidth[link]
    return _State(
        waits,
        wires.bandwidth.copy(),
        load,
        np.full(links, -1),
        np.full(len(waits), -1),
        empty_worklist(links),
        slowest,
        np.full(links, -1),
        np.zeros(links),
        no_events(2 * len(waits)),  # of a transfer, its source's or at most both others
    )


@kernel(inner=True)
def _hop(trees: Trees, part: Integers, t: int) -> int:
    """The hop of a transfer."""
    piece, transfer = divmod(t, trees.hop.shape[1])
    return trees.hop[part[piece], transfer]


@kernel(inner=True)
def _make_ready(trees: Trees, wires: Wires, state: _State, part: Integers, t: int) -> None:
    """Lets a transfer wait for its first link, which is put on the worklist."""
    link = wires.links[wires.first[_hop(trees, part, t)]]
    state.after[t], state.head[link] = state.head[link], t
    list_member(state.worklist, link)


@kernel(inner=True)
def _free(trees: Trees, wires: Wires, state: _State, part: Integers, t: int) -> None:
    """Gives back the bandwidth that a transfer had."""
    hop = _hop(trees, part, t)
    for i in range(wires.first[hop], wires.first[hop + 1]):
        state.left[wires.links[i]] += wires.rate[hop]
        list_member(state.worklist, wires.links[i])


@kernel(inner=True)
def _arrive(trees: Trees, wires: Wires, state: _State, part: Integers, t: int) -> None:
    """Makes those ready that waited for a transfer last."""
    per_piece = trees.hop.shape[1]
    p, m = t // per_piece, t % per_piece
    first = trees.first_following[part[p]]
    for i in range(first[m], first[m + 1]):
        follower = p * per_piece + trees.following[i]
        state.waits[follower] -= 1
        if not state.waits[follower]:
            _make_ready(trees, wires, state, part, follower)


@kernel(inner=True)
def _start_all(
    trees: Trees,
    wires: Wires,
    state: _State,
    part: Integers,
    size: Floats,
    penalty: float,
    now: float,
    start: Floats,
) -> float:
    """Starts what the links on the worklist have room for; when the last of it arrives.

    The most urgent of all first: each link by itself would take what waits for it, and keep a
    server at its other end from what is more urgent there. What starts makes others only less
    urgent, so that after it a link's chain is gone through again only when it seems to come first.
    """
    last, worklist = 0.0, state.worklist
    listed = worklist.length[0]
    for k in range(listed):
        _refresh(trees, wires, state, part, size, penalty, k)
    while True:
        k = _first_of_all(trees, wires, state, part, size, penalty)
        if k < 0:
            break
        last = max(last, _start(trees, wires, state, part, size, now, k, start))
    for k in range(listed):
        worklist.listed[worklist.members[k]] = False
    worklist.length[0] = 0
    return last


@kernel(inner=True)
def _refresh(
    trees: Trees, wires: Wires, state: _State, part: Integers, size: Floats, penalty: float, k: int
) -> None:
    """Finds what is most urgent at the k-th link of the worklist, where it has room for any."""
    link = state.worklist.members[k]
    state.best[k] = -1
    if state.slowest[link] <= state.left[link] * (1 + ROUNDING):
        state.best[k], state.urgency[k] = _most_urgent(
            trees, wires, state, part, size, penalty, link
        )


@kernel(inner=True)
def _first_of_all(
    trees: Trees, wires: Wires, state: _State, part: Integers, size: Floats, penalty: float
) -> int:
    """Which place of the worklist has the most urgent transfer of all as things are now, or −1."""
    listed, seen = state.worklist.length[0], -1
    while True:
        first = -1
        for k in range(listed):
            if state.best[k] >= 0 and (first < 0 or state.urgency[k] > state.urgency[first]):
                first = k
        if first < 0 or first == seen:
            return first
        _refresh(trees, wires, state, part, size, penalty, first)
        seen = first


@kernel(inner=True)
def _start(
    trees: Trees,
    wires: Wires,
    state: _State,
    part: Integers,
    size: Floats,
    now: float,
    k: int,
    start: Floats,
) -> float:
    """Starts the most urgent transfer of the k-th link of the worklist; when it arrives."""
    chosen = state.best[k]
    _take(state, state.worklist.members[k], chosen)
    p, hop = chosen // trees.hop.shape[1], _hop(trees, part, chosen)
    for i in range(wires.first[hop], wires.first[hop + 1]):
        used = wires.links[i]
        state.left[used] -= wires.rate[hop]
        state.load[used] -= wires.overhead[hop] + size[p] / wires.bandwidth[used]
    start[chosen] = now
    free = float(now + wires.overhead[hop] + size[p] / wires.rate[hop])
    arrival = float(free + wires.latency[hop])
    push_event(state.events, free, 3 * chosen + FREED, True)
    push_event(state.events, arrival, 3 * chosen + ARRIVED, True)
    return arrival


@kernel(inner=True)
def _most_urgent(
    trees: Trees,
    wires: Wires,
    state: _State,
    part: Integers,
    size: Floats,
    penalty: float,
    link: int,
) -> tuple[int, float]:
    """The most urgent transfer that waits for a link, and can start, or −1; and how urgent.

    What is blocked on another link goes into that link's chain. The hottest loop: a chain is gone
    through each time that its link seems to come first.
    """
    per_piece, head, after = trees.hop.shape[1], state.head, state.after
    best, highest = -1, 0.0
    before, t = -1, int(head[link])
    while t >= 0:
        following = int(after[t])
        blocking, urgency = _blocked_on(wires, state, _hop(trees, part, t), link)
        if blocking >= 0 and blocking != link:
            if before < 0:
                head[link] = following
            else:
                after[before] = following
            after[t], head[blocking] = head[blocking], t
        else:
            piece, transfer = divmod(t, per_piece)
            tail = trees.tail_s[part[piece], transfer]
            tail += size[piece] * trees.tail_s_per_byte[part[piece], transfer]
            urgency += TAIL * tail - penalty * piece
            if blocking < 0 and (best < 0 or urgency > highest):
                best, highest = t, urgency
            before = t
        t = following
    return best, highest


@kernel(inner=True)
def _take(state: _State, link: int, t: int) -> None:
    """Takes a transfer out of a link's chain."""
    at = int(state.head[link])
    if at == t:
        state.head[link] = state.after[t]
        return
    while state.after[at] != t:
        at = int(state.after[at])
    state.after[at] = state.after[t]


@kernel(inner=True)
def _blocked_on(wires: Wires, state: _State, hop: int, link: int) -> tuple[int, float]:
    """The link on which a hop is blocked, `link` before others, or −1; and the most load."""
    blocking, most = -1, 0.0
    for i in range(wires.first[hop], wires.first[hop + 1]):
        used = wires.links[i]
        most = max(most, float(state.load[used]))
        if blocking != link and wires.rate[hop] > state.left[used] * (1 + ROUNDING):
            blocking = int(used)
    return blocking, most
