"""Grown trees on a continuous clock: the loop, compiled.

Nothing happens between two events: a link gets free, or a piece arrives. Only hops that an event
concerns are looked at: those over the link, and those that leave the server. Among them receivers
with the least slack choose first, each the ready piece that is rarest among its neighbours, as in
rounds (`growing_kernel`). A piece that would arrive after the time hoped for is left to a faster
link, until nothing else is left to do.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradweave.compiled import kernel

ROUNDING = 1e-9
"""Relative error of sums of rates and times."""
LATER = 1.01
"""How much later than the soonest arrival pieces may arrive where none can arrive in time."""


class Clocked(NamedTuple):
    """Who can send to whom, over what, and how fast. Servers are ranks."""

    root: NDArray[np.int64]
    """[P] server at which each piece starts."""
    source: NDArray[np.int64]
    """[H] server that a hop leaves."""
    target: NDArray[np.int64]
    """[H] server that it enters."""
    links: NDArray[np.int64]
    """Link directions of the hops, one hop after the other."""
    first: NDArray[np.int64]
    """[H+1] where each hop's links start."""
    over: NDArray[np.int64]
    """Hops by the link direction that they use."""
    first_over: NDArray[np.int64]
    """[L+1] where each link direction's hops start."""
    leaving: NDArray[np.int64]
    """Hops by the server that they leave."""
    first_leaving: NDArray[np.int64]
    """[N+1] where each server's start."""
    bandwidth: NDArray[np.float64]
    """[L] pieces per second."""
    rate: NDArray[np.float64]
    """[H] bandwidth of each hop's slowest link, which a transfer over it takes of them all."""
    latency: NDArray[np.float64]
    """[H] seconds, of each hop's links together."""
    hold: NDArray[np.float64]
    """[H] seconds for which a transfer takes its links: its overhead, and its bytes at `rate`."""
    intake: NDArray[np.float64]
    """[N] pieces per second that a server can take."""


class Choice(NamedTuple):
    """How pieces are chosen."""

    near: int
    """Weight of the number of hops by which the receiver could get the piece."""
    everywhere: int
    """Weight of the number of servers that hold it or are about to."""
    noise: int
    """Random part: up to this, less one."""


class _Clock(NamedTuple):
    """What is under way. Events are a binary heap by time."""

    holds: NDArray[np.bool_]
    """[N, P] arrived."""
    wanted: NDArray[np.bool_]
    """[N, P] neither arrived nor on the way."""
    near: NDArray[np.int64]
    """[N, P] hops into the server from one that holds the piece or is about to."""
    held_by: NDArray[np.int64]
    """[P] servers that hold it or are about to."""
    missing: NDArray[np.int64]
    """[N] pieces that a server wants."""
    free: NDArray[np.float64]
    """[L] bandwidth not taken."""
    sent: NDArray[np.int64]
    """[T, 2] piece and hop of each transfer, in the order in which they start."""
    start: NDArray[np.float64]
    """[T] seconds."""
    when: NDArray[np.float64]
    """[2T] times of events, as a heap."""
    what: NDArray[np.int64]
    """[2T] transfer of each event, times two, plus one where it is its arrival."""
    queue: NDArray[np.int64]
    """[H] hops to look at."""
    queued: NDArray[np.bool_]
    """[H] whether a hop is among them."""


@kernel
def grow_in_time(
    clocked: Clocked, choice: Choice, hoped: float, most: float, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.float64], float]:
    """An all-gather: piece and hop of each transfer, its start, and the time that all take.

    Args:
        clocked: the problem.
        choice: how to choose.
        hoped: seconds by which pieces should arrive.
        most: seconds after which to give up; the arrays are then empty.
        seed: of every random choice.
    """
    np.random.seed(seed)
    state = _start(clocked)
    left, count, events, now, last = state.missing.sum(), 0, 0, 0.0, 0.0
    waiting = _queue_all(state)
    nothing = (np.empty((0, 2), np.int64), np.empty(0), np.inf)
    while left:
        began = count
        count, events, last, late = _send(
            clocked, state, choice, waiting, count, events, now, hoped, last
        )
        left -= count - began
        if last > most * (1 + ROUNDING) or _hopeless(clocked, state, now, most):
            return nothing
        if events:
            now = state.when[0]
            waiting = 0
            while events and state.when[0] <= now * (1 + ROUNDING):
                event = state.what[0]
                events = pop_event(state, events)
                waiting = _happen(clocked, state, event, waiting)
        elif late < np.inf:  # all that is left would arrive too late: the soonest of it may
            hoped = late * LATER
            waiting = _queue_all(state)
        elif waiting < len(state.queue):
            waiting = _queue_all(state)
        else:
            return nothing
    return state.sent[:count], state.start[:count], last


