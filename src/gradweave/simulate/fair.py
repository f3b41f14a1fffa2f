"""The simulator in which routes share links fairly: its loop, compiled.

A connection is a route: its transfers follow each other in the schedule's order. Connections that
are sending share links max–min fairly: their rates grow together, and one stops growing when a link
of its route is full (progressive filling). Rates are found again whenever a transfer starts or
ends, for all connections, so that a schedule of T transfers, of which up to A are under way, with
routes of R links takes O(T·A·R·B), B the number of links that fill up one after the other.
"""

import heapq
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradweave.compiled import kernel
from gradweave.topology.topology import Floats
from gradweave.topology.units import ROUNDING


class Sharing(NamedTuple):
    """Transfers, the connections that they take, and who waits for whom."""

    connection: NDArray[np.int64]
    """[T] connection of each transfer."""
    queue: NDArray[np.int64]
    """Transfers by connection, in the schedule's order."""
    first_queued: NDArray[np.int64]
    """[C+1] where each connection's transfers start."""
    links: NDArray[np.int64]
    """Link directions of the connections, one after the other."""
    first_link: NDArray[np.int64]
    """[C+1] where each connection's links start."""
    latency: NDArray[np.float64]
    """[C] seconds of each connection's links together."""
    work: NDArray[np.float64]
    """[T] bytes of each transfer, and as many as its overhead takes where it is alone."""
    earliest: NDArray[np.float64]
    """[T] seconds at which each transfer's source is ready."""
    round: NDArray[np.int64]
    """[T] round of each transfer, ascending."""
    writes: NDArray[np.int64]
    """[T] server and piece that each transfer writes, as one number: a cell."""
    readers: NDArray[np.int64]
    """Transfers by the cell that they read, in the schedule's order."""
    first_reader: NDArray[np.int64]
    """[cells+1] where each cell's readers start."""
    bandwidth: Floats
    """[L] bytes per second."""


class _Progress(NamedTuple):
    """What is under way."""

    waits: NDArray[np.int64]
    """[T] writes of earlier rounds that have not arrived at what a transfer reads, and one more
    where its source is not ready."""
    head: NDArray[np.int64]
    """[C] place in the queue of the transfer that is next or under way."""
    active: NDArray[np.int64]
    """[C] connections that send, at the front."""
    sends: NDArray[np.bool_]
    """[C] whether a connection is among them."""
    left: NDArray[np.float64]
    """[C] work left of the transfer under way."""
    rate: NDArray[np.float64]
    """[C] bytes per second."""
    room: NDArray[np.float64]
    """[L] scratch: bandwidth that is not given to anyone yet."""
    users: NDArray[np.int64]
    """[L] scratch: connections whose rates still grow."""


@kernel
def play_fair(sharing: Sharing) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """[T] start and [T] end of each transfer; see `gradweave.simulate.fair_seconds`."""
    transfers = len(sharing.work)
    start, end = np.zeros(transfers), np.zeros(transfers)
    state = _begin(sharing)
    now, active = 0.0, 0
    arriving = [(0.0, 0)]  # when, and which transfer, or T more where its source gets ready: a heap
    heapq.heappop(arriving)
    for transfer in range(transfers):
        if sharing.earliest[transfer] > 0.0:
            state.waits[transfer] += 1
            heapq.heappush(arriving, (float(sharing.earliest[transfer]), transfers + transfer))
    for connection in range(len(state.head)):
        active = _start(sharing, state, connection, now, active, start)
    # Taken out of their tuples, since each access in a loop that allocates counts references.
    under_way, left, rate = state.active, state.left, state.rate
    sends, head, queue, latency = state.sends, state.head, sharing.queue, sharing.latency
    while active or arriving:
        if active:
            _share(sharing, state, active)
        step = np.inf
        for i in range(active):
            c = under_way[i]
            step = min(step, left[c] / rate[c])
        if arriving and arriving[0][0] - now < step:
            passed, ends, now = arriving[0][0] - now, False, arriving[0][0]
        else:
            passed, ends, now = step, True, now + step
        freed = 0
        for i in range(active):  # all that end together, so that rates are found once
            c = under_way[i]
            if ends and left[c] <= rate[c] * passed * (1 + ROUNDING):
                transfer = queue[head[c]]
                end[transfer] = now + latency[c]
                heapq.heappush(arriving, (float(end[transfer]), int(transfer)))
                sends[c] = False
                head[c] += 1
                freed += 1
            else:
                left[c] -= rate[c] * passed
        kept, ended = 0, np.empty(freed, np.int64)
        for i in range(active):
            c = under_way[i]
            if sends[c]:
                under_way[kept] = c
                kept += 1
            else:
                ended[i - kept] = c
        active = kept
        for c in ended:
            active = _start(sharing, state, c, now, active, start)
        while arriving and arriving[0][0] <= now * (1 + ROUNDING):
            event = heapq.heappop(arriving)[1]
            if event < transfers:
                active = _arrive(sharing, state, event, now, active, start)
            else:
                reader = event - transfers
                state.waits[reader] -= 1
                active = _start(sharing, state, sharing.connection[reader], now, active, start)
    return start, end


