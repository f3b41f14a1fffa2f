"""Event simulation of given trees: each link takes the most urgent ready transfer."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradweave.compiled import kernel
from gradweave.schedulers.kernels.events import Events, no_events, pop_event, push_event
from gradweave.schedulers.kernels.wires import Wires
from gradweave.schedulers.kernels.worklist import Worklist, empty_worklist, list_member
from gradweave.topology.topology import Floats, Integers
from gradweave.topology.units import ROUNDING

TAIL = 1.5
"""Weight of the longest path that a transfer heads, relative to the urgency of its links: leaves of
trees are left for the end, when nothing else keeps links busy. Chosen by hand; compiled in, since
it would be another argument of each call in the innermost loop."""
FREED, ARRIVED, READY = 0, 1, 2
"""Kinds of events: a transfer frees its links, it arrives, its source becomes ready."""


class Trees(NamedTuple):
    """The transfers: at most M per piece, the same for all pieces of a part.

    A transfer waits for all transfers that its source needs first; `following` holds the same
    relation in the other direction.
    """

    hop: NDArray[np.int64]
    """[parts, M] hop of each transfer; −1 for the missing transfers of parts with fewer than M."""
    waits: NDArray[np.int64]
    """[parts, M] number of transfers of the same piece that each waits for."""
    following: NDArray[np.int64]
    """Transfers that wait for each transfer, part by part."""
    first_following: NDArray[np.int64]
    """[parts, M+1] index of the first of `following` for each transfer."""
    ready: NDArray[np.float64]
    """[parts, M] seconds at which each transfer's source is ready."""
    tail_s: NDArray[np.float64]
    """[parts, M] seconds of latency and overhead on the longest path from a transfer, itself
    included, to the end of its piece."""
    tail_s_per_byte: NDArray[np.float64]
    """[parts, M] seconds per byte of the piece on that path."""


class _State(NamedTuple):
    """Progress of transfers, and the queue of each link. Transfers are numbered piece by piece."""

    hop: NDArray[np.int64]
    """[P·M] hop of each transfer."""
    own: NDArray[np.float64]
    """[P·M] constant part of each transfer's urgency."""
    waits: NDArray[np.int64]
    """[P·M] transfers that each still waits for, plus one until its source is ready."""
    unfinished: NDArray[np.int64]
    """[P] transfers of each piece that have not arrived."""
    left: NDArray[np.float64]
    """[L] free bandwidth."""
    load: NDArray[np.float64]
    """[L] seconds of load that the link still has to carry."""
    head: NDArray[np.int64]
    """[L] first transfer in the queue of the link, or −1."""
    after: NDArray[np.int64]
    """[P·M] next transfer in the same queue, or −1."""
    worklist: Worklist
    """Links whose transfers may start now, after bandwidth was freed or a transfer added."""
    slowest: NDArray[np.float64]
    """[L] smallest rate of a transfer over the link; with less bandwidth free, none fits."""
    best: NDArray[np.int64]
    """[L] the most urgent transfer of each link on the worklist, in worklist order, or −1."""
    urgency: NDArray[np.float64]
    """[L] its urgency when last tried; it may have dropped since."""
    events: Events
    """Three times the transfer plus the kind of event; simultaneous events by number."""


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
    """Start of each transfer, and the last arrival.

    Whenever links become free or data arrives, each such link takes the most urgent transfer among
    those that are ready and fit: the transfer whose links have most left to carry, whose piece
    comes first, and that heads the longest path. A transfer only starts when its predecessors have
    arrived and every link of its route has its rate free; it is tried when it becomes ready and
    when the link it waits for becomes free. A piece starts when all but `window` pieces before it
    have ended, so that no link has many waiting transfers.

    Args:
        trees: the trees of the parts.
        wires: the network's wires.
        part: [P] part of each piece, in the order in which pieces start.
        size: [P] bytes of each piece.
        order: penalty of a piece later in the order, see `Tuning.order_penalty`.
        window: most pieces under way at a time.
        until: seconds at which to give up.

    Returns:
        [P·M] start of each transfer, piece by piece, infinite for missing transfers; and the total
        seconds, infinite if it gave up.
    """
    start = np.full(len(part) * trees.hop.shape[1], np.inf)
    state = _begun(trees, wires, part, size, order)
    _add_ready(trees, part, state.events)
    return start, _play(trees, wires, state, part, size, window, until, start)


