"""Transfers along given paths in event time: each link takes the first of its queue.

A link keeps its queue as a heap by rank. A transfer waits at one link at a time: the first of its
route, or the link that last blocked it. It starts when it is first at a link and its rate is free
on all links of its route, and no other transfer overtakes it at that link. If all transfers over a
link are equally fast, this is as good as considering all that wait, and takes only logarithmic time
in their number.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradweave.compiled import kernel
from gradweave.schedulers.kernels.events import Events, no_events, pop_event, push_event
from gradweave.schedulers.kernels.wires import Wires
from gradweave.schedulers.kernels.worklist import Worklist, empty_worklist, list_member
from gradweave.topology.topology import Floats, Integers
from gradweave.topology.units import ROUNDING


class Paths(NamedTuple):
    """X transfers, part after part; each waits for the previous transfer of its part."""

    last: NDArray[np.bool_]
    """[X] whether a transfer is the last of its part."""
    route: NDArray[np.int64]
    """[X] its route, as an index into the wires."""
    hold: NDArray[np.float64]
    """[X] seconds for which it holds its links."""
    ready: NDArray[np.float64]
    """[P] seconds at which the first of each part may start."""


class _State(NamedTuple):
    """The queue of each link, and the transfers under way."""

    left: NDArray[np.float64]
    """[L] free bandwidth."""
    queue: NDArray[np.int32]
    """Ranks of waiting transfers, link after link, each a heap."""
    first: NDArray[np.int64]
    """[L+1] start of each link's heap, which has space for all transfers over the link."""
    length: NDArray[np.int64]
    """[L] number of waiting transfers."""
    worklist: Worklist
    """Links that got free bandwidth, or a new transfer in their queue."""
    urgent: Events
    """These links, by the rank of the first in their queue."""
    events: Events
    """2x when transfer x frees its links, 2x + 1 when the next transfer becomes ready."""
    started: NDArray[np.int64]
    """[1] number of transfers started."""


@kernel
def play_paths(
    paths: Paths, rank: Integers, wires: Wires
) -> tuple[NDArray[np.float64], NDArray[np.int32], float]:
    """Start of each transfer [X]; transfers [X] in order of start; and the last arrival.

    Args:
        paths: the transfers.
        rank: [X] rank of each transfer; among those waiting for a link, the lowest goes first.
        wires: routes, and the network's links.
    """
    count, links, longest = len(paths.route), len(wires.bandwidth), 0
    by_rank = np.empty(count, np.int32)
    first = np.zeros(links + 1, np.int64)
    for x in range(count):
        by_rank[rank[x]] = x
        begin, end = wires.first[paths.route[x]], wires.first[paths.route[x] + 1]
        longest = max(longest, end - begin)
        for i in range(begin, end):
            first[wires.links[i] + 1] += 1
    for link in range(links):
        first[link + 1] += first[link]
    state = _State(
        wires.bandwidth.copy(),
        np.empty(first[links], np.int32),
        first,
        np.zeros(links, np.int64),
        empty_worklist(links),
        no_events(2 * links),
        no_events(count + 1),  # each transfer has one event at a time
        np.zeros(1, np.int64),
    )
    start, begun = np.empty(count), np.empty(count, np.int32)
    return start, begun, _play(paths, rank, by_rank, wires, state, longest > 1, start, begun)


@kernel(inner=True, allocates=False)
def _play(
    paths: Paths,
    rank: Integers,
    by_rank: Integers,
    wires: Wires,
    state: Any,
    circuits: bool,
    start: Floats,
    begun: Integers,
) -> float:
    events, latest, part = state.events, 0.0, 0
    for x in range(len(rank)):
        if not x or paths.last[x - 1]:
            push_event(events, paths.ready[part], 2 * x - 1, False)
            part += 1
    while events.length[0]:
        now = events.when[0]
        while events.length[0] and events.when[0] <= now * (1 + ROUNDING):
            what = pop_event(events, False)
            x = what >> 1
            if what & 1:
                _wait(paths, rank, wires, state, x + 1)
                continue
            _free(paths, wires, state, x)
            arrival = float(start[x] + paths.hold[x] + wires.latency[paths.route[x]])
            if paths.last[x]:
                latest = max(latest, arrival)
            else:
                push_event(events, arrival, 2 * x + 1, False)
        if circuits:
            _start_circuits(paths, by_rank, wires, state, now, start, begun)
        else:
            _start_on_links(paths, by_rank, wires, state, now, start, begun)
    return latest


