"""Implicit schedules of networks on which a group moves each server to each other, of any size."""

import numpy as np
from numpy.typing import NDArray

from gradweave.bounds import block_cuts
from gradweave.errors import NoScheduleError
from gradweave.schedulers.problem import grouped, integers
from gradweave.schedules.implicit import ImplicitSchedule
from gradweave.schedules.schedule import (
    COPY,
    MAX_ROUNDS,
    Collective,
    Provenance,
    Schedule,
    StatedBound,
    reverse_rows,
    table_of_rows,
    take_rows,
)
from gradweave.topology.routes import follow, switch_only_trees
from gradweave.topology.spec import TopologyLike, as_topology
from gradweave.topology.topology import Topology
from gradweave.topology.translations import Translations, translations
from gradweave.verifier import verify


def implicit(network: TopologyLike, *, collective: Collective = "all_reduce") -> ImplicitSchedule:
    """Makes an implicit schedule: one tree and the translations that move it to every server.

    The tree grows without search (`queue_kernel`), in time and memory that are proportional to the
    network's links; on tori, BCubes, hypercubes, fat trees and boxes with rails it usually meets
    the lower bound. No choice is random.

    Args:
        network: the network, or its specification; of a family in `translations`.
        collective: a stage, or both.

    Returns:
        The implicit schedule, verified.

    Raises:
        NoScheduleError: no group is known that moves each server to each other, or no tree was
            found that all servers can use at once.

    >>> implicit("torus:64x32x32", collective="all_gather")
    ImplicitSchedule(all_gather on 'torus:64x32x32': 65,536 images of 65,535 transfers in
     10,923 rounds)
    """
    topology = as_topology(network)
    symmetry = translations(topology)
    if symmetry is None:
        raise NoScheduleError(
            f"implicit: no translations are known of {topology.name!r}; expected a torus, bcube, "
            "hypercube, ring, circulant, fat_tree, leaf_spine or boxes on switches"
        )
    made = ImplicitSchedule(base_from_queues(topology, symmetry), symmetry, collective)
    bound = block_cuts(topology, symmetry, collective)
    stated = StatedBound(bound.rounds, bound.kind, True, bound.holds_for)
    made = made.replace(scheduler=Provenance("implicit"), bound=stated)
    verdict = verify(made, forwarding_servers=False)
    if verdict.violation is not None and verdict.violation.kind == "symmetry":
        raise NoScheduleError(
            f"implicit: {topology.name!r} is not as its name says: {verdict.violation.message}"
        )
    verdict.raise_if_invalid()
    return made


def base_from_queues(topology: Topology, symmetry: Translations) -> Schedule:
    """The all-gather of the first server's piece, from which the group makes a whole one.

    Each server is reached over one shortest route of switches. Time and memory grow with the number
    of links and of routes from the first server, not with the number of pairs.

    Args:
        topology: the network.
        symmetry: a group of automorphisms that moves each server to each other, by one element.

    Raises:
        NoScheduleError: the group is another, or its links carry too little for the trees to grow.
    """
    from gradweave.schedulers.trees.queue_kernel import HopKinds, grow_from_queues

    count, axes = topology.num_servers, symmetry.layers[0]
    if {symmetry.order, symmetry.first[1]} != {count} or not symmetry.has[0].all():
        raise NoScheduleError(
            f"implicit: the translations of {topology.name!r} do not move each server to each other"
        )
    nodes, offsets = _routes_from(topology, int(topology.servers[0]))
    links = topology.links_along(nodes, offsets)
    numbers, keeps = symmetry.link_orbits(topology.source[links], topology.target[links])
    _, link, orbit = np.unique(numbers, return_index=True, return_inverse=True)
    capacity = topology.capacity[links[link]] // keeps[link]
    # Kinds of few links come first: they leave the longer ones to servers that they cannot reach.
    table = np.sort(table_of_rows(orbit, offsets - np.arange(len(offsets))), axis=1)
    lengths = np.diff(offsets)
    _, first, kind = np.unique(table, axis=0, return_index=True, return_inverse=True)
    kind_order = np.lexsort((first, lengths[first]))
    hops, first_hop = grouped(np.argsort(kind_order)[kind.ravel()], len(first))
    of_kinds = first[kind_order]
    kind_links, first_link = take_rows(orbit, offsets - np.arange(len(offsets)), of_kinds)
    ends = topology.rank[nodes[offsets[1:] - 1]][hops]
    sizes = [symmetry.sizes[axis] for axis in axes]
    kinds = HopKinds(
        np.stack(np.unravel_index(ends, sizes), axis=1).astype(np.int32),
        first_hop,
        integers(kind_links),
        integers(first_link),
        integers(capacity),
    )
    made = grow_from_queues(kinds, integers(np.array(sizes)), MAX_ROUNDS)
    if len(made) < count - 1:
        raise NoScheduleError(
            f"implicit: trees that all look the same reach {len(made) + 1:,} of {count:,} servers "
            f"of {topology.name!r}; use another scheduler"
        )
    at, sender, hop = made.T
    nodes, offsets = take_rows(nodes, offsets, hops[hop])
    shift = symmetry.shift_between(topology.servers[0], topology.servers[sender])
    nodes = symmetry.moved(nodes, np.repeat(shift, np.diff(offsets), axis=0))
    return Schedule(
        topology=topology,
        collective="all_gather",
        root=topology.servers[:1],
        round=at,
        piece=np.zeros(count - 1, np.int64),
        source=nodes[offsets[:-1]],
        target=nodes[offsets[1:] - 1],
        op=np.full(count - 1, COPY),
        route_nodes=nodes,
        route_offsets=offsets,
    )


def _routes_from(topology: Topology, root: int) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Nodes and offsets of one route of switches from a server to each that has one, by rank."""
    toward, lengths = switch_only_trees(topology, np.array([root]))
    reached = topology.servers[lengths[0, topology.servers] > 0]
    tree = np.zeros(len(reached), np.int64)
    nodes, offsets = follow(toward, reached, np.full(len(reached), root), tree)
    return reverse_rows(nodes, offsets), offsets
