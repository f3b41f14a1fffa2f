"""Flows along paths, moved from expensive paths to cheap paths until links are evenly loaded.

The objective, the largest load over capacity, is replaced by a smooth function: the sum over links
of a multiplier times exp(sharpness · load). Its derivative is a link's price. For each source the
cheapest paths are found, and each of its messages moves flow from its more expensive paths to the
cheapest by a Newton step. Prices are updated immediately (gradient projection, from traffic
assignment). Links that the network's automorphisms exchange share a load and a price.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradweave.common.compiled import kernel
from gradweave.schedulers.kernels.events import Events, no_events, pop_event, push_event
from gradweave.topology.topology import Floats

MAX_EXPONENT = 50.0
"""Largest exponent of a price, relative to the most loaded link at the start of a pass; reached
only if a step overshoots."""
LEAST_MOVED = 1e-7
"""Share of a message below which a path's remaining flow moves entirely."""
CHEAPER = 1e-9
"""Relative saving required of a new path over the best known path."""


class OrbitGraph(NamedTuple):
    """A network with its links grouped in orbits."""

    first_link: NDArray[np.int64]
    """[V+1] index of the first link that leaves each node."""
    tail: NDArray[np.int64]
    """[L] node that each link leaves."""
    head: NDArray[np.int64]
    """[L] node that each link enters."""
    orbit: NDArray[np.int64]
    """[L] orbit of each link."""
    unit: NDArray[np.float64]
    """[O] load that a unit of flow over one link of an orbit adds to all of its links."""


class Sources(NamedTuple):
    """Messages by source; one source represents its whole orbit."""

    root: NDArray[np.int64]
    """[S] source nodes."""
    weight: NDArray[np.float64]
    """[S] number of servers that each represents."""
    first: NDArray[np.int64]
    """[S+1] index of the first message of each source."""
    target: NDArray[np.int64]
    """[K] target nodes."""
    amount: NDArray[np.float64]
    """[K] amounts, above 0."""


class FlowPaths(NamedTuple):
    """Flows along paths, in order of message; arrays have spare space."""

    links: NDArray[np.int32]
    """Links of all paths, concatenated, each from its target back to its source."""
    first: NDArray[np.int64]
    """[P+1] index of the first link of each path."""
    message: NDArray[np.int32]
    """[P] message of each path."""
    flow: NDArray[np.float64]
    """[P] amount of the message that takes the path."""
    length: NDArray[np.int64]
    """[1] number of paths."""


class OrbitPrices(NamedTuple):
    """Loads and prices of link orbits."""

    load: NDArray[np.float64]
    """[O] flow over capacity."""
    multiplier: NDArray[np.float64]
    """[O] multipliers, above 0."""
    price: NDArray[np.float64]
    """[O] multiplier · exp(sharpness · (load − reference))."""
    setting: NDArray[np.float64]
    """[2] sharpness and reference."""


class Work(NamedTuple):
    """Scratch arrays."""

    length: NDArray[np.float64]
    """[L] price of a unit of flow over each link."""
    distance: NDArray[np.float64]
    """[V] price of the cheapest path from a source."""
    last: NDArray[np.int64]
    """[V] last link of that path; −1 at the source."""
    events: Events
    net: NDArray[np.int64]
    """[O] how many more times one path passes an orbit than another; 0 between uses."""
    seen: NDArray[np.bool_]
    """[O] whether an orbit is in `listed`; False between uses."""
    listed: NDArray[np.int64]
    """Orbits that either of two paths passes."""


def no_work(graph: OrbitGraph) -> Work:
    """Scratch arrays for a graph."""
    links, nodes = len(graph.head), len(graph.first_link) - 1
    return Work(
        np.empty(links),
        np.empty(nodes),
        np.empty(nodes, np.int64),
        no_events.py_func(links + 1),  # a search relaxes each link at most once
        np.zeros(len(graph.unit), np.int64),
        np.zeros(len(graph.unit), np.bool_),
        np.empty(2 * nodes, np.int64),
    )


