"""Trees one after the other, each the cheapest at what the links carry so far."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradweave.compiled import kernel
from gradweave.schedulers.kernels.arborescence import reparent, write_arborescence
from gradweave.schedulers.kernels.paths import cheapest_from
from gradweave.topology.topology import Floats, Integers

ROUNDING = 1e-9
TOWARDS, FROM = 0, 1
"""Stages: to the root, from it."""


class Links(NamedTuple):
    """The network, link directions by their source."""

    first: NDArray[np.int64]
    """[V+1] where those that leave each node start."""
    source: NDArray[np.int64]
    target: NDArray[np.int64]
    bandwidth: NDArray[np.float64]
    """[L] relative to the largest."""
    is_server: NDArray[np.bool_]
    """[V]"""
    servers: NDArray[np.int64]
    """[N] nodes."""


class Rates(NamedTuple):
    """How fast transfers may be; one rate alone where none strands bandwidth."""

    rate: NDArray[np.float64]
    """[R] as the links' bandwidth, ascending."""
    factor: NDArray[np.float64]
    """[R, L] how many times its bytes a transfer takes of each link; infinite of slower ones."""


class Plan(NamedTuple):
    """What the trees are to be like."""

    root: NDArray[np.int64]
    """[P] rank of each tree's root, in the order in which they grow."""
    bias: NDArray[np.float64]
    """[L] logarithm of what each link costs beside others that are as full."""
    sharpness: float
    """Logarithm of how much dearer the fullest link is than an empty one."""
    stranded: float
    """Weight of the bandwidth that a transfer strands, see `unequal.ways`."""
    flatter: float
    """How much more an arc may cost that brings a server nearer to the root, relative to the mean
    of the tree's arcs."""
    delay: NDArray[np.float64]
    """[L] what a piece takes over each link from its first byte to its arrival, relative to what it
    takes at the largest bandwidth."""
    near: float
    """Weight of what it takes from the root to each server; at 0 trees are the cheapest whatever
    their depth."""
    passes: int
    """How often each tree is grown, at least once: the later times beside all others."""


class Grown(NamedTuple):
    """The trees; S stages."""

    parent: NDArray[np.int64]
    """[P, S, N] each server's next one towards the root."""
    route: NDArray[np.int32]
    """[P, S, N, W] links of each server's hop, in the order in which the data passes; −1 after."""
    load: NDArray[np.float64]
    """[L] part of the gradient that each link direction carries, and bandwidth that it strands,
    over its bandwidth."""


class _Ways(NamedTuple):
    """The cheapest way between each two servers, over switches alone."""

    cost: NDArray[np.float64]
    """[N, N] from each to each; infinite where there is none."""
    rate: NDArray[np.int64]
    """[N, N] number of the rate at which it is cheapest."""
    delay: NDArray[np.float64]
    """[N, N] what a piece takes over it, weighted; 0 where trees may have any depth."""
    last: NDArray[np.int64]
    """[R, N, V] the last link of the way from each server to each node, at each rate."""
    reached: NDArray[np.float64]
    """[V] cost of a node from the server at hand."""
    waiting: NDArray[np.int64]
    """[V] switches that are reached, and not gone on from."""


@kernel
def rates_of(links: Links, rates: NDArray[np.float64]) -> Rates:
    """What transfers take of each link.

    With a link to itself, bandwidth over rate; where others as slow may fill it, as many as fit
    share it. Those count that have another bottleneck, on ways of the fewest seconds.

    Args:
        links: of the network.
        rates: [R] of transfers, ascending; if one alone, nothing is stranded.
    """
    count = len(links.bandwidth)
    factors = np.ones((len(rates), count))
    if len(rates) < 2:
        return Rates(rates, factors)
    ways = _no_ways(links, 1)
    _find_ways(links, 1.0 / links.bandwidth, np.ones((1, count)), ways)
    slow = np.zeros((count, count), np.bool_)  # whether one is the bottleneck of ways over another
    servers = len(links.servers)
    for s in range(servers):
        for to in range(servers):
            if not np.isfinite(ways.cost[s, to]):
                continue  # over other servers alone
            source, target = links.servers[s], links.servers[to]
            scarcest = _scarcest(links, ways.last[0, s], source, target)
            node = target
            while node != source:
                link = ways.last[0, s, node]
                slow[link, scarcest] = True
                node = links.source[link]
    for link in range(count):
        for k in range(len(rates)):
            alike = 0
            for other in range(count):
                at_most = rates[k] * (1 + ROUNDING)
                alike += slow[link, other] and links.bandwidth[other] <= at_most
            fit = links.bandwidth[link] / rates[k] * (1 + ROUNDING)
            factors[k, link] = np.inf if fit < 1 else fit / min(int(fit), max(alike, 1))
    return Rates(rates, factors)


@kernel(inner=True)
def _scarcest(links: Links, last: Integers, source: int, target: int) -> int:
    """The link of the least bandwidth of a way."""
    node, scarcest = target, -1
    while node != source:
        link = last[node]
        if scarcest < 0 or links.bandwidth[link] < links.bandwidth[scarcest]:
            scarcest = link
        node = links.source[link]
    return scarcest


