"""Grows trees one after the other, each a minimum-cost arborescence at the current link loads."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradweave.common.compiled import kernel
from gradweave.schedulers.kernels.arborescence import reparent, write_arborescence
from gradweave.schedulers.kernels.exponential import exponential
from gradweave.schedulers.kernels.paths import cheapest_from
from gradweave.schedulers.kernels.residual import bottlenecks_over, transfers_at_once
from gradweave.topology.topology import Floats, Integers
from gradweave.topology.units import ROUNDING

TOWARDS, FROM = 0, 1
"""Stages: to the root, and from the root."""


class Links(NamedTuple):
    """The network, with link directions sorted by source."""

    first: NDArray[np.int64]
    """[V+1] index of the first link that leaves each node."""
    source: NDArray[np.int64]
    target: NDArray[np.int64]
    bandwidth: NDArray[np.float64]
    """[L] bandwidth relative to the largest."""
    is_server: NDArray[np.bool_]
    """[V] whether each node is a server."""
    servers: NDArray[np.int64]
    """[N] nodes."""


class Rates(NamedTuple):
    """The rates of transfers; a single rate if no transfer leaves residual bandwidth."""

    rate: NDArray[np.float64]
    """[R] rates in the unit of bandwidth, ascending."""
    factor: NDArray[np.float64]
    """[R, L] load of a transfer on each link, relative to its bytes; infinite for slower links."""


class Plan(NamedTuple):
    """Parameters for growing trees."""

    root: NDArray[np.int64]
    """[P] rank of each tree's root, in the order in which they grow."""
    bias: NDArray[np.float64]
    """[L] logarithm of each link's cost relative to other links that are as full."""
    sharpness: float
    """Logarithm of the cost ratio between the fullest link and an empty link."""
    residual: float
    """Weight of the bandwidth that a transfer leaves unusable; see `packing.paths.PathCosts`."""
    flatter: float
    """Extra cost that an arc may have if it brings a server nearer to the root, relative to the
    mean of the tree's arcs."""
    delay: NDArray[np.float64]
    """[L] delay of a piece over each link from its first byte to its arrival, relative to its
    transmission time at the largest bandwidth."""
    near: float
    """Weight of the delay from the root to each server; at 0 trees are the cheapest whatever their
    depth."""
    passes: int
    """How often each tree is grown, at least once; after the first pass, given all other trees."""
    message: NDArray[np.float64]
    """[R, L] bytes that could be sent in the overhead of a message at each rate, relative to the
    bytes of a tree's part."""


class Grown(NamedTuple):
    """The grown trees, for S stages."""

    parent: NDArray[np.int64]
    """[P, S, N] parent of each server."""
    route: NDArray[np.int32]
    """[P, S, N, W] links of each server's hop, in the order in which data passes; then −1."""
    load: NDArray[np.float64]
    """[L] load of each link direction: the share of the gradient that it carries, the residual
    bandwidth left unusable, and the bytes lost to overheads of messages, over its bandwidth."""


class _Paths(NamedTuple):
    """The cheapest path between every two servers, over switches only."""

    cost: NDArray[np.float64]
    """[N, N] cost from each to each; infinite if there is no path."""
    rate: NDArray[np.int64]
    """[N, N] number of the rate at which it is cheapest."""
    delay: NDArray[np.float64]
    """[N, N] weighted delay of a piece over it; 0 if trees may have any depth."""
    last: NDArray[np.int64]
    """[R, N, V] the last link of the path from each server to each node, at each rate."""
    reached: NDArray[np.float64]
    """[V] cost of a node from the current server."""
    waiting: NDArray[np.int64]
    """[V] switches reached but not yet expanded."""


@kernel
def rates_of(links: Links, rates: NDArray[np.float64]) -> Rates:
    """The load of transfers on each link, for each rate.

    A transfer by itself loads a link by bandwidth over rate; if other equally slow transfers may
    fill it, by a part of that, see `transfers_at_once`. Bottlenecks are those of the fastest paths.

    Args:
        links: the network's links.
        rates: [R] rates of transfers, ascending; with a single rate, no bandwidth is residual.
    """
    count = len(links.bandwidth)
    factors = np.ones((len(rates), count))
    if len(rates) < 2:
        return Rates(rates, factors)
    paths = _no_paths(links, 1)
    _find_paths(links, 1.0 / links.bandwidth, np.ones((1, count)), paths)
    slow = bottlenecks_over(
        links.source, links.bandwidth, links.servers, paths.cost, paths.last[0], False
    )
    every = np.arange(count)
    for k in range(len(rates)):
        at_once = transfers_at_once(every, rates[k], links.bandwidth, slow)
        for link in range(count):
            fit = links.bandwidth[link] / rates[k] * (1 + ROUNDING)
            factors[k, link] = np.inf if fit < 1 else fit / at_once[link]
    return Rates(rates, factors)


