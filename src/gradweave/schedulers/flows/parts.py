"""Cuts messages into parts with one path each, and turns those paths into transfers."""

import dataclasses
import math

import numpy as np
from numpy.typing import NDArray

from gradweave.schedulers.flows.concurrent_flow import ConcurrentFlow
from gradweave.schedulers.flows.concurrent_flow_kernel import OrbitGraph, no_work
from gradweave.schedulers.flows.rounding_kernel import Routes, choose_paths, reroute
from gradweave.schedulers.flows.rounds_kernel import Transfers
from gradweave.schedules.schedule import distinct_rows, reverse_rows, take_rows
from gradweave.topology.routes import switch_only_trees
from gradweave.topology.topology import Integers, Topology

PASSES = 6
"""Passes over all parts to find better paths; after the first few hardly any part moves."""
SPARE_LINKS = 4
"""Links by which a part's path may exceed the longest path that carries flow."""
MAX_ROUTES = 16
"""Most routes of a hop, with the fewest links, among which a round may choose."""
MAX_EXCESS = 0.01
"""Excess length of such a route over the planned route, relative to the largest length."""

SWEEPS = 2
"""Passes over messages sent whole, to find each a path; a third pass changed no load."""
UNITS = 1 << 20
"""Units per message: shares are integer multiples of 1/UNITS."""


@dataclasses.dataclass(frozen=True, eq=False)
class MessageParts:
    """Parts of messages, each with its path."""

    message: NDArray[np.int64]
    """[P] message of each part, ascending."""
    share: NDArray[np.int64]
    """[P] integer weights: a part's share of its message is its weight over their sum."""
    links: NDArray[np.int64]
    """Link directions of the parts' paths, from source to target, concatenated."""
    first: NDArray[np.int64]
    """[P+1] index of the first link of each part."""

    def sizes(self, amount: Integers) -> NDArray[np.float64]:
        """[P] the size of each part.

        Args:
            amount: [K] size of each message.
        """
        per_share = amount / np.maximum(np.bincount(self.message, self.share, len(amount)), 1)
        return self.share * per_share[self.message]


def parts_of(
    flow: ConcurrentFlow, count: NDArray[np.int64], *, images: int = 1, seed: int = 0
) -> MessageParts:
    """Cuts messages into equal parts, whose paths load links about like the flow.

    The number of parts on each of a message's paths is proportional to its flow, rounded; then
    parts move to cheaper paths one after the other. For a symmetric flow, the result holds the
    parts of the flow's own messages.

    Args:
        flow: the flow of the messages.
        count: [K] number of parts of each message, the same for all images of a message.
        images: images of each message under a symmetric flow: the order of its group.
        seed: the seed of the order in which parts move.
    """
    own, place = own_messages(flow)
    wanted = np.bincount(place, count[own], len(flow.sources.target)).astype(np.int64)
    routes, of_pair = _rounded(flow, wanted)
    _balance(flow, routes, images, seed)
    columns = np.arange(routes.links.shape[1])
    at = np.maximum(routes.length[:, None] - 1 - columns, 0)
    forward = np.take_along_axis(routes.links, at, axis=1).astype(np.int64)
    by_pair = own[np.argsort(place, kind="stable")]
    message = np.repeat(by_pair, count[by_pair])
    by_message = np.argsort(message, kind="stable")
    part = np.argsort(of_pair, kind="stable")[by_message]
    links = forward[part][columns < routes.length[part][:, None]]
    first = np.append(0, np.cumsum(routes.length[part]))
    return MessageParts(message[by_message], np.ones(len(message), np.int64), links, first)


