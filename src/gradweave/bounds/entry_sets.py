"""Sets of nodes that pieces may enter too late to spread inside: where late entry is looked for."""

import numpy as np
from numpy.typing import NDArray

from gradweave.bounds.flows import Flows
from gradweave.topology.topology import Integers, Topology

FEW_SERVERS = 256
"""Servers up to which balls and the cuts of single flows are tried as well."""
SWEEPS = 3
"""Times that each switch is moved to the side where fewer transfers can enter."""


def entry_sets(
    topology: Topology,
    capacity: Integers,
    hops: NDArray[np.int32],
    tightest: NDArray[np.bool_],
    rounds: int,
    per_server: int,
) -> NDArray[np.bool_]:
    """[K, V] sets of nodes, of one to N−1 servers each, that few transfers can enter.

    Whatever they are, what is proved of them holds; these are those that networks have: sides of
    the tightest cuts, parts that thin links join, servers behind a switch, and all within some
    distance of a server; each with its complement, and switches on the better side.

    Args:
        topology: the network.
        capacity: [L] of each link direction.
        hops: [N, N] transfers from server to server.
        tightest: [V] the pieces' side of the tightest cut.
        rounds: the bound that the cuts give.
        per_server: pieces of each server.
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
    return (crosses.astype(np.float64) @ capacity).astype(np.int64)  # by BLAS, and exact


def _distinct(sets: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The distinct rows, those with the first servers first."""
    packed = np.packbits(sets, axis=1)
    _, first = np.unique(packed.view(f"V{packed.shape[1]}").ravel(), return_index=True)
    return sets[first[::-1]]


def parts_apart(topology: Topology, capacity: Integers) -> NDArray[np.bool_]:
    """[K, V] the connected parts that are left without links up to each capacity but the largest.

    A link's capacity is the larger of its directions'.
    """
    wide = np.maximum(capacity, capacity[topology.opposite])
    sets = [np.zeros((0, topology.num_nodes), bool)]
    for thin in np.unique(wide)[:-1]:
        part = _parts(topology, wide > thin)
        labels = np.unique(part[topology.servers])
        sets.append(part == labels[:, None])
    return np.concatenate(sets)


def _parts(topology: Topology, kept: NDArray[np.bool_]) -> Integers:
    """[V] the smallest node of each node's part, joined by the link directions kept."""
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
    """[K, N] by rank: the servers linked to each switch."""
    sets = np.zeros((topology.num_nodes, topology.num_servers), bool)
    up = topology.is_server[topology.source] & ~topology.is_server[topology.target]
    sets[topology.target[up], topology.rank[topology.source[up]]] = True
    return sets[topology.switches]


def _balls(hops: NDArray[np.int32]) -> NDArray[np.bool_]:
    """[K, N] the servers within each distance of each server, its own alone included."""
    return np.concatenate([hops <= radius for radius in range(int(hops.max()))])


def _flow_cuts(
    topology: Topology, capacity: Integers, rounds: int, per_server: int
) -> NDArray[np.bool_]:
    """[K, V] for each server, the cut of a flow into it that one round less lacks room for."""
    flows = Flows(topology, capacity.astype(np.int64))
    sets = [
        flows.cut(topology.num_nodes, server, max(rounds - 1, 1), per_server)[1]
        for server in topology.servers.tolist()
    ]
    return np.stack(sets)


def with_switches(
    topology: Topology, capacity: Integers, servers: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """[K, V] sets of servers [K, N] with those switches that lessen what can enter.

    A switch inside lets in what its links from outside carry; one outside, what its links to the
    inside do. Each is moved to the better side, all sets at once, in a few sweeps.
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