@kernel(inner=True)
def _start(clocked: Clocked) -> Any:
    servers, pieces, hops = len(clocked.intake), len(clocked.root), len(clocked.source)
    holds, wanted = np.zeros((servers, pieces), np.bool_), np.ones((servers, pieces), np.bool_)
    near = np.zeros((servers, pieces), np.int64)
    missing = np.full(servers, pieces, np.int64)
    for piece in range(pieces):
        root = clocked.root[piece]
        holds[root, piece], wanted[root, piece] = True, False
        missing[root] -= 1
        for i in range(clocked.first_leaving[root], clocked.first_leaving[root + 1]):
            near[clocked.target[clocked.leaving[i]], piece] += 1
    transfers = missing.sum()
    return _Clock(
        holds,
        wanted,
        near,
        np.ones(pieces, np.int64),
        missing,
        clocked.bandwidth.copy(),
        np.empty((transfers, 2), np.int64),
        np.empty(transfers),
        np.empty(2 * transfers),
        np.empty(2 * transfers, np.int64),
        np.empty(hops, np.int64),
        np.zeros(hops, np.bool_),
    )


@kernel(inner=True)
def _queue_all(state: Any) -> int:
    for hop in range(len(state.queue)):
        state.queue[hop] = hop
        state.queued[hop] = True
    return len(state.queue)


@kernel(inner=True)
def _hopeless(clocked: Clocked, state: Any, now: float, most: float) -> bool:
    """Whether some server wants more than it can take in the time left."""
    for server in range(len(clocked.intake)):
        # What is on the way still takes intake, so this is no more than a server can take.
        if state.missing[server] > (most - now) * clocked.intake[server] * (1 + ROUNDING):
            return True
    return False


@kernel(inner=True)
def _send(
    clocked: Clocked,
    state: Any,
    choice: Choice,
    waiting: int,
    count: int,
    events: int,
    now: float,
    hoped: float,
    last: Any,
) -> tuple[int, int, Any, Any]:
    """Starts what can start now, least slack first, at random among equals.

    Returns:
        Transfers so far, events, the last arrival, and the soonest arrival beyond what is hoped.
    """
    urgency = np.empty(waiting)
    kept, late = 0, np.inf
    for i in range(waiting):
        hop = state.queue[i]
        state.queued[hop] = False
        server = clocked.target[hop]
        if state.missing[server] == 0 or not _room(clocked, state, hop):
            continue
        state.queue[kept] = hop
        slack = -state.missing[server] / clocked.intake[server]
        urgency[kept] = slack * (1 + 1e-6 * np.random.random())
        kept += 1
    salt = np.random.randint(1 << 30)
    for i in np.argsort(urgency[:kept], kind="mergesort"):
        hop = state.queue[i]
        free = now + clocked.hold[hop]
        arrives = free + clocked.latency[hop]
        if arrives >= late or not _room(clocked, state, hop):
            continue
        piece = _choose(clocked, state, choice, hop, salt)
        if piece >= 0 and arrives > hoped * (1 + ROUNDING):
            late = arrives
        elif piece >= 0:
            _begin(clocked, state, hop, piece, count, now)
            events = push_event(state, events, free, 2 * count)
            events = push_event(state, events, arrives, 2 * count + 1)
            last = max(last, arrives)
            count += 1
    return count, events, last, late


@kernel(inner=True)
def _room(clocked: Clocked, state: Any, hop: int) -> bool:
    for i in range(clocked.first[hop], clocked.first[hop + 1]):
        if state.free[clocked.links[i]] < clocked.rate[hop] * (1 - ROUNDING):
            return False
    return True


@kernel(inner=True)
def _choose(clocked: Clocked, state: Any, choice: Choice, hop: int, salt: int) -> int:
    """The rarest piece to send over a hop, ties by a hash; −1 where there is none."""
    best, lowest = -1, np.int64(1) << 62
    mix = salt + hop * 40503
    held, wanted = state.holds[clocked.source[hop]], state.wanted[clocked.target[hop]]
    near = state.near[clocked.target[hop]]
    for piece in range(len(clocked.root)):
        if held[piece] and wanted[piece]:
            mixed = ((piece + 1) * 2654435761 + mix * 2246822519) & 0xFFFFFFFF
            key = (
                choice.near * near[piece]
                + choice.everywhere * state.held_by[piece]
                + (((mixed ^ (mixed >> 15)) * 2654435761 & 0xFFFFFFFF) >> 12) % choice.noise
            )
            if key < lowest:
                best, lowest = piece, key
    return best