def divided(
    flow: ConcurrentFlow,
    *,
    most: float = math.inf,
    longest_s: float = math.inf,
    images: int = 1,
    seed: int = 0,
) -> MessageParts:
    """Cuts messages where their flow divides, and further, into parts of different sizes.

    Messages small enough for a single part are sent whole, on the path whose links are used least.
    For a symmetric flow, the result holds the parts of the flow's own messages.

    Args:
        flow: the flow of the messages.
        most: maximum bytes of a part.
        longest_s: approximate maximum seconds for which a part may hold the slowest link of its
            path.
        images: images of each message under a symmetric flow: the order of its group.
        seed: the seed of the order in which messages choose paths.
    """
    messages, sources, paths = flow.messages, flow.sources, flow.paths
    capacity, count = messages.capacity(flow.unit), int(paths.length[0])
    pair = paths.message[:count].astype(np.int64)
    first_path = np.searchsorted(pair, np.arange(len(sources.amount) + 1)).astype(np.int64)
    links = paths.links[: paths.first[count]].astype(np.int64)
    slowest = np.minimum.reduceat(capacity[links], paths.first[:count])
    limit = np.minimum(longest_s * slowest, most)
    moved = paths.flow[:count].copy()
    least = np.minimum.reduceat(limit, first_path[:-1])
    # Sent whole if it is no larger than a part may be: the flow's other paths would cost messages.
    whole = np.flatnonzero((sources.amount <= least) & (np.diff(first_path) > 1))
    order = np.random.default_rng(seed).permutation(whole)
    of_orbit = np.unique(flow.orbit, return_index=True)[1]
    weight = images / (np.bincount(flow.orbit) * capacity[of_orbit] * flow.bound)
    load = flow.load[of_orbit] / flow.bound
    over = paths._replace(links=flow.orbit[links].astype(np.int32))
    chosen = choose_paths(over, first_path, order, weight, load, SWEEPS)
    moved[np.isin(pair, whole)] = 0.0
    moved[chosen[whole]] = sources.amount[whole]
    fraction = moved / sources.amount[pair]
    # Without paths whose share rounds to nothing.
    kept = np.flatnonzero(np.rint(fraction * UNITS))
    first_kept = np.searchsorted(pair[kept], np.arange(len(sources.amount) + 1))
    own, place = own_messages(flow)
    path, of_message = take_rows(kept, first_kept, place)
    message = np.repeat(own, np.diff(of_message))
    cuts = np.maximum(np.ceil(messages.amount[message] * fraction[path] / limit[path] - 1e-9), 1)
    share = np.maximum(np.rint(fraction[path] * UNITS / cuts), 1).astype(np.int64)
    message, share, path = (np.repeat(one, cuts.astype(np.int64)) for one in (message, share, path))
    backward, first = take_rows(links, paths.first, path)
    return MessageParts(message, share, reverse_rows(backward, first), first)


def own_messages(flow: ConcurrentFlow) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The messages whose sources a flow was solved for, and the flow's pair of servers for each.

    These are all messages, unless the flow is symmetric: then the others are images of them.
    """
    messages, sources = flow.messages, flow.sources
    nodes = messages.topology.num_nodes
    pairs = np.repeat(sources.root, np.diff(sources.first)) * nodes + sources.target % nodes
    pair = messages.source * nodes + messages.target
    place = np.minimum(np.searchsorted(pairs, pair), len(pairs) - 1)
    own = np.flatnonzero(pairs[place] == pair)
    return own, place[own]


def _rounded(flow: ConcurrentFlow, wanted: NDArray[np.int64]) -> tuple[Routes, NDArray[np.int64]]:
    """`wanted` parts of each pair on its paths, by largest remainders; and each part's pair."""
    paths, sources = flow.paths, flow.sources
    count = int(paths.length[0])
    pair = paths.message[:count].astype(np.int64)
    exact = paths.flow[:count] / sources.amount[pair] * wanted[pair]
    parts = np.floor(exact + 1e-9).astype(np.int64)
    missing = wanted - np.bincount(pair, parts, len(wanted)).astype(np.int64)
    order = np.lexsort((parts - exact, pair))
    rank = np.arange(count) - np.searchsorted(pair, pair[order])
    parts[order] += rank < missing[pair[order]]
    path = np.repeat(np.arange(count), parts)
    length = np.diff(paths.first[: count + 1])
    links = np.full((len(path), int(length.max()) + SPARE_LINKS), -1, np.int32)
    column = np.arange(links.shape[1])
    there = column < length[path][:, None]
    links[there] = paths.links[(paths.first[path][:, None] + column)[there]]
    source = np.repeat(sources.root, np.diff(sources.first))[pair[path]].astype(np.int64)
    size = (sources.amount / np.maximum(wanted, 1))[pair[path]]
    target = sources.target[pair[path]]
    return Routes(links, length[path], source, target, size / size.mean()), pair[path]


def _balance(flow: ConcurrentFlow, routes: Routes, images: int, seed: int) -> None:
    """Moves parts to other paths until no link carries more parts than the flow, rounded up."""
    messages = flow.messages
    source, target, nodes = messages.ends
    orbit = flow.orbit
    first = np.searchsorted(source, np.arange(nodes + 1)).astype(np.int64)
    capacity = np.zeros(int(orbit.max()) + 1)
    capacity[orbit] = messages.capacity(flow.unit)
    capacity /= capacity.min()
    unit = images / (np.bincount(orbit) * capacity)
    graph = OrbitGraph(first, source, target, orbit, unit)
    work, rng = no_work(graph), np.random.default_rng(seed)
    there = routes.links >= 0
    size = np.broadcast_to(routes.size[:, None], there.shape)[there]
    uses = np.bincount(orbit[routes.links[there]], size, len(unit))
    per_amount = images * len(routes.length) / messages.amount.sum()
    least = flow.bound * messages.capacity(flow.unit).min() * per_amount
    length = flow.length / flow.length.max()
    for number in range(PASSES):
        order = rng.permutation(len(routes.length))
        reroute(graph, routes, order, length, uses, work, seed + number)
        if (uses * unit).max() <= np.ceil(least - 1e-6) + 1e-9:
            break


