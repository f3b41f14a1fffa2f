"""Maximum flows and minimum cuts over links of integer bandwidth of any size."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradweave.topology.topology import Topology

MAX_INT64_FLOW = 1 << 62
"""Larger flows are computed with Python's integers instead of 64-bit ones, which is much slower."""

MAX_NEARBY = 1_000
"""Number of nodes after which the search for a path from a confirmed server gives up."""


class MaximumFlows:
    """Maximum flows and minimum cuts over a network's links.

    The super-source has an arc to each server. Bandwidths whose sums may not fit into 64 bits are
    Python integers, and networkx replaces OR-Tools for them.
    """

    def __init__(self, topology: Topology, bandwidth: NDArray) -> None:
        self.topology, self.bandwidth = topology, bandwidth
        servers = topology.servers
        self.tail = np.concatenate([topology.source, np.full(len(servers), topology.num_nodes)])
        self.head = np.concatenate([topology.target, servers])
        self.solver: Any = None
        if bandwidth.dtype != object:
            from ortools.graph.python import max_flow

            self.solver = max_flow.SimpleMaxFlow()  # its stubs misstate the arrays' types
            self.arcs = self.solver.add_arcs_with_capacity(
                self.tail.astype(np.int32),
                self.head.astype(np.int32),
                np.zeros(len(self.tail), np.int64),  # each `cut` sets the capacities
            )

    def leaving(self, inside: NDArray[np.bool_]) -> int:
        """Total bandwidth of the links that leave a set of nodes."""
        crosses = inside[self.topology.source] & ~inside[self.topology.target]
        return int(self.bandwidth[crosses].sum())

    def ratio(self, inside: NDArray[np.bool_]) -> Fraction:
        """Servers in a set [V] of nodes per bandwidth that leaves it."""
        return Fraction(int(inside[self.topology.servers].sum()), self.leaving(inside))

    def narrowest_cut(self) -> NDArray[np.bool_]:
        """[V] the set of servers, at least one of them missing, with the minimum bandwidth out.

        If bandwidths do not fit into 64 bits, the sets are found with rounded bandwidths and what
        leaves them is counted exactly; the result is at most L rounding units above the minimum.
        """
        # Either the set has the first server and misses another, or it misses the first and has
        # another.
        first, *others = self.topology.servers.tolist()
        pairs = [ends for other in others for ends in ((first, other), (other, first))]
        flows = self if self.solver else MaximumFlows(self.topology, self._rounded())
        return min((flows.cut(*ends, 1, 0)[1] for ends in pairs), key=self.leaving)

    def _rounded(self) -> NDArray[np.int64]:
        """[L] bandwidths rounded down to a unit for which their sum fits into 64 bits."""
        unit = -(-int(self.bandwidth.sum()) // (MAX_INT64_FLOW - 1))
        return np.array([limit // unit for limit in self.bandwidth.tolist()], np.int64)

    def cut(
        self, source: int, target: int, per_unit: int, per_server: int
    ) -> tuple[int, NDArray[np.bool_]]:
        """The maximum flow, and [V] the source's side of a minimum cut: the smallest such set.

        Args:
            source: a node, or V for the super-source.
            target: a node.
            per_unit: capacity per unit of bandwidth.
            per_server: capacity of each arc from the super-source.
        """
        servers = np.full(self.topology.num_servers, per_server, self.bandwidth.dtype)
        capacity = np.concatenate([self.bandwidth * per_unit, servers])
        source_side = np.zeros(self.topology.num_nodes + 1, bool)
        if self.solver is None:
            value, reached = self._cut_by_networkx(capacity, source, target)
        else:
            self.solver.set_arcs_capacity(self.arcs, capacity)
            self.solver.solve(source, target)
            value = self.solver.optimal_flow()
            reached = self.solver.get_source_side_min_cut()
        source_side[reached] = True
        return value, source_side[:-1]

    def _cut_by_networkx(
        self, capacity: NDArray, source: int, target: int
    ) -> tuple[int, list[int]]:
        import networkx as nx

        graph = nx.DiGraph()
        for tail, head, limit in zip(self.tail.tolist(), self.head.tolist(), capacity, strict=True):
            graph.add_edge(tail, head, capacity=int(limit))
        value, (reached, _) = nx.minimum_cut(graph, source, target)
        return int(value), list(reached)


class NearbyFlows:
    """Servers known to receive a whole flow, and a quick proof that a server near them does too.

    A set S of nodes is violated if its servers have more to send than the links out of S carry.
    If no violated set misses a confirmed server, a violated set that misses server v contains all
    confirmed servers. The flow from these to v crosses its boundary, so if that flow equals the
    amount that all servers except v must send, no such set exists. A few short paths often prove
    this, whereas a flow from all servers visits every link. Raising the capacity of all links keeps
    every confirmation valid.
    """

    def __init__(self, topology: Topology, bandwidth: NDArray) -> None:
        self.first_link = topology.first_link.tolist()
        self.target, self.opposite = topology.target.tolist(), topology.opposite.tolist()
        self.bandwidth = bandwidth.tolist()
        self.confirmed = bytearray(topology.num_nodes)

    def confirm(self, server: int) -> None:
        """Records that no violated set misses a server, as the server's flow has shown."""
        self.confirmed[server] = True

    def confirms(self, server: int, per_unit: int, needed: int) -> bool:
        """Whether paths from confirmed servers bring enough flow to a server; if so, records it.

        Args:
            server: an unconfirmed server.
            per_unit: capacity per unit of bandwidth.
            needed: amount that all other servers must send.
        """
        used: dict[int, int] = {}
        while needed > 0:
            path = self._path(server, per_unit, used)
            if not path:
                return False
            room = min(self._room(link, per_unit, used) for link in path)
            for link in path:
                used[link] = used.get(link, 0) + room
            needed -= room
        self.confirm(server)
        return True

    def _room(self, link: int, per_unit: int, used: dict[int, int]) -> int:
        back = used.get(self.opposite[link], 0)  # flow in the other direction, which cancels
        return self.bandwidth[link] * per_unit - used.get(link, 0) + back

    def _path(self, server: int, per_unit: int, used: dict[int, int]) -> list[int]:
        """The links of a shortest path with spare capacity from a confirmed server, or none."""
        onward = {server: -1}
        queue = [server]
        for node in queue:
            for out in range(self.first_link[node], self.first_link[node + 1]):
                before, link = self.target[out], self.opposite[out]
                if before in onward or self._room(link, per_unit, used) <= 0:
                    continue
                onward[before] = link
                if self.confirmed[before]:
                    path = []
                    while before != server:
                        path.append(onward[before])
                        before = self.target[onward[before]]
                    return path
                queue.append(before)
            if len(queue) > MAX_NEARBY:
                break
        return []


def worst_cut(
    flows: MaximumFlows,
    inside: NDArray[np.bool_],
    rounded: Callable[[Fraction], Fraction] = lambda ratio: ratio,
) -> tuple[Fraction, NDArray[np.bool_]]:
    """The largest |S| / (bandwidth that leaves S) over sets S of nodes, and the set [V].

    |S| counts servers, and at least one server is outside. At a ratio p/q each server's flow from
    the super-source (q for each server, p for each unit of bandwidth) is N·q unless some set that
    misses the server has a larger ratio. The smallest cut then exposes that set, and its ratio is
    the next. Ratios rise and there are finitely many cuts, so the iteration ends. By then, each
    server's flow has been computed at the last ratio or a smaller one, unless `NearbyFlows`
    confirms the server.

    Args:
        flows: the network.
        inside: [V] a set to start from.
        rounded: the smallest ratio of interest that is at least a given one.

    Source: Newton's iteration on ratios (Dinkelbach 1967).
    """
    topology, servers = flows.topology, flows.topology.servers

    worst, nearby = rounded(flows.ratio(inside)), NearbyFlows(topology, flows.bandwidth)
    for server in servers.tolist():
        if nearby.confirms(server, worst.numerator, (len(servers) - 1) * worst.denominator):
            continue
        while True:
            ends = topology.num_nodes, server
            value, reached = flows.cut(*ends, worst.numerator, worst.denominator)
            if value == len(servers) * worst.denominator:
                break
            inside, worst = reached, rounded(flows.ratio(reached))
        nearby.confirm(server)
    return worst, inside


def nodes_inside(
    topology: Topology, inside: NDArray[np.bool_]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The servers and the switches in a set of nodes [V]."""
    nodes = np.flatnonzero(inside)
    is_server = topology.is_server[nodes]
    return tuple(nodes[is_server].tolist()), tuple(nodes[~is_server].tolist())
