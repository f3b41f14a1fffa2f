"""Candidate hops: routes over which a server can send to another in one transfer."""

import dataclasses
import math

import numpy as np
from numpy.typing import NDArray

from gradweave.schedules.schedule import table_of_rows, take_rows
from gradweave.topology.routes import follow, preference, switch_only_trees
from gradweave.topology.topology import Topology


@dataclasses.dataclass(frozen=True, eq=False)
class Hops:
    """Routes between servers with only switches inside."""

    source: NDArray[np.int64]
    """[H] rank of the server that a hop leaves."""
    target: NDArray[np.int64]
    """[H] rank of the server that a hop enters."""
    route_nodes: NDArray[np.int32]
    """Nodes of the routes, concatenated, both ends included."""
    route_offsets: NDArray[np.int64]
    """[H+1] index of each route's first node."""
    links: NDArray[np.int64]
    """Link directions of the routes, concatenated."""

    @property
    def first_link(self) -> NDArray[np.int64]:
        """[H+1] index of each hop's first link."""
        return self.route_offsets - np.arange(len(self.route_offsets))

    @staticmethod
    def of(
        topology: Topology,
        *,
        variants: int = 1,
        nearest: int | None = None,
        spread: int | None = None,
        senders: NDArray | None = None,
    ) -> "Hops":
        """Switch-only routes between every two servers that have one.

        Between two servers there is one shortest route for each pair of a switch of the first and a
        switch of the second, among pairs for which routes are shortest. With a single route, a
        server on several switches would always be reached over its first port while the others
        idle. A port that no shortest route uses gets the shortest of the routes that use it.

        Args:
            topology: the network.
            variants: how many times to look for shortest routes: once with the pinned tie rule,
                then with ties broken at random; duplicates are dropped.
            nearest: keep only hops to this many nearest servers, ties by rank from the server on;
                all if not given.
            spread: keep only hops to this many servers, near and far alike: an equal share at each
                distance, or all if there are fewer, over one of the routes found from port to port;
                all if not given.
            senders: ranks of servers; keep only hops that leave them, which takes less time; all if
                not given.
        """
        several_switches = _on_several_switches(topology)
        tables: list[NDArray[np.int32]] = []
        rng, pairs = np.random.default_rng(0), None
        if spread is not None:
            pairs = _spread_pairs(topology, _routes(topology, None, senders), spread, rng)
        for variant in range(variants):
            targets = _shuffled(topology, rng) if variant else None
            if pairs is None:
                tables.append(_routes(topology, targets, senders))
            else:
                tables.append(_random_routes(topology, pairs, rng))
            if several_switches:
                table = _routes_between_switches(topology, targets)
                if pairs is not None:
                    table = table[np.isin(_pairs(topology, table), pairs)]
                elif senders is not None:
                    table = table[np.isin(topology.rank[table[:, 0]], senders)]
                tables.append(table)
        width = max(table.shape[1] for table in tables)
        tables = [np.pad(t, ((0, 0), (0, width - t.shape[1])), constant_values=-1) for t in tables]
        table = np.unique(np.concatenate(tables), axis=0) if len(tables) > 1 else tables[0]
        if spread is not None:
            table = _one_from_port_to_port(topology, table, rng)
        table = _widest_first(topology, table)
        lengths = (table >= 0).sum(axis=1)
        ends = _ends(table)
        source, target = (topology.rank[nodes].astype(np.int64) for nodes in ends)
        # The sort is stable: among the routes between two servers, the widest stays first.
        order = np.lexsort((source, target))
        if nearest is not None:
            count = topology.num_servers
            order = np.lexsort(((target - source) % count, lengths, source))
            place = np.arange(len(order)) - np.searchsorted(source[order], source[order])
            order = order[place < nearest]
        table, lengths = table[order], lengths[order]
        nodes = table[table >= 0]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        links = topology.links_along(nodes, offsets)
        return Hops(source[order], target[order], nodes, offsets, links)

    def slots(self, capacity: NDArray, most: int, spare: float = math.inf) -> NDArray[np.int64]:
        """Hops by number, each repeated as often as its narrowest link can carry it per round.

        Args:
            capacity: [L] transfers per round of each link direction.
            most: most slots of one hop.
            spare: if many hops share a server's link, limit their slots to this multiple of the
                link's capacity in total, so that a server on a switch is not offered its whole
                capacity from every other server; no limit if not given.
        """
        capacity = np.asarray(capacity, np.int64)
        narrowest = np.minimum.reduceat(capacity[self.links], self.first_link[:-1])
        ends = self.links[self.first_link[:-1]], self.links[self.first_link[1:] - 1]
        shares = [np.ceil(spare * capacity[end] / np.bincount(end)[end]) for end in ends]
        slots = np.minimum(np.minimum(narrowest, most), np.maximum(*shares))
        return np.repeat(np.arange(len(self.source)), slots.astype(np.int64))