def transfers_of(
    topology: Topology,
    parts: MessageParts,
    length: NDArray[np.float64] | None = None,
    orbit: Integers | None = None,
) -> Transfers:
    """The parts' paths as transfers from server to server, and the routes they may take.

    Args:
        topology: the network.
        parts: parts on paths that may pass servers, which store them.
        length: [L] link lengths as in `ConcurrentFlow`; no route may take more of scarce links. If
            not given, transfers may only take the planned routes.
        orbit: [L] orbit of each link; no route except a planned route may pass an orbit twice.
    """
    ends = np.flatnonzero(topology.is_server[topology.target[parts.links]])
    first = np.append(0, np.searchsorted(ends, parts.first[1:])).astype(np.int64)
    if not topology.switches.size:
        each = np.arange(len(topology.source) + 1)
        return Transfers(first, parts.links, parts.links, each, each[:-1], each)
    begins = np.append(0, ends + 1)
    example, number = distinct_rows(parts.links, begins)
    links, first_link = take_rows(parts.links, begins, example)
    if length is None:
        own = np.arange(len(example) + 1)
        return Transfers(first, number, number, own, links, first_link)
    routes = _Alternatives(topology, length / length.max(), orbit)
    planned = [tuple(one.tolist()) for one in np.split(links, first_link[1:-1])]
    for one in planned:
        routes.add(one)
    return routes.transfers(first, planned, number)


class _Alternatives:
    """Routes by hop: the planned routes, and others with as few links."""

    def __init__(
        self, topology: Topology, dual: NDArray[np.float64], orbit: Integers | None
    ) -> None:
        """Args: the network, [L] each link's dual, up to one, and [L] its orbit."""
        self.topology, self.dual = topology, dual
        self.orbit = np.arange(len(dual)) if orbit is None else orbit
        self.found: dict[tuple[int, int], dict[tuple[int, ...], None]] = {}
        self.length = switch_only_trees(topology)[1] if topology.switches.size else None

    def add(self, route: tuple[int, ...]) -> None:
        """Adds a planned route; for a hop's first route, also adds all shortest routes."""
        topology = self.topology
        ends = int(topology.source[route[0]]), int(topology.target[route[-1]])
        if ends not in self.found:
            others = self._shortest(*ends) if len(route) > 2 else []
            most = self.dual[list(route)].sum() + MAX_EXCESS
            self.found[ends] = dict.fromkeys(
                one
                for one in others
                if self.dual[list(one)].sum() <= most
                and len(np.unique(self.orbit[list(one)])) == len(one)
            )
        self.found[ends][route] = None

    def _shortest(self, source: int, target: int) -> list[tuple[int, ...]]:
        """Some of the shortest routes through switches."""
        assert self.length is not None
        topology, length = self.topology, self.length[self.topology.rank[target]]
        routes: list[tuple[int, ...]] = []
        unfinished: list[tuple[int, tuple[int, ...]]] = [(source, ())]
        while unfinished and len(routes) < MAX_ROUTES:
            node, route = unfinished.pop()
            if node == target:
                routes.append(route)
                continue
            for link in range(topology.first_link[node], topology.first_link[node + 1]):
                to = int(topology.target[link])
                passes = to == target or not topology.is_server[to]
                if passes and length[to] == length[node] - 1:
                    unfinished.append((to, (*route, link)))
        return routes

    def transfers(
        self, first: NDArray[np.int64], planned: list[tuple[int, ...]], number: NDArray[np.int64]
    ) -> Transfers:
        """Arrays of the transfers, given their planned routes [X] by number, part after part."""
        table = [(hop, route) for hop, of in enumerate(self.found.values()) for route in of]
        place = {route: r for r, (_, route) in enumerate(table)}
        hop_of = np.array([hop for hop, _ in table])
        route = np.array([place[one] for one in planned])[number]
        lengths = [len(one) for _, one in table]
        return Transfers(
            first,
            route,
            hop_of[route],
            np.searchsorted(hop_of, np.arange(len(self.found) + 1)).astype(np.int64),
            np.array([link for _, one in table for link in one], np.int64),
            np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        )