@kernel(inner=True)
def _begin(clocked: Clocked, state: Any, hop: int, piece: int, number: int, now: float) -> None:
    """Takes bandwidth for a transfer, and promises the piece to its receiver."""
    for i in range(clocked.first[hop], clocked.first[hop + 1]):
        state.free[clocked.links[i]] -= clocked.rate[hop]
    server = clocked.target[hop]
    state.start[number] = now
    state.sent[number, 0], state.sent[number, 1] = piece, hop
    state.wanted[server, piece] = False
    state.missing[server] -= 1
    state.held_by[piece] += 1
    for i in range(clocked.first_leaving[server], clocked.first_leaving[server + 1]):
        state.near[clocked.target[clocked.leaving[i]], piece] += 1


@kernel(inner=True)
def _happen(clocked: Clocked, state: Any, event: int, waiting: int) -> int:
    """A transfer's links get free, or its piece arrives; queues the hops concerned."""
    number, arrival = event // 2, event % 2
    piece, hop = state.sent[number, 0], state.sent[number, 1]
    if arrival:
        server = clocked.target[hop]
        state.holds[server, piece] = True
        for i in range(clocked.first_leaving[server], clocked.first_leaving[server + 1]):
            waiting = _queue(state, clocked.leaving[i], waiting)
        return waiting
    for i in range(clocked.first[hop], clocked.first[hop + 1]):
        link = clocked.links[i]
        state.free[link] = min(state.free[link] + clocked.rate[hop], clocked.bandwidth[link])
        for j in range(clocked.first_over[link], clocked.first_over[link + 1]):
            waiting = _queue(state, clocked.over[j], waiting)
    return waiting


@kernel(inner=True)
def _queue(state: Any, hop: int, waiting: int) -> int:
    if not state.queued[hop]:
        state.queued[hop] = True
        state.queue[waiting] = hop
        waiting += 1
    return waiting


@kernel(inner=True)
def push_event(state: Any, events: int, when: float, what: int) -> int:
    """Adds an event to the heap."""
    at = events
    while at > 0 and state.when[(at - 1) // 2] > when:
        state.when[at], state.what[at] = state.when[(at - 1) // 2], state.what[(at - 1) // 2]
        at = (at - 1) // 2
    state.when[at], state.what[at] = when, what
    return events + 1


@kernel(inner=True)
def pop_event(state: Any, events: int) -> int:
    """Takes the earliest event off the heap."""
    events -= 1
    when, what, at = state.when[events], state.what[events], 0
    while True:
        child = 2 * at + 1
        if child >= events:
            break
        if child + 1 < events and state.when[child + 1] < state.when[child]:
            child += 1
        if state.when[child] >= when:
            break
        state.when[at], state.what[at] = state.when[child], state.what[child]
        at = child
    state.when[at], state.what[at] = when, what
    return events


@kernel
def rounds_of(
    links: NDArray[np.int64],
    first: NDArray[np.int64],
    hop: NDArray[np.int64],
    cell_from: NDArray[np.int64],
    cell_to: NDArray[np.int64],
    cells: int,
    count: int,
) -> NDArray[np.int64]:
    """[T] the earliest round of each transfer in which all before it on its links stay before it.

    One transfer a link and round, so that the event model gives each the whole rate of its route;
    and it serves a link's transfers in the order of the schedule. So it keeps the times.

    Args:
        links: link directions of the hops.
        first: [H+1] where each hop's links start.
        hop: [T] hop of each transfer, in the order in which they start.
        cell_from: [T] server and piece that it reads, as one number.
        cell_to: [T] those that it writes.
        cells: servers times pieces.
        count: L.
    """
    ready, free = np.zeros(cells, np.int64), np.zeros(count, np.int64)
    rounds = np.empty(len(hop), np.int64)
    for t in range(len(hop)):
        at = ready[cell_from[t]]
        for i in range(first[hop[t]], first[hop[t] + 1]):
            at = max(at, free[links[i]])
        for i in range(first[hop[t]], first[hop[t] + 1]):
            free[links[i]] = at + 1
        rounds[t] = at
        ready[cell_to[t]] = max(ready[cell_to[t]], at + 1)  # sums come from several
    return rounds
