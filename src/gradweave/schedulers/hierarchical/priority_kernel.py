"""When transfers start if each link takes what is ready by a fixed priority."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradweave.compiled import kernel
from gradweave.schedulers.kernels.events import Events, no_events, pop_event, push_event
from gradweave.schedulers.kernels.wires import Wires
from gradweave.schedulers.kernels.worklist import Worklist, empty_worklist, list_member
from gradweave.topology.topology import Floats, Integers
from gradweave.topology.units import ROUNDING

FREED, ARRIVED = 0, 1
"""Kinds of events: a transfer's links get free, it arrives."""
LOOKS = 16
"""Blocked transfers in a row after which a link with room looks no further: each then waits for
what blocks it, and when it has ended, the link is tried again. Without a limit links that are
behind would go through all that waits, again and again. Chosen by hand; compiled in."""


class Parts(NamedTuple):
    """Trees of the parts.

    Each server but the root sends its sum to its parent once, and gets the whole sum from it once.
    """

    root: NDArray[np.int64]
    """[parts] rank."""
    parent: NDArray[np.int32]
    """[parts, N]; of the root itself."""
    children: NDArray[np.int32]
    """[parts, N] servers by parent, the root last."""
    first_child: NDArray[np.int32]
    """[parts, N+1] where those of each server start."""
    hop: NDArray[np.int32]
    """[2, parts, N] hop to the parent, and from it."""
    key: NDArray[np.int32]
    """[2, parts, N] priority of each transfer within a chunk, the least first."""


class _State(NamedTuple):
    """What has begun, and what waits for which link."""

    waits: NDArray[np.int32]
    """[P, N] children from which each server still lacks a sum."""
    left: NDArray[np.float64]
    """[L] bandwidth that no transfer has taken."""
    top: NDArray[np.int64]
    """[L] the first by priority of what waits for a link, a pairing heap; or −1."""
    child: NDArray[np.int32]
    """[T] first of the heaps below a transfer, or −1."""
    next: NDArray[np.int32]
    """[T] the heap beside that of a transfer, or −1."""
    worklist: Worklist
    """Links that have room, and something that waits."""
    events: Events


@kernel
def play_by_priority(
    parts: Parts,
    wires: Wires,
    part: Integers,
    size: Floats,
    rank: Integers,
    stages: Integers,
    until: float,
) -> tuple[NDArray[np.float64], float]:
    """Start of each transfer, and when the last one arrives.

    A link with room takes of what is ready the first by priority whose other links have room, too;
    what these lack room for waits there. Transfer t of piece p is 2·N·p + N·stage + server: what a
    server sends to its parent, or gets from it.

    Args:
        parts: the trees.
        wires: of the network.
        part: [P] part of each piece.
        size: [P] bytes of each piece.
        rank: [2, P] what is added to the keys of a piece's transfers, of either stage.
        stages: [2] whether there is a reduce-scatter, and an all-gather.
        until: seconds at which to give up.

    Returns:
        [P·2·N] start of each transfer, infinite of those that there are not; seconds, infinite
        where it was given up.
    """
    start = np.full(len(part) * 2 * parts.parent.shape[1], np.inf)
    state = _begun(parts, wires, part)
    return start, _play(parts, wires, state, part, size, rank, stages, until, start)


@kernel(inner=True, allocates=False)
def _play(
    parts: Parts,
    wires: Wires,
    state: _State,
    part: Integers,
    size: Floats,
    rank: Integers,
    stages: Integers,
    until: float,
    start: Floats,
) -> float:
    """Sends everything; when the last of it arrives, infinite where it was given up."""
    pieces, servers = len(part), parts.parent.shape[1]
    for p in range(pieces):
        if not stages[0]:
            _copy_on(parts, wires, state, part, rank, p, parts.root[part[p]])
            continue
        for s in range(servers):
            if not state.waits[p, s]:
                _make_ready(parts, wires, state, part, rank, (p * 2) * servers + s)
    last, now = 0.0, 0.0
    events = state.events
    while True:
        worklist = state.worklist
        for k in range(worklist.length[0]):
            link = worklist.members[k]
            worklist.listed[link] = False
            ended = _start_of_link(parts, wires, state, part, size, rank, link, now, start)
            last = max(last, ended)
        worklist.length[0] = 0
        if not events.length[0]:
            return last
        if events.when[0] > until:
            return np.inf
        now = events.when[0]
        while events.length[0] and events.when[0] <= now * (1 + ROUNDING):
            t, kind = divmod(pop_event(events, True), 2)
            if kind == FREED:
                _free(parts, wires, state, part, t)
            else:
                _arrive(parts, wires, state, part, rank, stages, t)


@kernel(inner=True)
def _begun(parts: Parts, wires: Wires, part: Integers) -> _State:
    """Nothing has begun."""
    links, servers = len(wires.bandwidth), parts.parent.shape[1]
    transfers = len(part) * 2 * servers
    waits = np.empty((len(part), servers), np.int32)
    for p in range(len(part)):
        for s in range(servers):
            first = parts.first_child[part[p]]
            waits[p, s] = first[s + 1] - first[s]
    return _State(
        waits,
        wires.bandwidth.copy(),
        np.full(links, -1),
        np.full(transfers, -1, np.int32),
        np.full(transfers, -1, np.int32),
        empty_worklist(links),
        no_events(2 * transfers),
    )