def no_paths(most: int, most_links: int) -> FlowPaths:
    """Empty paths, with space for `most` paths with `most_links` links in total."""
    return FlowPaths(
        np.empty(most_links, np.int32),
        np.zeros(most + 1, np.int64),
        np.empty(most, np.int32),
        np.empty(most),
        np.zeros(1, np.int64),
    )


@kernel
def improve(
    graph: OrbitGraph,
    sources: Sources,
    old: FlowPaths,
    new: FlowPaths,
    prices: OrbitPrices,
    work: Work,
) -> bool:
    """Moves the flow of each message once; returns whether all new paths had space.

    Args:
        graph: the network.
        sources: the messages.
        old: the paths so far; a message without a path starts on its cheapest.
        new: output: the paths with nonzero flow.
        prices: updated with the flow.
        work: scratch.
    """
    new.length[0] = 0
    return _improve(graph, sources, old, new, prices, work)


@kernel(inner=True, allocates=False)
def _improve(
    graph: OrbitGraph,
    sources: Sources,
    old: FlowPaths,
    new: FlowPaths,
    prices: OrbitPrices,
    work: Work,
) -> bool:
    known, longest = 0, len(graph.first_link)
    for s in range(len(sources.root)):
        _set_lengths(graph, prices.price, work)
        cheapest_paths(graph, sources.root[s], work)
        for k in range(sources.first[s], sources.first[s + 1]):
            begin = new.length[0]
            # Space for all paths that are still to be copied, and for a new one.
            rest = old.first[old.length[0]] - old.first[known]
            if new.first[begin] + rest + longest > len(new.links):
                return False
            while known < old.length[0] and old.message[known] == k:
                _copy(old, known, new, old.flow[known])
                known += 1
            best = _receiver(graph, sources, s, k, begin, new, prices, work)
            weight, amount = sources.weight[s], sources.amount[k]
            for path in range(begin, new.length[0]):
                if path != best and new.flow[path] > 0.0:
                    _shift(graph, weight, amount, path, best, new, prices, work)
            _leave_out_empty(new, begin)
    return True


@kernel(inner=True, allocates=False)
def _set_lengths(graph: OrbitGraph, price: Floats, work: Work) -> None:
    for link in range(len(graph.head)):
        orbit = graph.orbit[link]
        work.length[link] = graph.unit[orbit] * price[orbit]


@kernel(inner=True, allocates=False)
def cheapest_paths(graph: OrbitGraph, root: int, work: Work) -> None:
    """Dijkstra's algorithm from a source to all nodes."""
    distance, last, events = work.distance, work.last, work.events
    distance[:] = np.inf
    distance[root], last[root] = 0.0, -1
    events.length[0] = 0
    push_event(events, 0.0, root, True)
    while events.length[0]:
        least = events.when[0]
        node = pop_event(events, True)
        # Outdated: a shorter path to this node was found after the entry was pushed.
        if least > distance[node]:
            continue
        for link in range(graph.first_link[node], graph.first_link[node + 1]):
            to, there = graph.head[link], least + work.length[link]
            if there < distance[to]:
                distance[to], last[to] = there, link
                push_event(events, there, to, True)


@kernel(inlined=True)
def _copy(old: FlowPaths, path: int, new: FlowPaths, flow: float) -> None:
    count = new.length[0]
    at = new.first[count]
    for i in range(old.first[path], old.first[path + 1]):
        new.links[at] = old.links[i]
        at += 1
    new.message[count], new.flow[count] = old.message[path], flow
    new.first[count + 1] = at
    new.length[0] = count + 1


