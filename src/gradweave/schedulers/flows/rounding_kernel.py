"""Moves parts, each on one path, until link loads are close to those of the flow."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradweave.common.compiled import kernel
from gradweave.schedulers.flows.concurrent_flow_kernel import (
    FlowPaths,
    OrbitGraph,
    Work,
    cheapest_paths,
)
from gradweave.topology.topology import Floats, Integers

SHARPNESS = 4.0
"""Sharpness of a link's price in its load: each additional part multiplies it by e^4, up to 1 for a
link with the largest load."""
PRICED = 0.05
"""Weight of prices relative to lengths, which are up to one: parts move among paths of about equal
length, as all paths of the best flow are. Prices alone send parts on detours."""
SHORTEST = 1e-6
"""Minimum length of a link, so that among equal paths the one with the fewest links is taken."""
VARIED = 0.02
"""Random share of a link's price, so that parts of equal cost differ in the order in which they
pass links, and the first rounds find a transfer for each link."""

STEEPNESS = 300.0
"""Steepness of a link's price in its load over the bound, for messages sent whole: one percent more
makes it e^3 times as high. From 100 to 3,000, loads were alike."""


class Routes(NamedTuple):
    """The path of each part, with spare space for longer paths."""

    links: NDArray[np.int32]
    """[P, longest] links from the target back to the source."""
    length: NDArray[np.int64]
    """[P] number of links."""
    source: NDArray[np.int64]
    """[P] source node."""
    target: NDArray[np.int64]
    """[P] target node."""
    size: NDArray[np.float64]
    """[P] size in units of the average part."""


@kernel
def reroute(
    graph: OrbitGraph,
    routes: Routes,
    order: Integers,
    length: Floats,
    uses: NDArray[np.float64],
    work: Work,
    seed: int,
) -> int:
    """Moves each part once to the path that adds least to busy links; returns how many moved.

    Args:
        graph: the network; a unit of load is one part over a link.
        routes: the paths; changed.
        order: order in which parts move.
        length: [L] link lengths of the flow that parts follow, up to one.
        uses: [O] load of each orbit of links, in units of the average part; changed.
        work: scratch.
        seed: the seed of random draws between equals.
    """
    np.random.seed(seed)
    moved = 0
    for part in order:
        moved += _reroute(graph, routes, part, length, uses, work)
    return moved


@kernel(inner=True, allocates=False)
def _reroute(
    graph: OrbitGraph, routes: Routes, part: int, length: Floats, uses: Floats, work: Work
) -> int:
    most = 0.0
    for orbit in range(len(uses)):
        most = max(most, uses[orbit] * graph.unit[orbit])
    for i in range(routes.length[part]):
        uses[graph.orbit[routes.links[part, i]]] -= routes.size[part]
    for link in range(len(graph.head)):
        orbit = graph.orbit[link]
        over = uses[orbit] * graph.unit[orbit] - most
        price = PRICED * np.exp(SHARPNESS * over) * (1 + VARIED * np.random.random())
        work.length[link] = length[link] + price + SHORTEST
    cheapest_paths(graph, routes.source[part], work)
    before = 0.0
    for i in range(routes.length[part]):
        before += work.length[routes.links[part, i]]
    moved = 0
    if work.distance[routes.target[part]] < before * (1 - 1e-9):
        moved = _follow(graph, routes, part, work)
    for i in range(routes.length[part]):
        uses[graph.orbit[routes.links[part, i]]] += routes.size[part]
    return moved


@kernel(inlined=True)
def _follow(graph: OrbitGraph, routes: Routes, part: int, work: Work) -> int:
    """Moves a part to its cheapest path; returns 0 if that is too long for its row."""
    count, node = 0, routes.target[part]
    while node != routes.source[part]:
        node = graph.tail[work.last[node]]
        count += 1
    if count > routes.links.shape[1]:
        return 0
    node = routes.target[part]
    for i in range(count):
        routes.links[part, i] = work.last[node]
        node = graph.tail[work.last[node]]
    routes.length[part] = count
    return 1


@kernel
def choose_paths(
    paths: FlowPaths,
    first_path: Integers,
    order: Integers,
    weight: Floats,
    load: Floats,
    sweeps: int,
) -> NDArray[np.int64]:
    """Sends messages whole on one of their flow's paths; the path of each, or −1.

    One after the other, each takes the path whose links then cost least, while the flow of later
    messages is still divided; then the sweep is repeated. Loads come within one message of the
    flow's loads.

    Args:
        paths: flows along paths, in order of message.
        first_path: [K+1] index of each message's first path.
        order: the messages to send whole.
        weight: [L] load of a unit of flow over each link direction, relative to the bound.
        load: [L] load of the flow, relative to the bound; changed.
        sweeps: number of sweeps over the messages.
    """
    chosen = np.full(len(first_path) - 1, -1)
    for _ in range(sweeps):
        most = load.max()
        for k in order:
            chosen[k] = _choose_path(paths, first_path, k, chosen[k], weight, load, most)
    return chosen


@kernel(inner=True, allocates=False)
def _choose_path(
    paths: FlowPaths,
    first_path: Integers,
    k: int,
    before: int,
    weight: Floats,
    load: Floats,
    most: float,
) -> int:
    begin, end, amount = first_path[k], first_path[k + 1], 0.0
    for path in range(begin, end):
        amount += paths.flow[path]
    for path in range(begin, end):
        flow = paths.flow[path]
        # In the first sweep the message is still divided as in the flow; then it is on one path.
        if before >= 0:
            flow = amount if path == before else 0.0
        _add(paths, path, weight, load, -flow)
    best, least = -1, np.inf
    for path in range(begin, end):
        cost = 0.0
        for i in range(paths.first[path], paths.first[path + 1]):
            link = paths.links[i]
            over = load[link] + amount * weight[link] - most
            cost += weight[link] * np.exp(STEEPNESS * over)
        if cost < least:
            best, least = path, cost
    _add(paths, best, weight, load, amount)
    return best


@kernel(inlined=True)
def _add(paths: FlowPaths, path: int, weight: Floats, load: Floats, flow: float) -> None:
    for i in range(paths.first[path], paths.first[path + 1]):
        load[paths.links[i]] += flow * weight[paths.links[i]]
