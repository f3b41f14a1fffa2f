"""Largest flows and smallest cuts over links of integer bandwidth, however large."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradweave.topology.topology import Topology

LARGEST_FLOW = 1 << 62
"""Flows up to this are found in 64-bit integers; larger ones in Python's, far more slowly."""


class Flows:
    """Largest flows and smallest cuts, over links of integer bandwidth.

    The super-source has an arc to each server. Sums that may not fit into 64 bits come as Python's
    integers, for which networkx stands in for OR-Tools.
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
                np.zeros(len(self.tail), np.int64),  # any will do: `cut` sets them all
            )

    def leaving(self, inside: NDArray[np.bool_]) -> int:
        """Bandwidth that leaves a set of nodes."""
        crosses = inside[self.topology.source] & ~inside[self.topology.target]
        return int(self.bandwidth[crosses].sum())

    def cut(
        self, source: int, target: int, per_unit: int, per_server: int
    ) -> tuple[int, NDArray[np.bool_]]:
        """The largest flow, and [V] the source's side of a smallest cut.

        Args:
            source: a node, or V for the super-source.
            target: a node.
            per_unit: what a unit of bandwidth carries.
            per_server: what the super-source gives each server.
        """
        servers = np.full(self.topology.num_servers, per_server, self.bandwidth.dtype)
        capacity = np.concatenate([self.bandwidth * per_unit, servers])
        near = np.zeros(self.topology.num_nodes + 1, bool)
        if self.solver is None:
            value, reached = self._cut_of_any_size(capacity, source, target)
        else:
            self.solver.set_arcs_capacity(self.arcs, capacity)
            self.solver.solve(source, target)
            value = self.solver.optimal_flow()
            reached = self.solver.get_source_side_min_cut()
        near[reached] = True
        return value, near[:-1]

    def _cut_of_any_size(
        self, capacity: NDArray, source: int, target: int
    ) -> tuple[int, list[int]]:
        import networkx as nx

        graph = nx.DiGraph()
        for tail, head, room in zip(self.tail.tolist(), self.head.tolist(), capacity, strict=True):
            graph.add_edge(tail, head, capacity=int(room))
        value, (reached, _) = nx.minimum_cut(graph, source, target)
        return int(value), list(reached)
