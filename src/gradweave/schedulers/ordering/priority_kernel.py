"""Starts of transfers if each link serves ready transfers by a fixed priority."""

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
"""Kinds of events: a transfer frees its links, a transfer arrives."""
LOOKS = 16
"""Consecutive blocked transfers after which a link with free bandwidth looks no further. Each of
them then waits for what blocks it; when that has ended, the link is tried again. Without a limit,
congested links would go through all waiting transfers again and again. Chosen by hand; compiled
in."""


class Parts(NamedTuple):
    """Trees of the parts.

    Each server except the root sends its sum to its parent once, and later receives the full sum
    from it once.
    """

    root: NDArray[np.int64]
    """[parts] rank of each root."""
    parent: NDArray[np.int32]
    """[parts, N] parent of each server; a root is its own parent."""
    children: NDArray[np.int32]
    """[parts, N] servers sorted by parent, the root last."""
    first_child: NDArray[np.int32]
    """[parts, N+1] index of each server's first child."""
    hop: NDArray[np.int32]
    """[2, parts, N] hop to the parent, and hop from it."""
    key: NDArray[np.int32]
    """[2, parts, N] priority of each transfer within a chunk, smallest first."""


class _State(NamedTuple):
    """Progress of each piece, and the transfers waiting for each link."""

    waits: NDArray[np.int32]
    """[P, N] children from which each server still lacks a sum."""
    left: NDArray[np.float64]
    """[L] free bandwidth."""
    top: NDArray[np.int64]
    """[L] root of a pairing heap of waiting transfers, the first by priority; or −1."""
    child: NDArray[np.int32]
    """[T] first child heap of a transfer, or −1."""
    next: NDArray[np.int32]
    """[T] next sibling heap of a transfer, or −1."""
    worklist: Worklist
    """Links with free bandwidth and waiting transfers."""
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
    """Start of each transfer, and the last arrival.

    A link with free bandwidth takes, among ready transfers, the first by priority that also fits on
    its other links; a transfer that does not fit waits at the blocking link. Transfer t of piece p
    is 2·N·p + N·stage + server: the transfer from a server to its parent, or from the parent to it.

    Args:
        parts: the trees.
        wires: the network's wires.
        part: [P] part of each piece.
        size: [P] bytes of each piece.
        rank: [2, P] added to the keys of a piece's transfers, for each stage.
        stages: [2] whether there is a reduce-scatter, and an all-gather.
        until: seconds at which to give up.

    Returns:
        [P·2·N] start of each transfer, infinite for transfers that do not exist; and the seconds,
        infinite if it gave up.
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
    """Simulates all transfers; returns the last arrival, or infinity if it gave up."""
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
    """The state before the first transfer."""
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
    """Merges two heaps; among equals, the smaller transfer number comes first."""
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
    """Puts a transfer in the queue of a link."""
    state.child[t] = state.next[t] = -1
    top = state.top[link]
    state.top[link] = t if top < 0 else _merged(parts, part, rank, state, top, t)


@kernel(inner=True, allocates=False)
def _take(parts: Parts, state: _State, part: Integers, rank: Integers, link: int) -> None:
    """Removes the first of a link's transfers; its child heaps are merged pairwise."""
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
    """Puts a transfer in the queue of its first link, and the link on the worklist."""
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
    """Makes ready the transfers for which this was the last dependency."""
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
    """Frees a transfer's bandwidth."""
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
    """Starts transfers that wait for a link while they fit; returns their last arrival."""
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
    """A link of a hop that lacks bandwidth for it, `link` before others; or −1."""
    blocking = -1
    for i in range(wires.first[hop], wires.first[hop + 1]):
        used = wires.links[i]
        if wires.rate[hop] > state.left[used] * (1 + ROUNDING):
            if used == link:
                return link
            blocking = used
    return blocking
