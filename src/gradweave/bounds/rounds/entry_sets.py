"""Candidate sets for the late-entry bound: pieces may enter them too late to spread inside."""

import numpy as np
from numpy.typing import NDArray

from gradweave.bounds.flows import MaximumFlows
from gradweave.topology.topology import Integers, Topology

FEW_SERVERS = 256
"""Number of servers up to which balls and the cuts of single flows are tried as well."""
SWEEPS = 3
"""Number of passes that move each switch to the side where fewer transfers can enter."""


def entry_sets(
    topology: Topology,
    capacity: Integers,
    hops: NDArray[np.int32],
    tightest: NDArray[np.bool_],
    rounds: int,
    per_server: int,
) -> NDArray[np.bool_]:
    """[K, V] sets of nodes, of one to N−1 servers each, that few transfers can enter.

    The bound holds for any set; these are the sets that tend to be tight: the sides of the tightest
    cuts, parts joined by thin links, servers behind a switch, and all servers within some distance
    of a server. Each comes with its complement, and with switches on the better side.

    Args:
        topology: the network.
        capacity: [L] of each link direction.
        hops: [N, N] transfers from each server to each other.
        tightest: [V] the side of the tightest cut that the pieces start on.
        rounds: the bound from cuts.
        per_server: pieces rooted at each server.
    """
    found = [tightest[None], parts_apart(topology, capacity), behind_switches(topology)]
    if topology.num_servers <= FEW_SERVERS:
        found += [_balls(hops), _flow_cuts(topology, capacity, rounds, per_server)]
    servers = np.concatenate(
        [
            sets[:, topology.servers] if sets.shape[1] == topology.num_nodes else sets
            for sets in found
        ]
    )
    servers = _distinct(np.concatenate([servers, ~servers]))
    count = servers.sum(axis=1)
    servers = servers[(count > 0) & (count < topology.num_servers)]
    return with_switches(topology, capacity, servers)


def entering(topology: Topology, capacity: Integers, sets: NDArray[np.bool_]) -> Integers:
    """[K] transfers that can enter each of some sets [K, V] in one round."""
    crosses = sets[:, topology.target] & ~sets[:, topology.source]
    return (crosses.astype(np.float64) @ capacity).astype(np.int64)  # uses BLAS; still exact


def _distinct(sets: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The distinct rows, in descending order of their bits."""
    packed = np.packbits(sets, axis=1)
    _, first = np.unique(packed.view(f"V{packed.shape[1]}").ravel(), return_index=True)
    return sets[first[::-1]]


def parts_apart(topology: Topology, capacity: Integers) -> NDArray[np.bool_]:
    """[K, V] connected parts that remain without links up to each capacity except the largest.

    The capacity of a link is the larger of its two directions.
    """
    wide = np.maximum(capacity, capacity[topology.opposite])
    sets = [np.zeros((0, topology.num_nodes), bool)]
    for thin in np.unique(wide)[:-1]:
        part = _parts(topology, wide > thin)
        labels = np.unique(part[topology.servers])
        sets.append(part == labels[:, None])
    return np.concatenate(sets)


def _parts(topology: Topology, kept: NDArray[np.bool_]) -> Integers:
    """[V] the smallest node of each node's component, over the given link directions."""
    part = np.arange(topology.num_nodes)
    source, target = topology.source[kept], topology.target[kept]
    while not np.array_equal(part[source], part[target]):
        smaller = np.minimum(part[source], part[target])
        np.minimum.at(part, part[source], smaller)
        np.minimum.at(part, part[target], smaller)
        while not np.array_equal(part, part[part]):
            part = part[part]
    return part


def behind_switches(topology: Topology) -> NDArray[np.bool_]:
    """[K, N] the servers linked to each switch, by rank."""
    sets = np.zeros((topology.num_nodes, topology.num_servers), bool)
    up = topology.is_server[topology.source] & ~topology.is_server[topology.target]
    sets[topology.target[up], topology.rank[topology.source[up]]] = True
    return sets[topology.switches]


def _balls(hops: NDArray[np.int32]) -> NDArray[np.bool_]:
    """[K, N] the servers within each distance of each server, distance 0 included."""
    return np.concatenate([hops <= radius for radius in range(int(hops.max()))])


def _flow_cuts(
    topology: Topology, capacity: Integers, rounds: int, per_server: int
) -> NDArray[np.bool_]:
    """[K, V] for each server, the minimum cut of the flow into it that fails in one round less."""
    flows = MaximumFlows(topology, capacity.astype(np.int64))
    sets = [
        flows.cut(topology.num_nodes, server, max(rounds - 1, 1), per_server)[1]
        for server in topology.servers.tolist()
    ]
    return np.stack(sets)


def with_switches(
    topology: Topology, capacity: Integers, servers: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """[K, V] sets of servers [K, N], extended by switches that reduce what can enter.

    A switch inside admits the capacity of its links from outside; a switch outside admits that of
    its links to the inside. A few sweeps over all sets move each switch to the better side.
    """
    inside = np.zeros((len(servers), topology.num_nodes), bool)
    inside[:, topology.servers] = servers
    out_of = topology.first_link
    for switch in np.tile(topology.switches, SWEEPS).tolist():
        links = slice(out_of[switch], out_of[switch + 1])
        neighbours, back = topology.target[links], topology.opposite[links]
        from_outside = ~inside[:, neighbours] @ capacity[back].astype(np.int64)
        to_inside = inside[:, neighbours] @ capacity[links].astype(np.int64)
        inside[:, switch] = from_outside < to_inside
    return inside
