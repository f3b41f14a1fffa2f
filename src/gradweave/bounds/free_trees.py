"""Lower bounds that hold for every choice of trees."""

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradweave.bounds.bound import Bound, Cut, Distance, Ports, best
from gradweave.errors import OptionError
from gradweave.schedule.schedule import COLLECTIVES, Collective
from gradweave.topology.routes import hop_distances
from gradweave.topology.topology import Integers, Topology


def free_trees(
    topology: Topology,
    collective: Collective = "all_reduce",
    *,
    overlap: bool = False,
    aggregating_switches: bool = False,
    forwarding_servers: bool = False,
    pieces_per_server: int = 1,
) -> Bound:
    """Fewest rounds that any schedule with one piece per server can have, whatever its trees.

    Per stage the larger of two: the **cut** bound, the smallest T such that for every server v the
    largest flow into v is N, from a super-source that gives each server one piece, over link
    directions of T times their capacity; and the **depth** bound, the most transfers that a piece
    needs between two servers. An all-reduce adds up both stages; with overlap it has bounds of its
    own: 2N(N−1) transfers over all server ports, N pieces out of every set of servers, and the
    depth of one stage.

    Args:
        topology: the network.
        collective: a stage, or both.
        overlap: whether an all-reduce may run both stages at once.
        aggregating_switches: whether switches add what they receive and send on what they hold.
            That saves the servers transfers, so the count of all transfers bounds nothing.
        forwarding_servers: whether routes may pass through servers, as the unmerged baselines' do.
            One transfer then goes any distance, so depth bounds nothing.
        pieces_per_server: pieces that each server is the root of, c; every count of pieces grows
            by this factor.

    Returns:
        The bound, with its kind and certificate.

    Source: docs/concepts/bounds.md.

    >>> import gradweave as gw
    >>> print(gw.bounds.free_trees(gw.topology.bcube(n=3, k=1)))
    at least 8 rounds (cut): 8 pieces must leave server 0, 2 a round; then 8 pieces must enter
    server 0, 2 a round
    """
    if collective not in COLLECTIVES:
        raise OptionError(
            f"collective: expected one of {', '.join(COLLECTIVES)}, got {collective!r}"
        )
    depth = _depth(topology, forwarding_servers)
    if collective == "all_reduce" and overlap:
        leaves = best(_every_piece_leaves(topology, pieces_per_server), depth)
        if aggregating_switches:
            return leaves
        return best(_ports(topology, pieces_per_server), leaves)
    forward = topology.capacity
    gather = (
        best(_cut(topology, forward, pieces_per_server, leaving=True), depth)
        if collective != "reduce_scatter"
        else None
    )
    if collective == "all_gather":
        assert gather is not None
        return gather
    backward = forward[topology.opposite]
    if gather is not None and np.array_equal(forward, backward):
        mirrored = _mirrored(gather)
        return mirrored.then(gather)
    scatter = best(_cut(topology, backward, pieces_per_server, leaving=False), depth)
    return scatter if gather is None else scatter.then(gather)


def _mirrored(gather: Bound) -> Bound:
    """The reduce-scatter's bound where links are alike both ways: the all-gather's, reversed."""
    (certificate,) = gather.certificates
    if isinstance(certificate, Cut):
        certificate = dataclasses.replace(certificate, leaving=not certificate.leaving)
    elif isinstance(certificate, Distance):
        certificate = Distance(certificate.target, certificate.source, certificate.transfers)
    return Bound(gather.rounds, gather.kind, (certificate,))


def _depth(topology: Topology, forwarding_servers: bool) -> Bound:
    hops = hop_distances(topology)
    if forwarding_servers:
        hops = np.minimum(hops, 1)
    source, target = divmod(int(hops.argmax()), len(hops))
    farthest = int(hops[source, target])
    ends = int(topology.servers[source]), int(topology.servers[target])
    return Bound(farthest, "depth", (Distance(*ends, farthest),))


