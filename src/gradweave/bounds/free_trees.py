"""Lower bounds that hold for every choice of trees."""

import functools

import numpy as np
from numpy.typing import NDArray

from gradweave.bounds.bound import Bound, Cut, Distance, Ports, best, reversed_certificate
from gradweave.bounds.closing_cut import closing_cut
from gradweave.bounds.flows import Flows, NearbyFlows, nodes_inside
from gradweave.bounds.late_entry import late_entry
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

    Per stage the largest of three. The **cut** bound is the smallest T such that for every server v
    the maximum flow into v is N, from a super-source that gives each server one piece, over link
    directions of T times their capacity. The **depth** bound is the most transfers that a piece
    needs between two servers. The **late-entry** bound counts what must still happen after the last
    pieces have crossed a cut, and before the first can. An all-reduce adds up both stages; with
    overlap it has bounds of its own: 2N(N−1) transfers over all server ports, N pieces out of every
    set of servers, and the depth of one stage.

    Args:
        topology: the network.
        collective: a stage, or both.
        overlap: whether an all-reduce may run both stages at once.
        aggregating_switches: whether switches aggregate and copy like servers. That saves the
            servers transfers, so the number of all transfers gives no bound, and neither does
            late entry.
        forwarding_servers: whether routes may pass through servers, as the unmerged baselines' do.
            One transfer then covers any distance, so depth and late entry give no bound.
        pieces_per_server: c, pieces that each server is the root of; multiplies all counts of
            pieces.

    Returns:
        The bound, with its kind and certificate.

    Source: docs/concepts/bounds.md.

    >>> import gradweave as gw
    >>> print(gw.bounds.free_trees(gw.topology.bcube(n=3, k=1)))
    at least 8 rounds (cut), since 8 pieces must leave server 0 at 2 a round, and the reverse in
    the other stage
    """
    if collective not in COLLECTIVES:
        raise OptionError(
            f"collective: expected one of {', '.join(COLLECTIVES)}, got {collective!r}"
        )
    if collective == "all_reduce" and overlap:
        depth = _depth(topology, _hops(topology, forwarding_servers))
        leaves = best(_every_piece_leaves(topology, pieces_per_server), depth)
        if aggregating_switches:
            return leaves
        return best(_ports(topology, pieces_per_server), leaves)
    alike = np.array_equal(topology.capacity, topology.capacity[topology.opposite])
    spreads = not (forwarding_servers or aggregating_switches)
    bound_stage = functools.partial(
        _stage, topology, pieces_per_server, forwarding_servers, spreads
    )
    if collective == "all_gather":
        return bound_stage(backward=False)
    scatter = _mirrored(bound_stage(backward=not alike))
    return scatter if collective == "reduce_scatter" else scatter.then(bound_stage(backward=False))


def _hops(topology: Topology, forwarding_servers: bool) -> NDArray[np.int32]:
    """[N, N] least number of transfers from server to server."""
    hops = hop_distances(topology)
    return np.minimum(hops, 1) if forwarding_servers else hops


@functools.lru_cache(maxsize=4)  # each strategy asks for the bound of the same network again
def _stage(
    topology: Topology, per_server: int, forwarding_servers: bool, spreads: bool, backward: bool
) -> Bound:
    """The bound of an all-gather over all link directions, or over their opposites.

    Args:
        topology: the network.
        per_server: pieces of each server.
        forwarding_servers: whether one transfer covers any distance.
        spreads: whether pieces spread from server to server alone, by one transfer a round.
        backward: whether each direction has its opposite's capacity.
    """
    capacity = topology.capacity[topology.opposite] if backward else topology.capacity
    hops = _hops(topology, forwarding_servers)
    cut, tightest = _cut(topology, capacity, per_server)
    known = best(cut, _depth(topology, hops))
    if not spreads:
        return known
    known = late_entry(topology, capacity, hops, tightest, known.rounds, per_server) or known
    return closing_cut(topology, capacity, known.rounds, per_server) or known


def _mirrored(gather: Bound) -> Bound:
    """The reduce-scatter's bound, of the all-gather over opposite directions: all is reversed."""
    (certificate,) = gather.certificates
    certificate = reversed_certificate(certificate) or certificate
    return Bound(gather.rounds, gather.kind, (certificate,))


def _depth(topology: Topology, hops: NDArray[np.int32]) -> Bound:
    source, target = divmod(int(hops.argmax()), len(hops))
    farthest = int(hops[source, target])
    ends = int(topology.servers[source]), int(topology.servers[target])
    return Bound(farthest, "depth", (Distance(*ends, farthest),))


def _cut(
    topology: Topology, capacity: Integers, per_server: int
) -> tuple[Bound, NDArray[np.bool_]]:
    """The cut bound of an all-gather, and [V] the set that its pieces must leave.

    Starts from the cuts around single servers and raises the round count by the cut that each
    failing flow exposes. A flow is computed for those servers that `NearbyFlows` cannot confirm.
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
    nearby = NearbyFlows(topology, flows.bandwidth)
    for server in servers.tolist():
        if nearby.confirms(server, rounds, pieces - per_server):
            continue
        while True:
            value, reached = flows.cut(topology.num_nodes, server, rounds, per_server)
            if value >= pieces:
                break
            rounds = -(-int(reached[servers].sum()) * per_server // flows.leaving(reached))
            inside = reached
        nearby.confirm(server)
    pieces_across = int(inside[servers].sum()) * per_server
    capacity_across = flows.leaving(inside)
    leaving = inside.sum() * 2 <= topology.num_nodes
    boundary = nodes_inside(topology, inside if leaving else ~inside)
    certificate = Cut(*boundary, pieces_across, capacity_across, bool(leaving))
    return Bound(rounds, "cut", (certificate,)), inside


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