@kernel(inlined=True)
def _hop(parts: Parts, part: Integers, t: int) -> int:
    servers = parts.parent.shape[1]
    row, s = divmod(t, servers)
    return parts.hop[row % 2, part[row // 2], s]


@kernel(inlined=True)
def _priority(parts: Parts, part: Integers, rank: Integers, t: int) -> int:
    servers = parts.parent.shape[1]
    row, s = divmod(t, servers)
    return rank[row % 2, row // 2] + parts.key[row % 2, part[row // 2], s]


@kernel(inlined=True)
def _merged(
    parts: Parts, part: Integers, rank: Integers, state: _State, one: int, other: int
) -> int:
    """Two heaps made one; the first of equals is that of the lesser number."""
    a, b = _priority(parts, part, rank, one), _priority(parts, part, rank, other)
    if b < a or (b == a and other < one):
        one, other = other, one
    state.next[other] = state.child[one]
    state.child[one] = other
    return one


@kernel(inner=True, allocates=False)
def _put(
    parts: Parts, wires: Wires, state: _State, part: Integers, rank: Integers, link: int, t: int
) -> None:
    """Lets a transfer wait for a link."""
    state.child[t] = state.next[t] = -1
    top = state.top[link]
    state.top[link] = t if top < 0 else _merged(parts, part, rank, state, top, t)


@kernel(inner=True, allocates=False)
def _take(parts: Parts, state: _State, part: Integers, rank: Integers, link: int) -> None:
    """Takes the first of a link's transfers out: the heaps below it are merged two by two."""
    at = int(state.child[state.top[link]])
    pairs = -1
    while at >= 0:
        one = at
        other = int(state.next[one])
        at = int(state.next[other]) if other >= 0 else -1
        state.next[one] = -1
        if other >= 0:
            state.next[other] = -1
            one = _merged(parts, part, rank, state, one, other)
        state.next[one] = pairs
        pairs = one
    merged = -1
    while pairs >= 0:
        following = int(state.next[pairs])
        state.next[pairs] = -1
        merged = pairs if merged < 0 else _merged(parts, part, rank, state, merged, pairs)
        pairs = following
    state.top[link] = merged


@kernel(inner=True, allocates=False)
def _make_ready(
    parts: Parts, wires: Wires, state: _State, part: Integers, rank: Integers, t: int
) -> None:
    """Lets a transfer wait for its first link, which is put on the worklist."""
    link = wires.links[wires.first[_hop(parts, part, t)]]
    _put(parts, wires, state, part, rank, link, t)
    list_member(state.worklist, link)


@kernel(inner=True, allocates=False)
def _copy_on(
    parts: Parts, wires: Wires, state: _State, part: Integers, rank: Integers, p: int, server: int
) -> None:
    """Makes a server's copies to its children ready."""
    of, servers = part[p], parts.parent.shape[1]
    for i in range(parts.first_child[of, server], parts.first_child[of, server + 1]):
        t = (p * 2 + 1) * servers + parts.children[of, i]
        _make_ready(parts, wires, state, part, rank, t)


@kernel(inner=True, allocates=False)
def _arrive(
    parts: Parts,
    wires: Wires,
    state: _State,
    part: Integers,
    rank: Integers,
    stages: Integers,
    t: int,
) -> None:
    """Makes ready what waited for a transfer last."""
    servers = parts.parent.shape[1]
    row, s = divmod(t, servers)
    p = row // 2
    if row % 2:
        _copy_on(parts, wires, state, part, rank, p, s)
        return
    parent = parts.parent[part[p], s]
    state.waits[p, parent] -= 1
    if state.waits[p, parent]:
        return
    if parent != parts.root[part[p]]:
        _make_ready(parts, wires, state, part, rank, p * 2 * servers + parent)
    elif stages[1]:
        _copy_on(parts, wires, state, part, rank, p, parent)


@kernel(inner=True, allocates=False)
def _free(parts: Parts, wires: Wires, state: _State, part: Integers, t: int) -> None:
    """Gives back the bandwidth that a transfer had."""
    hop = _hop(parts, part, t)
    for i in range(wires.first[hop], wires.first[hop + 1]):
        link = wires.links[i]
        state.left[link] += wires.rate[hop]
        if state.top[link] >= 0:
            list_member(state.worklist, link)


@kernel(inner=True, allocates=False)
def _start_of_link(
    parts: Parts,
    wires: Wires,
    state: _State,
    part: Integers,
    size: Floats,
    rank: Integers,
    link: int,
    now: float,
    start: Floats,
) -> float:
    """Starts what waits for a link while it has room; when the last of it arrives."""
    last, looks = 0.0, 0
    while state.top[link] >= 0 and looks < LOOKS:
        t = int(state.top[link])
        hop = _hop(parts, part, t)
        blocking = _blocked_on(wires, state, hop, link)
        if blocking == link:
            break
        _take(parts, state, part, rank, link)
        if blocking >= 0:
            _put(parts, wires, state, part, rank, blocking, t)
            looks += 1
            continue
        for i in range(wires.first[hop], wires.first[hop + 1]):
            state.left[wires.links[i]] -= wires.rate[hop]
        start[t] = now
        free = now + wires.overhead[hop] + size[t // (2 * parts.parent.shape[1])] / wires.rate[hop]
        arrival = float(free + wires.latency[hop])
        push_event(state.events, free, 2 * t + FREED, True)
        push_event(state.events, arrival, 2 * t + ARRIVED, True)
        last = max(last, arrival)
    return last


@kernel(inner=True, allocates=False)
def _blocked_on(wires: Wires, state: _State, hop: int, link: int) -> int:
    """A link of a hop without room for it, `link` before others; or −1."""
    blocking = -1
    for i in range(wires.first[hop], wires.first[hop + 1]):
        used = wires.links[i]
        if wires.rate[hop] > state.left[used] * (1 + ROUNDING):
            if used == link:
                return link
            blocking = used
    return blocking