@kernel(inner=True, allocates=False)
def _receiver(
    graph: OrbitGraph,
    sources: Sources,
    s: int,
    k: int,
    begin: int,
    new: FlowPaths,
    prices: OrbitPrices,
    work: Work,
) -> int:
    """The message's cheapest path now; appended after those from `begin` on if it is new.

    A message that has no path yet is put on it.
    """
    best, least = -1, np.inf
    for path in range(begin, new.length[0]):
        cost = 0.0
        for i in range(new.first[path], new.first[path + 1]):
            orbit = graph.orbit[new.links[i]]
            cost += graph.unit[orbit] * prices.price[orbit]
        if cost < least:
            best, least = path, cost
    count = new.length[0]
    # The new path is charged at current prices: since it was found, other messages of this source
    # have moved.
    at, cost, node = new.first[count], 0.0, sources.target[k]
    while node != sources.root[s]:
        link = work.last[node]
        new.links[at] = link
        orbit = graph.orbit[link]
        cost += graph.unit[orbit] * prices.price[orbit]
        node = graph.tail[link]
        at += 1
    if best >= 0 and cost >= least * (1 - CHEAPER):
        return best
    new.message[count], new.flow[count], new.first[count + 1] = k, 0.0, at
    new.length[0] = count + 1
    if best < 0:
        new.flow[count] = sources.amount[k]
        for i in range(new.first[count], at):
            orbit = graph.orbit[new.links[i]]
            added = sources.amount[k] * sources.weight[s] * graph.unit[orbit]
            _load(prices, orbit, added)
    return count


@kernel(inlined=True)
def _load(prices: OrbitPrices, orbit: int, added: float) -> None:
    prices.load[orbit] += added
    exponent = prices.setting[0] * (prices.load[orbit] - prices.setting[1])
    prices.price[orbit] = prices.multiplier[orbit] * np.exp(min(exponent, MAX_EXPONENT))


@kernel(inner=True, allocates=False)
def _shift(
    graph: OrbitGraph,
    weight: float,
    amount: float,
    path: int,
    best: int,
    new: FlowPaths,
    prices: OrbitPrices,
    work: Work,
) -> None:
    """Moves flow from one path to another until both cost the same (a Newton step)."""
    listed = _differences(graph, path, best, new, work)
    saved, curvature = 0.0, 0.0
    for i in range(listed):
        orbit = work.listed[i]
        slope = work.net[orbit] * graph.unit[orbit]
        saved += slope * prices.price[orbit]
        curvature += slope * slope * prices.price[orbit]
    moved, flow = 0.0, new.flow[path]
    if saved > 0.0:
        curvature *= prices.setting[0] * weight
        moved = flow if flow * curvature <= saved else saved / curvature
        if moved > flow - LEAST_MOVED * amount:
            moved = flow
    for i in range(listed):
        orbit = work.listed[i]
        if moved > 0.0 and work.net[orbit] != 0:
            _load(prices, orbit, -moved * weight * work.net[orbit] * graph.unit[orbit])
        work.net[orbit], work.seen[orbit] = 0, False
    new.flow[path] -= moved
    new.flow[best] += moved


@kernel(inlined=True)
def _differences(graph: OrbitGraph, path: int, best: int, new: FlowPaths, work: Work) -> int:
    """Writes how much more often a path passes each orbit than another; returns their number."""
    listed = 0
    for one in (path, best):
        for i in range(new.first[one], new.first[one + 1]):
            orbit = graph.orbit[new.links[i]]
            if not work.seen[orbit]:
                work.seen[orbit] = True
                work.listed[listed] = orbit
                listed += 1
            work.net[orbit] += 1 if one == path else -1
    return listed


@kernel(inner=True, allocates=False)
def _leave_out_empty(new: FlowPaths, begin: int) -> None:
    """Drops the message's paths without flow; its paths are those from `begin` on."""
    count = new.length[0]
    new.length[0] = begin
    for path in range(begin, count):
        if new.flow[path] > 0.0:
            _copy(new, path, new, new.flow[path])


@kernel
def paid(graph: OrbitGraph, sources: Sources, prices: OrbitPrices, work: Work) -> float:
    """Minimum cost of all messages at these prices: the weighted sum of amounts times distances."""
    return _paid(graph, sources, prices, work)


@kernel(inner=True, allocates=False)
def _paid(graph: OrbitGraph, sources: Sources, prices: OrbitPrices, work: Work) -> float:
    _set_lengths(graph, prices.price, work)
    total = 0.0
    for s in range(len(sources.root)):
        cheapest_paths(graph, sources.root[s], work)
        own = 0.0
        for k in range(sources.first[s], sources.first[s + 1]):
            own += sources.amount[k] * work.distance[sources.target[k]]
        total += sources.weight[s] * own
    return total
