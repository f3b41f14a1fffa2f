"""Lower bounds that hold for any choice of trees."""

import functools
import math
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from gradweave.bounds.bound import Bound, Cut, Distance, Ports, best, reversed_certificate
from gradweave.bounds.flows import MaximumFlows, nodes_inside, worst_cut
from gradweave.bounds.rounds.closing_cut import closing_cut
from gradweave.bounds.rounds.late_entry import late_entry
from gradweave.schedules.schedule import Collective, check_collective
from gradweave.topology.routes import hop_distances
from gradweave.topology.spec import TopologyLike, as_topology
from gradweave.topology.topology import Integers, Topology
from gradweave.topology.translations import Translations


def free_trees(
    topology: TopologyLike,
    collective: Collective = "all_reduce",
    *,
    overlap: bool = False,
    aggregating_switches: bool = False,
    forwarding_servers: bool = False,
    pieces_per_server: int = 1,
) -> Bound:
    """Minimum number of rounds for any schedule with one piece per server, whatever its trees.

    Per stage it is the largest of three. The **cut** bound is the smallest T such that for every
    server v the maximum flow into v is N, from a super-source that gives each server one piece,
    over link directions with T times their capacity. The **depth** bound is the largest number of
    transfers between two servers. The **late-entry** bound counts the rounds that are still needed
    after the last pieces have crossed a cut, and before the first can cross it. An all-reduce adds
    the bounds of both stages. With overlap it has separate bounds: 2N(N−1) transfers over all
    server ports, N pieces out of every set of servers, and the depth of one stage.

    Args:
        topology: the network.
        collective: a stage, or both.
        overlap: whether an all-reduce may run both stages at once.
        aggregating_switches: whether switches aggregate and copy like servers. This saves server
            transfers, so neither the count of all transfers nor late entry gives a bound.
        forwarding_servers: whether routes may pass through servers, as in the unmerged baselines.
            A single transfer can then cover any distance, so depth and late entry give no bound.
        pieces_per_server: c, pieces rooted at each server; multiplies all counts of pieces.

    Returns:
        The bound, with its kind, its certificate and the class of schedules that it holds for.

    Source: docs/concepts/bounds.md.

    >>> import gradweave as gw
    >>> print(gw.bounds.free_trees(gw.topology.bcube(n=3, k=1)))
    at least 8 rounds (cut) for schedules that root a piece at each server, sum each piece at one
    server and finish every sum before the first copy, since 8 pieces must leave server 0 at 2 per
    round, and the reverse in the other stage
    """
    topology = as_topology(topology)
    check_collective(collective)
    found = _found(
        *(topology, collective, overlap, aggregating_switches, forwarding_servers),
        pieces_per_server,
    )
    return found.on(topology, pieces_per_server)


def _found(
    topology: Topology,
    collective: Collective,
    overlap: bool,
    aggregating_switches: bool,
    forwarding_servers: bool,
    pieces_per_server: int,
) -> Bound:
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


def block_cuts(
    topology: TopologyLike, symmetry: Translations, collective: Collective = "all_reduce"
) -> Bound:
    """A minimum number of rounds for schedules as in `free_trees`, on networks of any size.

    It is the best cut of those around one block of servers: a server, a box, a row of a torus, a
    group of boxes, and so on, with the switches inside. A block has the same coordinates along the
    first axes of the servers. As a group moves each block to each other, one of each kind is
    enough. Time grows with the number of links.

    Args:
        topology: the network.
        symmetry: coordinates of its nodes, of which the first layer are servers.
        collective: a stage, or both, with a barrier between them.

    >>> import gradweave as gw
    >>> from gradweave.topology.translations import translations
    >>> boxes = gw.topology.from_spec("h100:boxes=16,rails=8")
    >>> block_cuts(boxes, translations(boxes), "all_gather").reason()
    '120 pieces must enter servers 0 to 7 and switches 128, 144, ... at 8 per round'
    """
    topology = as_topology(topology)

    def of_stage(capacity: Integers) -> Bound:
        found = [_around(topology, inside, capacity) for inside in _blocks(topology, symmetry)]
        return best(*found)

    gather = of_stage(topology.capacity)
    if collective == "all_gather":
        return gather.on(topology)
    scatter = _mirrored(of_stage(topology.capacity[topology.opposite]))
    return (scatter if collective == "reduce_scatter" else scatter.then(gather)).on(topology)


def _blocks(topology: Topology, symmetry: Translations) -> Iterator[NDArray[np.bool_]]:
    """[V] the nodes of the first block of each kind, the smallest first."""
    nodes = np.arange(topology.num_nodes)
    layer, coordinates = symmetry.layer_of(nodes), symmetry.coordinates(nodes)
    places = [symmetry.moving.index(a) for a in symmetry.layers[0] if a in symmetry.moving]
    for number in range(len(places), 0, -1):
        some = places[:number]
        whole = np.all(symmetry.has[:, some], axis=1)  # layers inside blocks, not across them
        yield whole[layer] & np.all(coordinates[:, some] == 0, axis=1)


def _around(topology: Topology, inside: NDArray[np.bool_], capacity: Integers) -> Bound:
    """The bound of an all-gather by the pieces that must enter a set of nodes [V]."""
    pieces = topology.num_servers - int(inside[topology.servers].sum())
    enters = int(capacity[~inside[topology.source] & inside[topology.target]].sum())
    cut = Cut(*nodes_inside(topology, inside), pieces, enters, leaving=False)
    return Bound(-(-pieces // enters), "cut", (cut,))


def _hops(topology: Topology, forwarding_servers: bool) -> NDArray[np.int32]:
    """[N, N] minimum number of transfers from each server to each other."""
    hops = hop_distances(topology)
    return np.minimum(hops, 1) if forwarding_servers else hops


@functools.lru_cache(maxsize=4)  # each strategy asks again for the bound of the same network
def _stage(
    topology: Topology, per_server: int, forwarding_servers: bool, spreads: bool, backward: bool
) -> Bound:
    """The bound of an all-gather over all link directions, or over their opposites.

    Args:
        topology: the network.
        per_server: pieces rooted at each server.
        forwarding_servers: whether one transfer covers any distance.
        spreads: whether pieces spread only from server to server, by one transfer per round.
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
    """The reduce-scatter's bound: the all-gather's over opposite directions, with time reversed."""
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
    """The cut bound of an all-gather, and [V] the set that its pieces must leave."""
    servers = topology.servers
    entering = np.bincount(topology.target, capacity, minlength=topology.num_nodes)[servers]
    inside = np.arange(topology.num_nodes) != servers[np.argmin(entering)]
    flows = MaximumFlows(topology, capacity.astype(np.int64))

    def rounded(ratio: Fraction) -> Fraction:
        return Fraction(math.ceil(ratio * per_server), per_server)

    worst, inside = worst_cut(flows, inside, rounded)
    rounds = int(worst * per_server)
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

    A piece leaves in its reduction if its root is outside the set, otherwise in its copies.
    """
    pieces = topology.num_servers * per_server
    flows = MaximumFlows(topology, topology.capacity.astype(np.int64))
    inside = flows.narrowest_cut()
    smallest = flows.leaving(inside)
    certificate = Cut(*nodes_inside(topology, inside), pieces, smallest, leaving=True)
    return Bound(-(-pieces // smallest), "cut", (certificate,))