@kernel(inlined=True)
def _wait(paths: Paths, rank: Integers, wires: Wires, state: Any, x: int) -> None:
    """Puts a transfer in the queue of its first link."""
    link = wires.links[wires.first[paths.route[x]]]
    _push(state, link, rank[x])
    list_member(state.worklist, link)


@kernel(inlined=True)
def _free(paths: Paths, wires: Wires, state: Any, x: int) -> None:
    """Frees a transfer's bandwidth."""
    route = paths.route[x]
    for i in range(wires.first[route], wires.first[route + 1]):
        state.left[wires.links[i]] += wires.rate[route]
        list_member(state.worklist, wires.links[i])


@kernel(inlined=True)
def _start(
    paths: Paths, wires: Wires, state: Any, x: int, now: float, start: Floats, begun: Integers
) -> None:
    route = paths.route[x]
    for i in range(wires.first[route], wires.first[route + 1]):
        state.left[wires.links[i]] -= wires.rate[route]
    start[x], begun[state.started[0]] = now, x
    state.started[0] += 1
    push_event(state.events, now + paths.hold[x], 2 * x, False)


@kernel(inlined=True)
def _fits(wires: Wires, state: Any, route: int, link: int) -> bool:
    return wires.rate[route] <= state.left[link] * (1 + ROUNDING)


@kernel(inlined=True)
def _start_on_links(
    paths: Paths,
    by_rank: Integers,
    wires: Wires,
    state: Any,
    now: float,
    start: Floats,
    begun: Integers,
) -> None:
    """Starts all transfers that can; with one-link routes, the order of links does not matter."""
    worklist = state.worklist
    for k in range(worklist.length[0]):
        link = worklist.members[k]
        worklist.listed[link] = False
        while state.length[link]:
            x = by_rank[state.queue[state.first[link]]]
            if not _fits(wires, state, paths.route[x], link):
                break
            _pop(state, link)
            _start(paths, wires, state, x, now, start, begun)
    worklist.length[0] = 0


@kernel(inlined=True)
def _start_circuits(
    paths: Paths,
    by_rank: Integers,
    wires: Wires,
    state: Any,
    now: float,
    start: Floats,
    begun: Integers,
) -> None:
    """Starts all transfers that can, the lowest rank of all listed links first."""
    worklist, urgent = state.worklist, state.urgent
    urgent.length[0] = 0
    for k in range(worklist.length[0]):
        link = worklist.members[k]
        worklist.listed[link] = False
        if state.length[link]:
            push_event(urgent, state.queue[state.first[link]], link, True)
    worklist.length[0] = 0
    while urgent.length[0]:
        link = pop_event(urgent, True)
        x = by_rank[state.queue[state.first[link]]]
        route = paths.route[x]
        if not _fits(wires, state, route, link):
            continue
        blocking = -1
        for i in range(wires.first[route], wires.first[route + 1]):
            if not _fits(wires, state, route, wires.links[i]):
                blocking = wires.links[i]
        if blocking >= 0:
            _push(state, blocking, _pop(state, link))
        else:
            _pop(state, link)
            _start(paths, wires, state, x, now, start, begun)
        if state.length[link]:
            push_event(urgent, state.queue[state.first[link]], link, True)


@kernel(inlined=True)
def _push(state: Any, link: int, rank: int) -> None:
    """Adds a rank to a link's heap."""
    begin, at = state.first[link], state.length[link]
    state.length[link] += 1
    while at > 0:
        above = (at - 1) // 2
        if state.queue[begin + above] < rank:
            break
        state.queue[begin + at] = state.queue[begin + above]
        at = above
    state.queue[begin + at] = rank


@kernel(inlined=True)
def _pop(state: Any, link: int) -> int:
    """Removes the lowest rank from a link's heap."""
    begin = state.first[link]
    lowest = state.queue[begin]
    state.length[link] -= 1
    count = state.length[link]
    rank, at = state.queue[begin + count], 0
    while True:
        child = 2 * at + 1
        if child >= count:
            break
        if child + 1 < count and state.queue[begin + child + 1] < state.queue[begin + child]:
            child += 1
        if rank <= state.queue[begin + child]:
            break
        state.queue[begin + at] = state.queue[begin + child]
        at = child
    state.queue[begin + at] = rank
    return lowest


@kernel
def most_after(last: NDArray[np.bool_], value: Floats) -> NDArray[np.float64]:
    """[X] the largest later value in the same part; 0 for the last.

    Args:
        last: [X] whether each is the last of its part.
        value: [X] values, at least 0.
    """
    most = np.empty(len(value))
    for x in range(len(value) - 1, -1, -1):
        most[x] = 0.0 if last[x] else max(most[x + 1], value[x + 1])
    return most
