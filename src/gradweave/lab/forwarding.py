"""The route of each message, and the forwarding tables for it.

A schedule may use several routes between two servers. Each route has a **channel**: a set of
addresses, one per server, with separate connections. A node forwards by channel and target. If the
route also depends on the source, the table has an exception for that source.
"""

import collections
import dataclasses
import itertools
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from gradweave.schedules.schedule import Schedule, inside_rows
from gradweave.topology.routes import shortest_path_trees
from gradweave.topology.topology import Topology

Route = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Hop:
    """A row of a node's forwarding table."""

    channel: int
    source: int | None
    """The server whose messages take this hop, or None for all servers without a row."""
    target: int
    """The destination of the messages."""
    next: int
    """The next node on their route."""


@dataclasses.dataclass(frozen=True, eq=False)
class Paths:
    """The routes between all pairs of servers, on each channel."""

    channel: NDArray[np.int64]
    """[T] channel of each transfer."""
    channels: int
    routes: dict[tuple[int, int, int], Route]
    """Routes by channel, source and target, as node ids. Every pair of servers has a route on each
    channel, since the processes of a group connect before they use it."""
    forwarders: frozenset[int]
    """Servers that forward messages of others on the schedule's routes."""

    def tables(self) -> dict[int, list[Hop]]:
        """The forwarding table of each node that needs one."""
        sources = collections.defaultdict(lambda: collections.defaultdict(list))
        for (channel, source, target), route in self.routes.items():
            for node, following in itertools.pairwise(route):
                sources[node, channel, target][following].append(source)
        tables: dict[int, list[Hop]] = collections.defaultdict(list)
        for (node, channel, target), by_next in sources.items():
            usual = max(by_next, key=lambda following: (len(by_next[following]), -following))
            tables[node].append(Hop(channel, None, target, usual))
            tables[node] += [
                Hop(channel, source, target, following)
                for following, several in by_next.items()
                for source in several
                if following != usual
            ]
        return dict(tables)


def schedule_paths(schedule: Schedule) -> Paths:
    """The paths of a schedule: its routes, and shortest paths between all other servers.

    Args:
        schedule: the schedule.
    """
    known: dict[tuple[int, int], list[Route]] = collections.defaultdict(list)
    channel = np.zeros(schedule.num_transfers, np.int64)
    for transfer in range(schedule.num_transfers):
        route = schedule.route(transfer)
        routes = known[route[0], route[-1]]
        if route not in routes:
            routes.append(route)
        channel[transfer] = routes.index(route)
    inside = schedule.route_nodes[inside_rows(schedule.route_offsets)]
    servers = inside[schedule.topology.is_server[inside]]
    return Paths(
        channel=channel,
        channels=max(map(len, known.values()), default=1),
        routes=_all_pairs(schedule.topology, known),
        forwarders=frozenset(servers.tolist()),
    )


def shortest_paths(topology: Topology) -> Paths:
    """Shortest paths between all pairs, for an all-reduce that knows nothing of the network."""
    return _one_channel(topology, {})


def multipath(topology: Topology, seed: int) -> Paths:
    """Equal-cost multipath: a random route among those with the fewest links.

    For each pair of servers, each next hop is drawn from the neighbours nearest to the target, as a
    switch does for each connection. Servers that must forward do the same.

    Args:
        topology: the network.
        seed: seed of the random choice.
    """
    draws = np.random.default_rng(seed)
    following = [topology.target[topology.source == node] for node in range(topology.num_nodes)]
    known: dict[tuple[int, int], list[Route]] = {}
    for target in topology.servers.tolist():
        links = _links_to(topology, target)
        for source in topology.servers.tolist():
            route = [source]
            while route[-1] != target:
                near = following[route[-1]][links[following[route[-1]]] == links[route[-1]] - 1]
                route.append(int(draws.choice(near)))
            if source != target:
                known[source, target] = [tuple(route)]
    return _one_channel(topology, known)


def _links_to(topology: Topology, target: int) -> NDArray[np.int64]:
    """[V] number of links on the shortest route from each node to a target."""
    links = np.full(topology.num_nodes, topology.num_nodes)
    links[target], reached = 0, np.array([target])
    while len(reached):
        into = np.isin(topology.target, reached)
        found = np.unique(topology.source[into])
        found = found[links[found] == topology.num_nodes]
        links[found], reached = links[reached[0]] + 1, found
    return links


def first_routes(
    topology: Topology, schedules: Iterable[tuple[Schedule, NDArray[np.integer]]]
) -> tuple[Paths, int]:
    """Paths with one channel: the schedules' first route between two servers, or the shortest path.

    Args:
        topology: the whole network.
        schedules: schedules on parts of the network, with the whole network's id of each node.

    Returns:
        The paths, and the number of transfers whose route differs.
    """
    known: dict[tuple[int, int], list[Route]] = {}
    others = 0
    for schedule, nodes in schedules:
        for transfer in range(schedule.num_transfers):
            route = tuple(nodes[list(schedule.route(transfer))].tolist())
            others += known.setdefault((route[0], route[-1]), [route])[0] != route
    return _one_channel(topology, known), others


def _one_channel(topology: Topology, known: dict[tuple[int, int], list[Route]]) -> Paths:
    routes = _all_pairs(topology, known)
    return Paths(
        channel=np.zeros(0, np.int64),
        channels=1,
        routes=routes,
        forwarders=frozenset(
            node for route in routes.values() for node in route[1:-1] if topology.is_server[node]
        ),
    )


def _all_pairs(
    topology: Topology, known: dict[tuple[int, int], list[Route]]
) -> dict[tuple[int, int, int], Route]:
    parent = shortest_path_trees(topology)
    servers = topology.servers.tolist()
    routes: dict[tuple[int, int, int], Route] = {}
    channels = max(map(len, known.values()), default=1)
    for (rank, target), source in itertools.product(enumerate(servers), servers):
        if source == target:
            continue
        there, back = known.get((source, target), []), known.get((target, source), [])
        for channel in range(channels):
            if channel < len(there):
                route = there[channel]
            elif channel < len(back):
                route = back[channel][::-1]  # acknowledgements take the same links
            else:
                route = _along(parent[rank], source, target)
            routes[channel, source, target] = route
    return routes


def _along(parent: NDArray, source: int, target: int) -> Route:
    route = [source]
    while route[-1] != target:
        route.append(int(parent[route[-1]]))
    return tuple(route)