def _routes(
    topology: Topology, targets: NDArray | None, senders: NDArray | None
) -> NDArray[np.int32]:
    """One row of nodes per pair of servers with a route, padded with −1."""
    sources = receivers = topology.servers
    if senders is not None:
        sources = sources[senders]
        _, lengths = switch_only_trees(topology, sources)
        receivers = receivers[(lengths[:, receivers] > 0).any(axis=0)]
    toward, lengths = switch_only_trees(topology, receivers, targets=targets)
    to, source = np.nonzero(lengths[:, sources] > 0)
    return table_of_rows(*follow(toward, sources[source], receivers[to], to))


def _widest_first(topology: Topology, table: NDArray[np.int32]) -> NDArray[np.int32]:
    """The rows of nodes, widest routes first, or fastest first for messages of a given size."""
    offsets = np.concatenate([[0], np.cumsum((table >= 0).sum(axis=1))])
    return table[preference(topology, table[table >= 0], offsets)]


def _ends(table: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """[M] the first and the last node of each row."""
    return table[:, 0], table[np.arange(len(table)), (table >= 0).sum(axis=1) - 1]


def _pairs(topology: Topology, table: NDArray[np.int32]) -> NDArray[np.int64]:
    """[M] the pair of servers that each row of nodes joins, as one number."""
    source, target = (topology.rank[nodes].astype(np.int64) for nodes in _ends(table))
    return source * topology.num_servers + target


def _spread_pairs(
    topology: Topology, table: NDArray[np.int32], number: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """The pairs to keep, among those joined by rows of nodes, if hops are spread.

    Every server prefers the same differences of ranks, in a random order, so that servers receive
    about as often as they send.

    Args:
        topology: the network.
        table: one row of nodes for every two servers.
        number: number of receivers for each sender.
        rng: randomises the order.
    """
    count, pairs, lengths = topology.num_servers, _pairs(topology, table), (table >= 0).sum(axis=1)
    source, target = np.divmod(pairs, count)
    preference = rng.permutation(count)[(target - source) % count]
    order = np.lexsort((preference, lengths, source))
    pairs, source, lengths = pairs[order], source[order], lengths[order]
    _, at_distance = np.unique(source * (lengths.max() + 1) + lengths, return_inverse=True)
    first = np.searchsorted(at_distance, np.arange(at_distance[-1] + 1))
    place = np.arange(len(pairs)) - first[at_distance]
    # The first of each distance, then the second of each distance that has two, and so on.
    order = np.lexsort((lengths, place, source))
    pairs, source = pairs[order], source[order]
    return pairs[np.arange(len(pairs)) - np.searchsorted(source, source) < number]


def _random_routes(
    topology: Topology, pairs: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.int32]:
    """One row of nodes for each pair: a random shortest route, chosen step by step.

    Args:
        topology: the network.
        pairs: [M] pairs as numbered by `_pairs`.
        rng: makes the choices.
    """
    source, row = np.divmod(pairs, topology.num_servers)
    lengths = switch_only_trees(topology)[1]
    walker, end = topology.servers[source].astype(np.int64), topology.servers[row]
    columns = [walker]
    while (moving := walker != end).any():
        following = np.where(moving, end, -1)
        far = np.flatnonzero(moving & (lengths[row, walker] > 1))
        node, first = walker[far], topology.first_link[walker[far]]
        degree = topology.first_link[node + 1] - first
        offsets = np.cumsum(degree) - degree
        which = np.repeat(np.arange(len(far)), degree)
        link = np.arange(len(which)) + np.repeat(first - offsets, degree)
        to, toward = topology.target[link], row[far][which]
        nearer = lengths[toward, to] == lengths[toward, node[which]] - 1
        nearer &= ~topology.is_server[to]
        which, to = which[nearer], to[nearer]
        order = np.lexsort((rng.random(len(which)), which))
        following[far] = to[order][np.searchsorted(which, np.arange(len(far)))]
        columns.append(following)
        walker = np.where(moving, following, walker)
    return np.stack(columns, axis=1).astype(np.int32)


def _one_from_port_to_port(
    topology: Topology, table: NDArray[np.int32], rng: np.random.Generator
) -> NDArray[np.int32]:
    """One of the widest routes, at random, between a port of one server and a port of another."""
    table = _widest_first(topology, rng.permutation(table))
    last = (table >= 0).sum(axis=1) - 1
    row = np.arange(len(table))
    ports = np.stack([table[:, 0], table[:, 1], table[row, last - 1], table[row, last]], axis=1)
    _, first = np.unique(ports, axis=0, return_index=True)
    return table[first]


def _shuffled(topology: Topology, rng: np.random.Generator) -> NDArray[np.int32]:
    """[L] the link directions' targets, with those of each node in random order."""
    order = np.lexsort((rng.random(len(topology.source)), topology.source))
    targets = topology.target[order].astype(np.int32)
    targets.flags.writeable = False  # like the network's array, so that the search is compiled once
    return targets


def _ports(topology: Topology) -> NDArray[np.int64]:
    """Link directions from a server to a switch."""
    return np.flatnonzero(
        topology.is_server[topology.source] & ~topology.is_server[topology.target]
    )


def _on_several_switches(topology: Topology) -> bool:
    """Whether some server is on several switches."""
    return bool(np.bincount(topology.source[_ports(topology)], minlength=1).max() > 1)


def _routes_between_switches(topology: Topology, targets: NDArray | None) -> NDArray[np.int32]:
    """One row per pair of servers and pair of their switches, as in `_routes`."""
    ports = _ports(topology)
    server, switch = topology.source[ports], topology.target[ports]
    switches, place = np.unique(switch, return_inverse=True)
    toward, lengths = switch_only_trees(topology, switches, targets=targets)
    last, first = np.nonzero(lengths[:, switches] >= 0)
    # Each pair of switches with each server on the first and each server on the second.
    by_switch = np.argsort(place, kind="stable")
    begin = np.searchsorted(place[by_switch], np.arange(len(switches) + 1))
    leaves, rows = take_rows(by_switch, begin, first)
    pair = np.repeat(np.arange(len(first)), np.diff(rows))
    enters, rows = take_rows(by_switch, begin, last[pair])
    leaves, pair = (np.repeat(column, np.diff(rows)) for column in (leaves, pair))
    sender, receiver = server[leaves], server[enters]
    length = lengths[last, switches[first]][pair] + 2
    length[topology.find_links(sender, receiver) >= 0] += topology.num_nodes  # they are neighbours
    kept = (sender != receiver) & _shortest(sender, receiver, length, leaves, enters)
    sender, receiver, pair = sender[kept], receiver[kept], pair[kept]
    middle = table_of_rows(*follow(toward, switches[first], switches[last], last))[pair]
    table = np.concatenate([sender[:, None], middle, np.full((len(pair), 1), -1)], axis=1)
    table[np.arange(len(pair)), 1 + (middle >= 0).sum(axis=1)] = receiver
    return table.astype(np.int32)


def _shortest(
    sender: NDArray, receiver: NDArray, length: NDArray, leaves: NDArray, enters: NDArray
) -> NDArray[np.bool_]:
    """Which routes are shortest between two servers, or for a port that would otherwise have none.

    Args:
        sender: [M] server that each route leaves.
        receiver: [M] server that each route enters.
        length: [M] number of links.
        leaves: [M] port by which each route leaves.
        enters: [M] port by which each route enters.
    """
    apart = sender != receiver
    nodes = int(max(sender.max(), receiver.max())) + 1
    kept = apart & _least_of(sender.astype(np.int64) * nodes + receiver, length, apart)
    for port, other in ((leaves, receiver), (enters, sender)):
        idle = apart & ~np.isin(port, port[kept])
        kept |= idle & _least_of(port * nodes + other, length, idle)
    return kept


def _least_of(
    group: NDArray[np.int64], length: NDArray, among: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """[M] whether a length is the smallest in its group, counting only `among`."""
    _, place = np.unique(group, return_inverse=True)
    least = np.full(place.max(initial=0) + 1, np.iinfo(np.int64).max)
    np.minimum.at(least, place[among], length[among])
    return length == least[place]