@kernel(inner=True)
def _begin(sharing: Sharing) -> Any:
    """Nothing is under way; how many writes each transfer waits for."""
    transfers, connections = len(sharing.work), len(sharing.latency)
    links = len(sharing.bandwidth)
    waits = np.zeros(transfers, np.int64)
    for writer in range(transfers):
        cell = sharing.writes[writer]
        for i in range(sharing.first_reader[cell], sharing.first_reader[cell + 1]):
            reader = sharing.readers[i]
            waits[reader] += sharing.round[reader] > sharing.round[writer]
    return _Progress(
        waits,
        sharing.first_queued[:-1].copy(),
        np.empty(connections, np.int64),
        np.zeros(connections, np.bool_),
        np.zeros(connections),
        np.zeros(connections),
        np.empty(links),
        np.zeros(links, np.int64),
    )


@kernel(inner=True, allocates=False)
def _start(
    sharing: Sharing, state: Any, connection: int, now: float, active: int, start: Any
) -> int:
    """Starts a connection's next transfer if its data is there; the connections that send."""
    place = state.head[connection]
    if state.sends[connection] or place == sharing.first_queued[connection + 1]:
        return active
    transfer = sharing.queue[place]
    if state.waits[transfer]:
        return active
    start[transfer] = now
    state.left[connection] = sharing.work[transfer]
    state.sends[connection] = True
    state.active[active] = connection
    return active + 1


@kernel(inner=True, allocates=False)
def _arrive(
    sharing: Sharing, state: Any, transfer: int, now: float, active: int, start: Any
) -> int:
    """Tells those who read what arrives; the connections that send."""
    cell = sharing.writes[transfer]
    for i in range(sharing.first_reader[cell], sharing.first_reader[cell + 1]):
        reader = sharing.readers[i]
        if sharing.round[reader] > sharing.round[transfer]:
            state.waits[reader] -= 1
            active = _start(sharing, state, sharing.connection[reader], now, active, start)
    return active


@kernel(inner=True, allocates=False)
def _share(sharing: Sharing, state: Any, active: int) -> None:
    """Max–min fair rates by progressive filling: the link with the least share fills up first."""
    for i in range(active):
        c = state.active[i]
        state.rate[c] = 0.0
        for j in range(sharing.first_link[c], sharing.first_link[c + 1]):
            link = sharing.links[j]
            state.room[link] = sharing.bandwidth[link]
            state.users[link] += 1
    growing = active
    while growing:
        least = np.inf
        for i in range(active):
            c = state.active[i]
            if state.rate[c] == 0.0:
                for j in range(sharing.first_link[c], sharing.first_link[c + 1]):
                    link = sharing.links[j]
                    least = min(least, state.room[link] / state.users[link])
        most = least * (1 + ROUNDING)  # links whose share is that near the least are full, too
        for i in range(active):
            c = state.active[i]
            if state.rate[c] > 0.0:
                continue
            for j in range(sharing.first_link[c], sharing.first_link[c + 1]):
                link = sharing.links[j]
                if state.room[link] <= most * state.users[link]:
                    state.rate[c] = least
                    growing -= 1
                    break
            if state.rate[c] > 0.0:
                for j in range(sharing.first_link[c], sharing.first_link[c + 1]):
                    link = sharing.links[j]
                    state.users[link] -= 1
                    state.room[link] = max(state.room[link] - least, 0.0)