@kernel
def grow(links: Links, plan: Plan, rates: Rates, stages: Integers) -> Grown:
    """Trees for equal parts of the gradient.

    A link's price is an exponential of what it carries, relative to the fullest. In the first pass
    that is what the parts before take; in each later one each part's trees are taken back and
    sought again beside all others.

    Args:
        links: of the network.
        plan: what the trees are to be like.
        rates: as `rates_of` makes them.
        stages: `TOWARDS`, `FROM` or both.

    Source: multiplicative weights (Garg and Könemann 1998).
    """
    parts, servers = len(plan.root), len(links.servers)
    parent = np.empty((parts, len(stages), servers), np.int64)
    longest = len(links.is_server) - servers + 1
    route = np.full((parts, len(stages), servers, longest), -1, np.int32)
    load, price = np.zeros(len(plan.bias)), np.empty(len(plan.bias))
    ways = _no_ways(links, len(rates.rate))
    weighted = rates.factor.copy()
    for k in range(len(weighted)):
        for link in range(len(load)):
            if rates.factor[k, link] > 1 + ROUNDING:
                weighted[k, link] *= plan.stranded
    for again in range(plan.passes):
        for p in range(parts):
            if again:
                _carry(links, rates, route[p], -1.0 / parts, load)
            _set_prices(links, plan, load, price)
            _find_ways(links, price, weighted, ways)
            if plan.near:
                _find_delays(links, plan, ways)
            for i in range(len(stages)):
                cost = ways.cost if stages[i] == FROM else np.ascontiguousarray(ways.cost.T)
                write_arborescence(cost, plan.flatter, plan.root[p], parent[p, i])
                if plan.near:
                    delay = ways.delay if stages[i] == FROM else np.ascontiguousarray(ways.delay.T)
                    reparent(cost, delay, plan.root[p], parent[p, i])
                _set_routes(links, ways, stages[i], parent[p, i], route[p, i])
            _carry(links, rates, route[p], 1.0 / parts, load)
    return Grown(parent, route, load)


@kernel(inner=True)
def _no_ways(links: Links, rates: int) -> _Ways:
    servers, nodes = len(links.servers), len(links.is_server)
    return _Ways(
        np.empty((servers, servers)),
        np.zeros((servers, servers), np.int64),
        np.zeros((servers, servers)),
        np.empty((rates, servers, nodes), np.int64),
        np.empty(nodes),
        np.empty(nodes, np.int64),
    )


@kernel(inner=True)
def _set_prices(links: Links, plan: Plan, load: Floats, price: Floats) -> None:
    """Of a byte over each link; where depth counts, beside its part of a piece's delay."""
    fullest, whole = max(load.max(), 1e-12), 0.0
    for link in range(len(load)):
        weight = np.exp(plan.sharpness * (load[link] / fullest - 1.0) + plan.bias[link])
        price[link] = weight / links.bandwidth[link]
        whole += weight
    if plan.near:
        for link in range(len(load)):
            price[link] = price[link] / whole + plan.near * plan.delay[link]


@kernel(inner=True)
def _find_delays(links: Links, plan: Plan, ways: _Ways) -> None:
    """What a piece takes over the cheapest ways."""
    servers = len(links.servers)
    for s in range(servers):
        for to in range(servers):
            source, node = links.servers[s], links.servers[to]
            ways.delay[s, to] = 0.0
            if not np.isfinite(ways.cost[s, to]):
                ways.delay[s, to] = np.inf
                continue
            while node != source:
                link = ways.last[ways.rate[s, to], s, node]
                ways.delay[s, to] += plan.near * plan.delay[link]
                node = links.source[link]


@kernel(inner=True)
def _find_ways(links: Links, price: Floats, factors: Floats, ways: _Ways) -> None:
    """The cheapest ways from each server, at the best rate."""
    servers, at_rate = len(links.servers), np.empty(len(price))
    ways.cost[:] = np.inf
    for k in range(len(factors)):
        for link in range(len(price)):
            at_rate[link] = price[link] * factors[k, link]
        for s in range(servers):
            cheapest_from(
                links.first,
                links.target,
                links.is_server,
                at_rate,
                links.servers[s],
                False,
                ways.reached,
                ways.last[k, s],
                ways.waiting,
            )
            for to in range(servers):
                if to != s and ways.reached[links.servers[to]] < ways.cost[s, to]:
                    ways.cost[s, to] = ways.reached[links.servers[to]]
                    ways.rate[s, to] = k


@kernel(inner=True)
def _set_routes(
    links: Links, ways: _Ways, stage: int, parent: Integers, route: NDArray[np.int32]
) -> None:
    """The links of all hops of a tree."""
    route[:] = -1
    for server in range(len(parent)):
        up = parent[server]
        if up < 0:
            continue
        source, target = (up, server) if stage == FROM else (server, up)
        last = ways.last[ways.rate[source, target], source]
        node, count = links.servers[target], 0
        while node != links.servers[source]:
            link = last[node]
            route[server, count] = link
            count += 1
            node = links.source[link]
        for i in range(count // 2):
            route[server, i], route[server, count - 1 - i] = (
                route[server, count - 1 - i],
                route[server, i],
            )


@kernel(inner=True)
def _carry(links: Links, rates: Rates, route: NDArray[np.int32], size: float, load: Floats) -> None:
    """Adds a part's trees to the load."""
    for i in range(route.shape[0]):
        for server in range(route.shape[1]):
            hop, slowest, length = route[i, server], np.inf, 0
            while length < len(hop) and hop[length] >= 0:
                slowest = min(slowest, links.bandwidth[hop[length]])
                length += 1
            k = len(rates.rate) - 1
            while k > 0 and rates.rate[k] > slowest * (1 + ROUNDING):
                k -= 1
            for link in hop[:length]:
                load[link] += size * rates.factor[k, link] / links.bandwidth[link]
