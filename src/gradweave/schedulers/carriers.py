"""Carriers: the trees and paths over which parts of blocks move."""

import dataclasses
import itertools
from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from gradweave.bounds.demands.demand_bound import demand_bound
from gradweave.bounds.seconds_bound import SecondsBound
from gradweave.errors import NoScheduleError
from gradweave.schedulers.demand_tuning import TUNING
from gradweave.schedules.demand import Demand
from gradweave.schedules.schedule import COPY, REDUCE
from gradweave.topology.topology import Topology

Route = Callable[[int, int], tuple[int, ...]]
"""Maps the ranks of two servers to the links of the hop from the first to the second."""


@dataclasses.dataclass(frozen=True)
class Carrier:
    """The transfers that move a part of a block, each after those that it waits for."""

    root: int
    """Node id of a server that holds the complete part at some time."""
    routes: tuple[tuple[int, ...], ...]
    """Links of each transfer, in the order in which the data passes."""
    ops: tuple[int, ...]
    """`REDUCE` or `COPY` for each transfer."""
    waits: tuple[tuple[int, ...], ...]
    """For each transfer, the other transfers that it waits for."""


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
    """Carriers of all blocks, and a bound that shows how little other carriers could gain."""

    topology: Topology
    demand: Demand
    block: NDArray[np.int64]
    """[C] the block of each carrier, ascending."""
    carriers: tuple[Carrier, ...]
    bytes: NDArray[np.float64]
    """[C] bytes of each carrier; the carriers of a block add up to its size."""
    bound: SecondsBound
    lengths: tuple[NDArray[np.float64], ...] = ()
    """[L] link lengths (the program's duals) for each stage, if jobs end in stages."""

    @property
    def busiest_s(self) -> float:
        """Seconds for which the bytes keep the busiest link busy."""
        load = np.zeros(len(self.topology.source))
        for carrier, size in zip(self.carriers, self.bytes.tolist(), strict=True):
            np.add.at(load, np.concatenate([np.array(one) for one in carrier.routes]), size)
        return float((load / self.topology.bandwidth_bytes_per_s).max())


def even_plan(topology: Topology, demand: Demand, carriers: Iterable[tuple[int, Carrier]]) -> Plan:
    """Blocks divided evenly among their carriers.

    Args:
        topology: the network.
        demand: the blocks to sum and move.
        carriers: blocks, ascending, with the carriers of each.
    """
    number, each = zip(*carriers, strict=True)
    block = np.array(number, np.int64)
    share = demand.bytes / np.bincount(block, minlength=len(demand))
    return Plan(topology, demand, block, each, share[block], demand_bound(topology, demand))


def path_carrier(topology: Topology, path: list[int], route: Route) -> Carrier:
    """The carrier of a path: one hop after the other.

    Args:
        topology: the network.
        path: ranks of its servers, at least two.
        route: gives the links of each hop.
    """
    routes = tuple(route(a, b) for a, b in itertools.pairwise(path))
    waits = tuple((number - 1,) if number else () for number in range(len(routes)))
    return Carrier(int(topology.servers[path[0]]), routes, (COPY,) * len(routes), waits)


class Relayed:
    """Cheapest paths over servers that relay.

    Args:
        cost: [N, N] cost of the hop from each server to each other, infinite if there is none.
        relays: [R] ranks of servers that may relay, ascending.
    """

    def __init__(self, cost: NDArray[np.float64], relays: NDArray[np.int64]) -> None:
        self._relays = relays
        cost = cost[np.ix_(relays, relays)].copy()
        self._before = np.repeat(np.arange(len(relays))[:, None], len(relays), 1)
        # Floyd and Warshall's algorithm. Only a true gain replaces a path, so that rounding and
        # ties keep the path with fewer relays.
        for over in range(len(relays)):
            through = cost[:, over, None] + cost[over]
            shorter = through < cost * (1 - TUNING.relay_gain)
            cost[shorter] = through[shorter]
            by_way = np.broadcast_to(self._before[over], cost.shape)
            self._before[shorter] = by_way[shorter]
        np.fill_diagonal(cost, 0.0)
        self._reached = np.isfinite(cost)

    def connected(self, servers: NDArray[np.int64]) -> bool:
        """Whether all of some servers reach each other.

        Args:
            servers: ranks, ascending, of servers that may relay.
        """
        places = np.searchsorted(self._relays, servers)
        return bool(self._reached[np.ix_(places, places)].all())

    def path(self, source: int, target: int) -> list[int]:
        """Ranks of the servers on the cheapest path, source and target included.

        Raises:
            NoScheduleError: if there is no path.
        """
        start, at = np.searchsorted(self._relays, [source, target]).tolist()
        if not self._reached[start, at]:
            raise NoScheduleError(
                f"no path from the server of rank {source} to that of rank {target} over servers "
                "that may relay"
            )
        path = [target]
        while at != start:
            at = int(self._before[start, at])
            path.append(int(self._relays[at]))
        return path[::-1]


@dataclasses.dataclass(frozen=True, eq=False)
class TreePair:
    """A tree to a root and a tree from it among some servers.

    Leaves that do not contribute, or are no destinations, are pruned: nothing is left of the first
    tree if only the root contributes.
    """

    group: NDArray[np.int64]
    """[G] ranks of the servers, including those that relay."""
    root: int
    """Place in the group."""
    towards: NDArray[np.int64]
    """[G] place of each server's successor towards the root; −1 at the root."""
    given: NDArray[np.bool_]
    """[G] whether it contributes."""
    away: NDArray[np.int64]
    """[G] place of the server from which each receives its part; −1 at the root."""
    wanted: NDArray[np.bool_]
    """[G] whether it is a destination."""

    def carrier(self, topology: Topology, route: Route) -> Carrier:
        """The transfers: all contributions to the root, then the sum from it.

        Args:
            topology: the network.
            route: gives the links of each hop.
        """
        routes: list[tuple[int, ...]] = []
        ops: list[int] = []
        waits: list[tuple[int, ...]] = []
        ranks = self.group.tolist()
        into: dict[int, list[int]] = {}  # by place: the transfers whose data it adds
        for server in reversed(_from_root(self.towards, self.root, self.given)):
            up = int(self.towards[server])
            # A server that does not contribute keeps the first part it receives and adds the rest.
            kept = self.given[up] or up in into
            first = into[up][:1] if kept and not self.given[up] else []
            waits.append((*into.get(server, ()), *first))
            into.setdefault(up, []).append(len(routes))
            routes.append(route(ranks[server], ranks[up]))
            ops.append(REDUCE if kept else COPY)
        got = {self.root: tuple(into.get(self.root, ()))}
        for server in _from_root(self.away, self.root, self.wanted):
            up = int(self.away[server])
            waits.append(got[up])
            got[server] = (len(routes),)
            routes.append(route(ranks[up], ranks[server]))
            ops.append(COPY)
        root = int(topology.servers[ranks[self.root]])
        return Carrier(root, tuple(routes), tuple(ops), tuple(waits))


def _from_root(parent: NDArray[np.int64], root: int, needed: NDArray[np.bool_]) -> list[int]:
    """Servers of a tree except its root, nearest first, without unneeded leaves."""
    kept = needed.copy()
    for server in np.flatnonzero(needed).tolist():
        up = int(parent[server])
        while up >= 0 and not kept[up]:
            kept[up], up = True, int(parent[up])
    children: dict[int, list[int]] = {}
    for server in np.flatnonzero(kept).tolist():
        if server != root:
            children.setdefault(int(parent[server]), []).append(server)
    order = [root]
    for server in order:
        order += children.get(server, ())
    return order[1:]
