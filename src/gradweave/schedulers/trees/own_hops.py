"""Hops between servers that share no link, by splitting off switches one at a time."""

import itertools
from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from gradweave.bounds.distances import node_distances
from gradweave.schedulers.demand_tuning import TUNING
from gradweave.topology.topology import Integers, Topology
from gradweave.topology.units import ROUNDING


def units_of(topology: Topology) -> NDArray[np.int64] | None:
    """[L] bandwidths as small integer multiples of the smallest, or None if they are not."""
    bandwidth = topology.bandwidth_bytes_per_s.astype(np.float64)
    units = bandwidth / bandwidth.min()
    whole = np.rint(units)
    near = np.abs(units - whole) <= ROUNDING * whole
    return whole.astype(np.int64) if near.all() and whole.max() <= TUNING.max_units else None


class OwnHops:
    """Hops that each have units of bandwidth of their own on all links of their route.

    A switch is split off: a unit into it and a unit out of it are merged into a unit past it, if as
    many units as before still flow from the root to every server (or from every server to it). If
    as many units enter each switch as leave it, all can be paired.

    Args:
        topology: the network.
        root: node id of a server.
        towards: whether data moves to the root.
        units: [L] units of each link direction.
        rng: randomises the order in which pairs are tried.

    Source: Bang-Jensen, Frank and Jackson, "Preserving and increasing local edge-connectivity in
        mixed graphs", 1995; for schedules Zhao et al., "ForestColl", 2024.
    """

    def __init__(
        self,
        topology: Topology,
        root: int,
        towards: bool,
        units: Integers,
        rng: np.random.Generator,
    ) -> None:
        from gradweave.schedulers.trees.disjoint_trees_kernel import most_that_flows

        self._topology, self._root, self._towards = topology, root, towards
        self._servers = topology.servers.astype(np.int64)
        source, target = topology.source.astype(np.int64), topology.target.astype(np.int64)
        self._ends = (target, source) if towards else (source, target)
        self._arcs = np.zeros((topology.num_nodes,) * 2, np.int64)
        np.add.at(self._arcs, self._ends, units)
        np.fill_diagonal(self._arcs, 0)
        self._routes: defaultdict[tuple[int, int], list[tuple[int, ...]]] = defaultdict(list)
        for link, (u, v, count) in enumerate(zip(*self._ends, units, strict=True)):
            self._routes[int(u), int(v)] += [(link,)] * int(count)
        most = int(self._arcs.sum())
        self.count = most_that_flows(self._arcs, root, self._servers, most)
        """Units that flow to the server with the smallest max-flow."""
        if self.count:
            # The switches farthest from servers first, so that double links between racks are
            # handled.
            switches = rng.permutation(topology.switches)
            away = _links_to_servers(topology)[switches]
            for switch in switches[np.argsort(-away, kind="stable")].tolist():
                self._split_off(switch, rng)

    @property
    def between_servers(self) -> NDArray[np.int64]:
        """[N, N] units from server to server, by rank; reversed if data moves to the root."""
        return np.ascontiguousarray(self._arcs[np.ix_(self._servers, self._servers)])

    @property
    def links_of_several_rates(self) -> int:
        """Number of link directions that hops of different rates pass.

        While a slow hop is under way, no hop that needs the whole link can start.
        """
        bandwidth = self._topology.bandwidth_bytes_per_s
        routes = itertools.chain.from_iterable(self._routes.values())
        passed = {(link, bandwidth[list(one)].min()) for one in routes for link in one}
        return len(passed) - len({link for link, _ in passed})

    def take(self, source: int, target: int) -> tuple[int, ...]:
        """The links of a hop from one server to another, as data moves; uses up one of its units.

        Args:
            source: rank.
            target: rank.
        """
        a, b = int(self._servers[source]), int(self._servers[target])
        return self._routes[b, a].pop()[::-1] if self._towards else self._routes[a, b].pop()

    def _split_off(self, switch: int, rng: np.random.Generator) -> None:
        """Pairs units into a switch with units out of it, as many at a time as possible."""
        from gradweave.schedulers.trees.disjoint_trees_kernel import splits

        arcs = self._arcs
        for u in rng.permutation(np.flatnonzero(arcs[:, switch])).tolist():
            for whole in (True, False):
                for v in self._partners(u, switch, rng):
                    while most := int(min(arcs[u, switch], arcs[switch, v])):
                        units = most if whole else 1
                        ends = u, switch, v
                        if not splits(arcs, self._root, self._servers, self.count, *ends, units):
                            break
                        for _ in range(units):
                            routes = self._routes[u, switch].pop(), self._routes[switch, v].pop()
                            if u != v:
                                self._routes[u, v].append(self._without_cycles(sum(routes, ())))

    def _partners(self, u: int, switch: int, rng: np.random.Generator) -> list[int]:
        """Nodes to which units from u over a switch may be sent directly, in the order to try them.

        First those to which u has other units, then those with most units in common: a transfer
        that takes part of a port leaves the rest to equally slow transfers, which should go to the
        same server.
        """
        there = rng.permutation(np.flatnonzero(self._arcs[switch]))
        units = np.minimum(self._arcs[switch, there], self._arcs[u, switch])
        return there[np.lexsort((-units, self._arcs[u, there] == 0, there == u))].tolist()

    def _without_cycles(self, route: tuple[int, ...]) -> tuple[int, ...]:
        """The links of a route, without any cycles."""
        kept: list[int] = []
        seen = [int(self._ends[0][route[0]])]
        for link in route:
            end = int(self._ends[1][link])
            kept.append(link)
            seen.append(end)
            if end in seen[:-1]:
                first = seen.index(end)
                del seen[first + 1 :], kept[first:]
        return tuple(kept)


def _links_to_servers(topology: Topology) -> NDArray[np.int64]:
    """[V] fewest links from each node to a server."""
    ones, servers = np.ones(len(topology.source)), topology.servers
    ends = topology.source.astype(np.int64), topology.target.astype(np.int64)
    return node_distances(servers, ones, ends, topology.num_nodes).min(axis=1).astype(np.int64)