@kernel(inner=True, allocates=False)
def _play(
    trees: Trees,
    wires: Wires,
    state: Any,
    part: Integers,
    size: Floats,
    window: int,
    until: float,
    start: Floats,
) -> float:
    """Simulates all transfers; returns the last arrival, or infinity if it gave up."""
    per_piece, pieces, events = trees.hop.shape[1], len(part), state.events
    oldest, admitted, now, last = 0, 0, 0.0, 0.0
    while True:
        while admitted < min(pieces, oldest + window):
            for t in range(admitted * per_piece, (admitted + 1) * per_piece):
                if not state.waits[t] and state.hop[t] >= 0:
                    _make_ready(wires, state, t)
            admitted += 1
        last = max(last, _start_all(wires, state, size, per_piece, now, start))
        if not events.length[0] or events.when[0] > until:
            return np.inf if events.length[0] else last
        now = events.when[0]
        while events.length[0] and events.when[0] <= now * (1 + ROUNDING):
            t, kind = divmod(pop_event(events, True), 3)
            if kind == FREED:
                _free(wires, state, t)
            elif kind == ARRIVED:
                state.unfinished[t // per_piece] -= 1
                _arrive(trees, wires, state, part, t)
            else:
                state.waits[t] -= 1
                if not state.waits[t] and t // per_piece < admitted:
                    _make_ready(wires, state, t)
        if oldest < pieces and not state.unfinished[oldest]:
            if now + state.load.max() > until:  # some link has too much left to carry
                return np.inf
            while oldest < pieces and not state.unfinished[oldest]:
                oldest += 1


@kernel(inner=True, allocates=False)
def _add_ready(trees: Trees, part: Integers, events: Events) -> None:
    """Adds events for sources that are not ready from the start."""
    per_piece = trees.hop.shape[1]
    for p in range(len(part)):
        for m in range(per_piece):
            ready_s = trees.ready[part[p], m]
            if ready_s > 0.0:
                push_event(events, ready_s, 3 * (p * per_piece + m) + READY, True)


@kernel(inner=True)
def _begun(trees: Trees, wires: Wires, part: Integers, size: Floats, order: float) -> Any:
    """The state before the first transfer."""
    links, per_piece, pieces = len(wires.bandwidth), trees.hop.shape[1], len(part)
    count = pieces * per_piece
    unfinished = np.zeros(pieces, np.int64)
    hops, waits, load = np.empty(count, np.int64), np.empty(count, np.int64), np.zeros(links)
    own, slowest = np.empty(count), np.full(links, np.inf)
    _count(trees, wires, part, size, hops, waits, unfinished, load, slowest)
    _weigh(trees, part, size, order * load.max() / pieces, own)
    return _State(
        hops,
        own,
        waits,
        unfinished,
        wires.bandwidth.copy(),
        load,
        np.full(links, -1),
        np.full(count, -1),
        empty_worklist(links),
        slowest,
        np.full(links, -1),
        np.zeros(links),
        no_events(2 * count),  # per transfer: its source's event, or at most the other two
    )


@kernel(inner=True, allocates=False)
def _count(
    trees: Trees,
    wires: Wires,
    part: Integers,
    size: Floats,
    hops: Integers,
    waits: Integers,
    unfinished: Integers,
    load: Floats,
    slowest: Floats,
) -> None:
    """Writes the initial state; loads and numbers of transfers must be 0 before."""
    for hop in range(len(wires.rate)):
        for i in range(wires.first[hop], wires.first[hop + 1]):
            slowest[wires.links[i]] = min(slowest[wires.links[i]], wires.rate[hop])
    t = 0
    for p in range(len(part)):
        for m in range(trees.hop.shape[1]):
            waits[t] = trees.waits[part[p], m] + (trees.ready[part[p], m] > 0.0)
            hop = trees.hop[part[p], m]
            hops[t] = hop
            t += 1
            if hop < 0:
                continue
            unfinished[p] += 1
            for i in range(wires.first[hop], wires.first[hop + 1]):
                link = wires.links[i]
                load[link] += wires.overhead[hop] + size[p] / wires.bandwidth[link]


@kernel(inner=True, allocates=False)
def _weigh(trees: Trees, part: Integers, size: Floats, penalty: float, own: Floats) -> None:
    """Writes the constant part of transfers' urgency.

    Args:
        trees: the trees of the parts.
        part: [P] part of each piece.
        size: [P] bytes of each piece.
        penalty: penalty per position in the order.
        own: [P·M] output.
    """
    t = 0
    for p in range(len(part)):
        for m in range(trees.hop.shape[1]):
            tail = trees.tail_s[part[p], m]
            tail += size[p] * trees.tail_s_per_byte[part[p], m]
            own[t] = TAIL * tail - penalty * p
            t += 1


@kernel(inlined=True)
def _make_ready(wires: Wires, state: Any, t: int) -> None:
    """Puts a transfer in the queue of its first link, and the link on the worklist."""
    link = wires.links[wires.first[state.hop[t]]]
    state.after[t], state.head[link] = state.head[link], t
    list_member(state.worklist, link)


@kernel(inlined=True)
def _free(wires: Wires, state: Any, t: int) -> None:
    """Frees a transfer's bandwidth."""
    hop = state.hop[t]
    for i in range(wires.first[hop], wires.first[hop + 1]):
        state.left[wires.links[i]] += wires.rate[hop]
        list_member(state.worklist, wires.links[i])


@kernel(inlined=True)
def _arrive(trees: Trees, wires: Wires, state: Any, part: Integers, t: int) -> None:
    """Makes ready the transfers for which this was the last dependency."""
    p, m = divmod(t, trees.hop.shape[1])
    first = trees.first_following[part[p]]
    for i in range(first[m], first[m + 1]):
        follower = t - m + trees.following[i]
        state.waits[follower] -= 1
        if not state.waits[follower]:
            _make_ready(wires, state, follower)


@kernel(inlined=True)
def _start_all(
    wires: Wires, state: Any, size: Floats, per_piece: int, now: float, start: Floats
) -> float:
    """Starts all transfers that fit on the worklist's links; returns the last arrival.

    The most urgent transfer over all links goes first: a link by itself would take its own first
    transfer, and block the server at its other end from more urgent ones. Starting a transfer only
    lowers the urgency of others, so a link's queue is searched again only when it seems to come
    first.
    """
    last, worklist = 0.0, state.worklist
    listed = worklist.length[0]
    for k in range(listed):
        _refresh(wires, state, k)
    while True:
        k = _first_of_all(wires, state)
        if k < 0:
            break
        last = max(last, _start(wires, state, size, per_piece, now, k, start))
    for k in range(listed):
        worklist.listed[worklist.members[k]] = False
    worklist.length[0] = 0
    return last


@kernel(inlined=True)
def _refresh(wires: Wires, state: Any, k: int) -> None:
    """Finds the most urgent transfer at the k-th link of the worklist, if any can fit."""
    link = state.worklist.members[k]
    state.best[k] = -1
    if state.slowest[link] <= state.left[link] * (1 + ROUNDING):
        state.best[k], state.urgency[k] = _most_urgent(wires, state, link)


@kernel(inlined=True)
def _first_of_all(wires: Wires, state: Any) -> int:
    """The position in the worklist with the currently most urgent transfer of all, or −1."""
    listed, seen = state.worklist.length[0], -1
    while True:
        first = -1
        for k in range(listed):
            if state.best[k] >= 0 and (first < 0 or state.urgency[k] > state.urgency[first]):
                first = k
        if first < 0 or first == seen:
            return first
        _refresh(wires, state, first)
        seen = first


@kernel(inlined=True)
def _start(
    wires: Wires, state: Any, size: Floats, per_piece: int, now: float, k: int, start: Floats
) -> float:
    """Starts the most urgent transfer of the k-th link of the worklist; returns its arrival."""
    chosen = state.best[k]
    _take(state, state.worklist.members[k], chosen)
    p, hop = chosen // per_piece, state.hop[chosen]
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


@kernel(inlined=True)
def _most_urgent(wires: Wires, state: Any, link: int) -> tuple[int, float]:
    """The most urgent transfer that waits for a link and can start, or −1; and its urgency.

    Transfers blocked on another link move to that link's queue. This is the hottest loop: a queue
    is searched each time that its link seems to come first.
    """
    head, after = state.head, state.after
    best, highest = -1, 0.0
    before, t = -1, int(head[link])
    while t >= 0:
        following = int(after[t])
        blocking, urgency = _blocked_on(wires, state, state.hop[t], link)
        if blocking >= 0 and blocking != link:
            if before < 0:
                head[link] = following
            else:
                after[before] = following
            after[t], head[blocking] = head[blocking], t
        else:
            urgency += state.own[t]
            if blocking < 0 and (best < 0 or urgency > highest):
                best, highest = t, urgency
            before = t
        t = following
    return best, highest


@kernel(inlined=True)
def _take(state: Any, link: int, t: int) -> None:
    """Removes a transfer from a link's queue."""
    at = int(state.head[link])
    if at == t:
        state.head[link] = state.after[t]
        return
    while state.after[at] != t:
        at = int(state.after[at])
    state.after[at] = state.after[t]


@kernel(inlined=True)
def _blocked_on(wires: Wires, state: Any, hop: int, link: int) -> tuple[int, float]:
    """The link on which a hop is blocked, `link` before others, or −1; and the largest load."""
    blocking, most = -1, 0.0
    for i in range(wires.first[hop], wires.first[hop + 1]):
        used = wires.links[i]
        most = max(most, float(state.load[used]))
        if blocking != link and wires.rate[hop] > state.left[used] * (1 + ROUNDING):
            blocking = int(used)
    return blocking, most
