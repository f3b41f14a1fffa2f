"""Maximum flows and minimum cuts over links of integer bandwidth, however large."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradweave.topology.topology import Topology

MAX_INT64_FLOW = 1 << 62
"""Flows up to this are computed in 64-bit integers; larger ones in Python's, far more slowly."""


class Flows:
    """Maximum flows and minimum cuts over a network's links.

    The super-source has an arc to each server. Bandwidths whose sums may not fit into 64 bits are
    Python's integers, for which networkx takes the place of OR-Tools.
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
                np.zeros(len(self.tail), np.int64),  # set by each `cut`
            )

    def leaving(self, inside: NDArray[np.bool_]) -> int:
        """Bandwidth that leaves a set of nodes."""
        crosses = inside[self.topology.source] & ~inside[self.topology.target]
        return int(self.bandwidth[crosses].sum())

    def narrowest_cut(self) -> tuple[int, NDArray[np.bool_]]:
        """The least bandwidth that leaves a set of servers that misses one, and the set [V]."""
        first, *others = self.topology.servers.tolist()
        pairs = [ends for other in others for ends in ((first, other), (other, first))]
        return min((self.cut(*ends, 1, 0) for ends in pairs), key=lambda cut: cut[0])

    def cut(
        self, source: int, target: int, per_unit: int, per_server: int
    ) -> tuple[int, NDArray[np.bool_]]:
        """The maximum flow, and [V] the source's side of a minimum cut: the smallest such set.

        Args:
            source: a node, or V for the super-source.
            target: a node.
            per_unit: capacity of a unit of bandwidth.
            per_server: capacity of each arc of the super-source.
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


def nodes_inside(
    topology: Topology, inside: NDArray[np.bool_]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The servers, and the switches, of a set of nodes [V]."""
    nodes = np.flatnonzero(inside)
    is_server = topology.is_server[nodes]
    return tuple(nodes[is_server].tolist()), tuple(nodes[~is_server].tolist())
