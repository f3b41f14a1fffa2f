"""Grown trees on a continuous clock: the compiled loop.

Nothing happens between two events: a link becomes free, or a piece arrives. Only hops that an event
concerns are tried: those over the link, and those that leave the server. Among them, receivers with
the least slack choose first, each taking the ready piece that is rarest among its neighbours, as in
rounds (`growing_kernel`). A piece that would arrive after the target makespan is left to a faster
link, until nothing else is left to do.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradweave.common.compiled import kernel
from gradweave.schedulers.kernels.events import Events, no_events, pop_event, push_event
from gradweave.schedulers.kernels.rarest_piece import (
    Holdings,
    Rarity,
    held_by_roots,
    promise,
    rarest_piece,
)
from gradweave.schedulers.kernels.worklist import Worklist, empty_worklist, list_member
from gradweave.schedulers.problem import HopsOver, HopTable, Integers
from gradweave.topology.units import ROUNDING

LATER = 1.01
"""Factor on the soonest arrival within which pieces may arrive, if none can meet the target. Chosen
by hand."""
SALTS = 1 << 30
"""Number of random salts, which make ties at different moments break differently."""


class Clocked(NamedTuple):
    """The hops, with their links and speeds."""

    hops: HopTable
    over: HopsOver
    root: Integers
    """[P] server at which each piece starts."""
    bandwidth: NDArray[np.float64]
    """[L] pieces per second."""
    rate: NDArray[np.float64]
    """[H] bandwidth of each hop's slowest link, which a transfer takes on all of its links."""
    latency: NDArray[np.float64]
    """[H] total latency of each hop's links in seconds."""
    hold: NDArray[np.float64]
    """[H] seconds for which a transfer holds its links: its overhead, and its bytes at `rate`."""
    intake: NDArray[np.float64]
    """[N] pieces per second that each server can take."""


class _Clock(NamedTuple):
    """The state of the simulation."""

    holdings: Holdings
    free: NDArray[np.float64]
    """[L] free bandwidth."""
    sent: Integers
    """[T, 2] piece and hop of each transfer, in order of start."""
    start: NDArray[np.float64]
    """[T] start of each transfer in seconds."""
    events: Events
    """2t when transfer t frees its links, 2t + 1 when it arrives."""
    waiting: Worklist
    """Hops to try."""
    urgency: NDArray[np.float64]
    """[H] scratch: urgency of the waiting hops that fit."""
    order: Integers
    """[H] scratch: their positions, most urgent first."""


@kernel
def grow_in_time(
    clocked: Clocked, rarity: Rarity, target_s: float, most: float, seed: int
) -> tuple[Integers, NDArray[np.float64], float]:
    """An all-gather: piece and hop of each transfer, its start, and the total time.

    Args:
        clocked: the problem.
        rarity: weights for choosing pieces.
        target_s: target makespan, the seconds by which pieces should arrive.
        most: seconds after which to give up; the arrays are then empty.
        seed: the seed of every random choice.
    """
    np.random.seed(seed)
    state = _start(clocked)
    last = _send_all(clocked, state, rarity, target_s, most)
    if last == np.inf:
        return np.empty((0, 2), np.int64), np.empty(0), last
    return state.sent, state.start, last


@kernel(inner=True, allocates=False)
def _send_all(clocked: Clocked, state: Any, rarity: Rarity, target_s: float, most: float) -> float:
    """Starts all transfers; returns the total time, infinite if it gave up."""
    left, count, now, last = state.holdings.missing.sum(), 0, 0.0, 0.0
    events, waiting = state.events, state.waiting
    _list_all(waiting)
    while left:
        began = count
        count, last, soonest = _send(clocked, state, rarity, count, now, target_s, last)
        left -= count - began
        if last > most * (1 + ROUNDING) or _cannot_finish(clocked, state, now, most):
            return np.inf
        if events.length[0]:
            now = events.when[0]
            waiting.length[0] = 0
            while events.length[0] and events.when[0] <= now * (1 + ROUNDING):
                _process_event(clocked, state, pop_event(events, False))
        elif soonest < np.inf:  # all remaining arrivals are too late: allow the soonest
            target_s = soonest * LATER
            _list_all(waiting)
        # Nothing is on its way, and only some hops were tried: now all are.
        elif waiting.length[0] < len(waiting.members):
            _list_all(waiting)
        else:
            return np.inf
    return last


@kernel(inner=True)
def _start(clocked: Clocked) -> Any:
    holdings = held_by_roots(clocked.hops, clocked.root, np.zeros((0, 0), np.int16))
    transfers, hops = holdings.missing.sum(), len(clocked.hops.source)
    return _Clock(
        holdings,
        clocked.bandwidth.copy(),
        np.empty((transfers, 2), np.int64),
        np.empty(transfers),
        no_events(2 * transfers),
        empty_worklist(hops),
        np.empty(hops),
        np.empty(hops, np.int64),
    )