@kernel
def grow(links: Links, plan: Plan, rates: Rates, stages: Integers) -> Grown:
    """Grows trees for equal parts of the gradient.

    A link's dual is exponential in its load, relative to the fullest link. In the first pass the
    load is that of the parts before; in each later pass, each part's trees are removed and sought
    again given all others.

    Args:
        links: the network's links.
        plan: parameters of the trees.
        rates: from `rates_of`.
        stages: `TOWARDS`, `FROM` or both.

    Source: multiplicative weights (Garg and Könemann 1998).
    """
    parts, servers = len(plan.root), len(links.servers)
    parent = np.empty((parts, len(stages), servers), np.int64)
    longest = len(links.is_server) - servers + 1
    route = np.full((parts, len(stages), servers, longest), -1, np.int32)
    load, dual = np.zeros(len(plan.bias)), np.empty(len(plan.bias))
    paths = _no_paths(links, len(rates.rate))
    loaded = Rates(rates.rate, rates.factor * (1.0 + plan.message))
    weighted = loaded.factor.copy()
    for k in range(len(weighted)):
        for link in range(len(load)):
            if rates.factor[k, link] > 1 + ROUNDING:
                weighted[k, link] *= plan.residual
    for again in range(plan.passes):
        for p in range(parts):
            if again:
                _carry(links, loaded, route[p], -1.0 / parts, load)
            _set_duals(links, plan, load, dual)
            # The most expensive step: a search from every server, at every rate, for each tree.
            _find_paths(links, dual, weighted, paths)
            if plan.near:
                _find_delays(links, plan, paths)
            for i in range(len(stages)):
                outwards = stages[i] == FROM  # a tree to a root is one from it, arcs reversed
                cost = paths.cost if outwards else np.ascontiguousarray(paths.cost.T)
                write_arborescence(cost, plan.flatter, plan.root[p], parent[p, i])
                if plan.near:
                    delay = paths.delay if outwards else np.ascontiguousarray(paths.delay.T)
                    reparent(cost, delay, plan.root[p], parent[p, i])
                _set_routes(links, paths, stages[i], parent[p, i], route[p, i])
            _carry(links, loaded, route[p], 1.0 / parts, load)
    return Grown(parent, route, load)


@kernel(inner=True)
def _no_paths(links: Links, rates: int) -> _Paths:
    servers, nodes = len(links.servers), len(links.is_server)
    return _Paths(
        np.empty((servers, servers)),
        np.zeros((servers, servers), np.int64),
        np.zeros((servers, servers)),
        np.empty((rates, servers, nodes), np.int64),
        np.empty(nodes),
        np.empty(nodes, np.int64),
    )


@kernel(inner=True)
def _set_duals(links: Links, plan: Plan, load: Floats, dual: Floats) -> None:
    """Sets the dual of a byte over each link; if depth counts, plus its share of the delay."""
    fullest, whole = max(load.max(), 1e-12), 0.0
    sharpness, bias, bandwidth = plan.sharpness, plan.bias, links.bandwidth
    for link in range(len(load)):
        weight = exponential(sharpness * (load[link] / fullest - 1.0) + bias[link])
        dual[link] = weight / bandwidth[link]
        whole += weight
    if plan.near:
        for link in range(len(load)):
            dual[link] = dual[link] / whole + plan.near * plan.delay[link]


# Below, arrays are taken out of their tuples before a loop: each access within the loop would
# count references.


@kernel(inner=True)
def _find_delays(links: Links, plan: Plan, paths: _Paths) -> None:
    """The delay of a piece over the cheapest paths."""
    servers, sources, each, near = links.servers, links.source, plan.delay, plan.near
    cost, rate, last, delay = paths.cost, paths.rate, paths.last, paths.delay
    for s in range(len(servers)):
        for to in range(len(servers)):
            source, node = servers[s], servers[to]
            delay[s, to] = 0.0
            if not np.isfinite(cost[s, to]):
                delay[s, to] = np.inf
                continue
            while node != source:
                link = last[rate[s, to], s, node]
                delay[s, to] += near * each[link]
                node = sources[link]


@kernel(inner=True)
def _find_paths(links: Links, dual: Floats, factors: Floats, paths: _Paths) -> None:
    """The cheapest paths from each server, at the best rate."""
    servers, at_rate = links.servers, np.empty(len(dual))
    first, target, is_server = links.first, links.target, links.is_server
    cost, rate, last = paths.cost, paths.rate, paths.last
    reached, waiting = paths.reached, paths.waiting
    cost[:] = np.inf
    for k in range(len(factors)):
        for link in range(len(dual)):
            at_rate[link] = dual[link] * factors[k, link]
        for s in range(len(servers)):
            into = last[k, s]
            cheapest_from(
                first, target, is_server, at_rate, servers[s], False, reached, into, waiting
            )
            for to in range(len(servers)):
                if to != s and reached[servers[to]] < cost[s, to]:
                    cost[s, to], rate[s, to] = reached[servers[to]], k


@kernel(inner=True)
def _set_routes(
    links: Links, paths: _Paths, stage: int, parent: Integers, route: NDArray[np.int32]
) -> None:
    """The links of all hops of a tree."""
    servers, sources, rate, lasts = links.servers, links.source, paths.rate, paths.last
    route[:] = -1
    for server in range(len(parent)):
        up = parent[server]
        if up < 0:
            continue
        source, target = (up, server) if stage == FROM else (server, up)
        k, node, count = rate[source, target], servers[target], 0
        while node != servers[source]:
            link = lasts[k, source, node]
            route[server, count] = link
            count += 1
            node = sources[link]
        for i in range(count // 2):
            route[server, i], route[server, count - 1 - i] = (
                route[server, count - 1 - i],
                route[server, i],
            )


@kernel(inner=True)
def _carry(links: Links, rates: Rates, route: NDArray[np.int32], size: float, load: Floats) -> None:
    """Adds the trees of a part to the load."""
    bandwidth, rate, factor = links.bandwidth, rates.rate, rates.factor
    for i in range(route.shape[0]):
        for server in range(route.shape[1]):
            slowest, length = np.inf, 0
            while length < route.shape[2] and route[i, server, length] >= 0:
                slowest = min(slowest, bandwidth[route[i, server, length]])
                length += 1
            k = len(rate) - 1
            while k > 0 and rate[k] > slowest * (1 + ROUNDING):
                k -= 1
            for at in range(length):
                link = route[i, server, at]
                load[link] += size * factor[k, link] / bandwidth[link]
