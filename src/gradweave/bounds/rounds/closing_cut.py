"""Lower bounds from cuts that close in on a server, round by round."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradweave.bounds.bound import Bound, ClosingCut
from gradweave.topology.topology import Integers, Topology

MAX_WORK = 1_000_000
"""Limit on arcs over all rounds times servers; beyond it this bound takes longer than others."""


def closing_cut(
    topology: Topology, capacity: Integers, rounds: int, per_server: int
) -> Bound | None:
    """A bound on an all-gather that exceeds a known bound, or None if the flows prove no more.

    For each server v, computes the maximum flow from all roots to v through a network with one copy
    per round: a server keeps what it has received and can send it on from the next round. If that
    flow is smaller than the number of pieces, a minimum cut proves that this many rounds are too
    few. Transfers may pass only through switches.

    Args:
        topology: the network.
        capacity: [L] of each link direction.
        rounds: the known bound.
        per_server: pieces rooted at each server.

    Source: docs/concepts/bounds.md; Ford and Fulkerson 1958, flows over time.
    """
    best: ClosingCut | None = None
    pending = topology.servers[::-1].tolist()
    while pending:
        if rounds * (len(topology.source) + topology.num_servers) * len(pending) > MAX_WORK:
            break
        timed = _TimedFlows(topology, capacity, rounds, per_server)
        cut = None
        while pending and (cut := timed.cut(pending[-1])) is None:
            pending.pop()
        if cut is not None:
            best, rounds = cut, rounds + 1
    return Bound(rounds, "closing_cut", (best,)) if best else None


class _TimedFlows:
    """Maximum flows through a network with one copy per round.

    Node x of round t is t·V + x: a server before that round, or a switch during it. Servers have
    one more copy, after the last round; the super-source comes last.
    """

    def __init__(
        self, topology: Topology, capacity: Integers, rounds: int, per_server: int
    ) -> None:
        from ortools.graph.python import max_flow

        self.topology, self.capacity, self.rounds = topology, capacity, rounds
        self.pieces = topology.num_servers * per_server
        nodes, servers = topology.num_nodes, topology.servers.astype(np.int64)
        starts = np.arange(rounds)[:, None] * nodes
        into_server = topology.is_server[topology.target]
        self.source = nodes * (rounds + 1)
        tails = (starts + topology.source, starts + servers, np.full(len(servers), self.source))
        heads = (
            starts + topology.target + into_server * nodes,
            starts + servers + nodes,
            servers,
        )
        room = (
            np.tile(capacity, rounds),
            np.full(rounds * len(servers), self.pieces),
            np.full(len(servers), per_server),
        )
        tail, head, limit = (
            np.concatenate([part.ravel() for part in parts]) for parts in (tails, heads, room)
        )
        self.solver: Any = max_flow.SimpleMaxFlow()  # its stubs misstate the arrays' types
        self.solver.add_arcs_with_capacity(
            tail.astype(np.int32), head.astype(np.int32), limit.astype(np.int64)
        )

    def cut(self, server: int) -> ClosingCut | None:
        """Why not all pieces reach a server in time, or None if they do."""
        topology = self.topology
        self.solver.solve(self.source, self.rounds * topology.num_nodes + server)
        if self.solver.optimal_flow() >= self.pieces:
            return None
        inside = np.ones(self.source + 1, bool)
        inside[self.solver.get_source_side_min_cut()] = False
        inside = inside[:-1].reshape(self.rounds + 1, topology.num_nodes)
        after = np.where(topology.is_server, inside[1:], inside[:-1])
        crosses = ~inside[:-1, topology.source] & after[:, topology.target]
        outside = topology.num_servers - int(inside[0, topology.servers].sum())
        return ClosingCut(
            server,
            outside * (self.pieces // topology.num_servers),
            tuple((crosses @ self.capacity.astype(np.int64)).tolist()),
            _servers_of(topology, inside),
            tuple(tuple(np.flatnonzero(row & ~topology.is_server).tolist()) for row in inside[:-1]),
        )


def _servers_of(topology: Topology, inside: NDArray[np.bool_]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(topology.servers[row].tolist()) for row in inside[:, topology.servers])