def _cut(topology: Topology, capacity: Integers, per_server: int, *, leaving: bool) -> Bound:
    """The cut bound of an all-gather over link directions of the given capacity.

    Starts from the cuts round single servers and raises the round count by the cut that each
    failing flow exposes, so that about one flow per server is computed.
    """
    servers, pieces = topology.servers, topology.num_servers * per_server
    entering = np.bincount(topology.target, capacity, minlength=topology.num_nodes)[servers].astype(
        np.int64
    )
    tightest = int(np.argmin(entering))
    rounds = -(-(pieces - per_server) // int(entering[tightest]))
    inside = np.ones(topology.num_nodes, bool)
    inside[servers[tightest]] = False
    flow = _Flow(topology, capacity, per_server)
    for server in servers.tolist():
        while True:
            reached, value = flow.cut(server, rounds)
            if value >= pieces:
                break
            crossing = int(capacity[reached[topology.source] & ~reached[topology.target]].sum())
            rounds = -(-int(reached[servers].sum()) * per_server // crossing)
            inside = reached
    crossing = int(capacity[inside[topology.source] & ~inside[topology.target]].sum())
    crossed_by = int(inside[servers].sum()) * per_server
    if inside.sum() * 2 > topology.num_nodes:
        inside, leaving = ~inside, not leaving
    return Bound(rounds, "cut", (_certificate(topology, inside, crossed_by, crossing, leaving),))


def _certificate(
    topology: Topology, inside: NDArray[np.bool_], pieces: int, crossing: int, leaving: bool
) -> Cut:
    nodes = np.flatnonzero(inside)
    servers, switches = (
        tuple(nodes[topology.is_server[nodes] == kind].tolist()) for kind in (True, False)
    )
    return Cut(servers, switches, pieces, crossing, leaving)


class _Flow:
    """The largest flow from a super-source over all servers to one node, for many nodes."""

    def __init__(self, topology: Topology, capacity: NDArray, per_server: int) -> None:
        from ortools.graph.python import max_flow

        self.topology, self.capacity = topology, capacity.astype(np.int64)
        self.source = topology.num_nodes
        self.solver: Any = max_flow.SimpleMaxFlow()  # its stubs misstate the arrays' types
        self.links = self.solver.add_arcs_with_capacity(
            topology.source, topology.target, self.capacity
        )
        count = topology.num_servers
        self.solver.add_arcs_with_capacity(
            np.full(count, self.source, np.int32),
            topology.servers,
            np.full(count, per_server, np.int64),
        )
        self.rounds = 1

    def cut(self, target: int, rounds: int) -> tuple[NDArray[np.bool_], int]:
        """[V] nodes on the source's side of a smallest cut, and the largest flow to a node."""
        if rounds != self.rounds:
            self.solver.set_arcs_capacity(self.links, self.capacity * rounds)
            self.rounds = rounds
        self.solver.solve(self.source, target)
        value = self.solver.optimal_flow()
        reached = np.zeros(self.topology.num_nodes + 1, bool)
        reached[self.solver.get_source_side_min_cut()] = True
        return reached[:-1], value


def _ports(topology: Topology, per_server: int) -> Bound:
    count = topology.num_servers
    leaving = int(topology.capacity[topology.is_server[topology.source]].sum())
    entering = int(topology.capacity[topology.is_server[topology.target]].sum())
    ports = min(leaving, entering)
    transfers = 2 * count * (count - 1) * per_server
    return Bound(-(-transfers // ports), "ports", (Ports(transfers, ports),))


def _every_piece_leaves(topology: Topology, per_server: int) -> Bound:
    """Each of N pieces must leave every set of servers.

    In its reduce where its root is outside, else in its copy.
    """
    from ortools.graph.python import max_flow

    pieces = topology.num_servers * per_server
    solver: Any = max_flow.SimpleMaxFlow()
    solver.add_arcs_with_capacity(
        topology.source, topology.target, topology.capacity.astype(np.int64)
    )
    first, *others = topology.servers.tolist()
    smallest, near = None, np.zeros(topology.num_nodes, bool)
    for other in others:
        for ends in ((first, other), (other, first)):
            solver.solve(*ends)
            value = solver.optimal_flow()
            if smallest is None or value < smallest:
                smallest, near = value, np.zeros(topology.num_nodes, bool)
                near[solver.get_source_side_min_cut()] = True
    assert smallest is not None
    return Bound(
        -(-pieces // smallest),
        "cut",
        (_certificate(topology, near, pieces, smallest, leaving=True),),
    )