@kernel(inner=True, allocates=False)
def _list_all(waiting: Worklist) -> None:
    for hop in range(len(waiting.members)):
        waiting.members[hop] = hop
        waiting.listed[hop] = True
    waiting.length[0] = len(waiting.members)


@kernel(inner=True, allocates=False)
def _cannot_finish(clocked: Clocked, state: Any, now: float, most: float) -> bool:
    """Whether some server wants more than it can take in the remaining time."""
    missing = state.holdings.missing
    for server in range(len(clocked.intake)):
        # Pieces on the way still use intake, so this overestimates what a server can take.
        if missing[server] > (most - now) * clocked.intake[server] * (1 + ROUNDING):
            return True
    return False


@kernel(inner=True, allocates=False)
def _send(
    clocked: Clocked,
    state: Any,
    rarity: Rarity,
    count: int,
    now: float,
    target_s: float,
    last: Any,
) -> tuple[int, Any, Any]:
    """Starts all transfers that can start now, least slack first, at random among equals.

    Returns:
        Number of transfers so far, the last arrival, and the soonest arrival beyond the target.
    """
    urgent = _by_urgency(clocked, state)
    soonest, hops = np.inf, clocked.hops
    salt = np.random.randint(SALTS)
    for i in state.order[:urgent]:
        hop = state.waiting.members[i]
        free = now + clocked.hold[hop]
        arrives = free + clocked.latency[hop]
        # `soonest` is beyond the target, so that a later arrival is of no use.
        if arrives >= soonest or not _room(clocked, state, hop):
            continue
        source, target = hops.source[hop], hops.target[hop]
        piece = rarest_piece(rarity, state.holdings, source, target, hop, salt)
        if piece >= 0 and arrives > target_s * (1 + ROUNDING):
            soonest = arrives
        elif piece >= 0:
            _begin(clocked, state, hop, piece, count, now)
            push_event(state.events, free, 2 * count, False)
            push_event(state.events, arrives, 2 * count + 1, False)
            last = max(last, arrives)
            count += 1
    return count, last, soonest


@kernel(inner=True, allocates=False)
def _by_urgency(clocked: Clocked, state: Any) -> int:
    """Sorts the waiting hops that fit by their receivers' slack, and moves them to the list's head.

    Returns:
        Number of such hops.
    """
    waiting, missing = state.waiting, state.holdings.missing
    urgency, kept = state.urgency, 0
    for i in range(waiting.length[0]):
        hop = waiting.members[i]
        waiting.listed[hop] = False
        server = clocked.hops.target[hop]
        if missing[server] == 0 or not _room(clocked, state, hop):
            continue
        waiting.members[kept] = hop
        slack = -missing[server] / clocked.intake[server]
        # The random factor only breaks ties.
        urgency[kept] = slack * (1 + 1e-6 * np.random.random())
        kept += 1
    _sort(urgency[:kept], state.order[:kept])
    return kept


@kernel(inner=True)
def _sort(urgency: NDArray[np.float64], order: Integers) -> None:
    """Writes the positions of numbers in ascending order; ties keep their order."""
    order[:] = np.argsort(urgency, kind="mergesort")


@kernel(inner=True, allocates=False)
def _room(clocked: Clocked, state: Any, hop: int) -> bool:
    hops = clocked.hops
    for i in range(hops.first_link[hop], hops.first_link[hop + 1]):
        if state.free[hops.links[i]] < clocked.rate[hop] * (1 - ROUNDING):
            return False
    return True


@kernel(inner=True, allocates=False)
def _begin(clocked: Clocked, state: Any, hop: int, piece: int, number: int, now: float) -> None:
    """Takes bandwidth for a transfer, and promises the piece to its receiver."""
    hops, holdings = clocked.hops, state.holdings
    for i in range(hops.first_link[hop], hops.first_link[hop + 1]):
        state.free[hops.links[i]] -= clocked.rate[hop]
    server = hops.target[hop]
    state.start[number] = now
    state.sent[number, 0], state.sent[number, 1] = piece, hop
    holdings.wanted[server, piece] = False
    holdings.missing[server] -= 1
    holdings.held_by[piece] += 1
    promise(hops, holdings.near, server, piece, 1)


@kernel(inner=True, allocates=False)
def _process_event(clocked: Clocked, state: Any, event: int) -> None:
    """Frees a transfer's links, or lets its piece arrive; lists the hops concerned."""
    number, arrival = event // 2, event % 2
    piece, hop = state.sent[number, 0], state.sent[number, 1]
    hops, over = clocked.hops, clocked.over
    if arrival:
        server = hops.target[hop]
        state.holdings.holds[server, piece] = True
        for i in range(hops.first_leaving[server], hops.first_leaving[server + 1]):
            list_member(state.waiting, hops.leaving[i])
        return
    for i in range(hops.first_link[hop], hops.first_link[hop + 1]):
        link = hops.links[i]
        # Sums of floats drift: a link never gets more than its bandwidth.
        state.free[link] = min(state.free[link] + clocked.rate[hop], clocked.bandwidth[link])
        for j in range(over.first[link], over.first[link + 1]):
            list_member(state.waiting, over.hop[j])
