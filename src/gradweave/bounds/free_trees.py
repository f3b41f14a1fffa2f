"""Lower bounds that hold for every choice of trees."""

import dataclasses

import numpy as np

from gradweave.bounds.bound import Bound, Cut, Distance, Ports, best
from gradweave.bounds.flows import Flows, nodes_inside
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
    maximum flow into v is N, from a super-source that gives each server one piece, over link
    directions of T times their capacity; and the **depth** bound, the most transfers that a piece
    needs between two servers. An all-reduce adds up both stages; with overlap it has bounds of its
    own: 2N(N−1) transfers over all server ports, N pieces out of every set of servers, and the
    depth of one stage.

    Args:
        topology: the network.
        collective: a stage, or both.
        overlap: whether an all-reduce may run both stages at once.
        aggregating_switches: whether switches aggregate and copy like servers. That saves the
            servers transfers, so the number of all transfers gives no bound.
        forwarding_servers: whether routes may pass through servers, as the unmerged baselines' do.
            One transfer then covers any distance, so depth gives no bound.
        pieces_per_server: c, pieces that each server is the root of; multiplies all counts of
            pieces.

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

    Starts from the cuts around single servers and raises the round count by the cut that each
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
    flows = Flows(topology, capacity.astype(np.int64))
    for server in servers.tolist():
        while True:
            value, reached = flows.cut(topology.num_nodes, server, rounds, per_server)
            if value >= pieces:
                break
            rounds = -(-int(reached[servers].sum()) * per_server // flows.leaving(reached))
            inside = reached
    pieces_across = int(inside[servers].sum()) * per_server
    capacity_across = flows.leaving(inside)
    if inside.sum() * 2 > topology.num_nodes:
        inside, leaving = ~inside, not leaving
    certificate = Cut(*nodes_inside(topology, inside), pieces_across, capacity_across, leaving)
    return Bound(rounds, "cut", (certificate,))


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
    pieces = topology.num_servers * per_server
    smallest, inside = Flows(topology, topology.capacity.astype(np.int64)).narrowest_cut()
    certificate = Cut(*nodes_inside(topology, inside), pieces, smallest, leaving=True)
    return Bound(-(-pieces // smallest), "cut", (certificate,))
