"""The loop of the simulator with fairly shared links, compiled.

A connection is a route; its transfers follow each other in the schedule's order. Active connections
share links max–min fairly: their rates grow together, and a rate stops growing when a link of its
route is full (progressive filling). Rates are recomputed for all connections whenever a transfer
starts or ends. So a schedule of T transfers, up to A of them active, with routes of R links takes
O(T·A·R·B), where B is the number of links that fill up one after the other.
"""

import heapq
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradweave.common.compiled import kernel
from gradweave.topology.topology import Floats
from gradweave.topology.units import ROUNDING


class Sharing(NamedTuple):
    """Transfers, their connections, and their dependencies."""

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
    """[C] total latency of each connection's links in seconds."""
    work: NDArray[np.float64]
    """[T] bytes of each transfer, plus those that its route could carry during its overhead."""
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
    """The state of the simulation."""

    waits: NDArray[np.int64]
    """[T] number of writes in earlier rounds that a transfer's data still waits for, plus one if
    its source is not ready."""
    head: NDArray[np.int64]
    """[C] index in the queue of the next or current transfer."""
    active: NDArray[np.int64]
    """[C] active connections, at the front."""
    sends: NDArray[np.bool_]
    """[C] whether a connection is active."""
    left: NDArray[np.float64]
    """[C] remaining work of the current transfer."""
    rate: NDArray[np.float64]
    """[C] bytes per second."""
    room: NDArray[np.float64]
    """[L] scratch: bandwidth that is not assigned yet."""
    users: NDArray[np.int64]
    """[L] scratch: number of connections whose rates still grow."""


@kernel
def play_fair(sharing: Sharing) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """[T] start and [T] end of each transfer; see `gradweave.simulator.fair_seconds`."""
    transfers = len(sharing.work)
    start, end = np.zeros(transfers), np.zeros(transfers)
    state = _begin(sharing)
    now, active = 0.0, 0
    arriving = [(0.0, 0)]  # a heap of (time, transfer), or transfer + T when its source gets ready
    heapq.heappop(arriving)
    for transfer in range(transfers):
        if sharing.earliest[transfer] > 0.0:
            state.waits[transfer] += 1
            heapq.heappush(arriving, (float(sharing.earliest[transfer]), transfers + transfer))
    for connection in range(len(state.head)):
        active = _start(sharing, state, connection, now, active, start)
    # Unpacked from their tuples, since each access in an allocating loop counts references.
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
        for i in range(active):  # all that end at the same time, to compute rates once
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
    """The initial state, with the number of writes that each transfer waits for."""
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
    """Starts a connection's next transfer if its data is there; returns the number active."""
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
    """Notifies the readers of arrived data; returns the number of active connections."""
    cell = sharing.writes[transfer]
    for i in range(sharing.first_reader[cell], sharing.first_reader[cell + 1]):
        reader = sharing.readers[i]
        if sharing.round[reader] > sharing.round[transfer]:
            state.waits[reader] -= 1
            active = _start(sharing, state, sharing.connection[reader], now, active, start)
    return active


@kernel(inner=True, allocates=False)
def _share(sharing: Sharing, state: Any, active: int) -> None:
    """Max–min fair rates by progressive filling: the link with the smallest share fills first."""
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
        most = least * (1 + ROUNDING)  # links with a share this close to the minimum are also full
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
