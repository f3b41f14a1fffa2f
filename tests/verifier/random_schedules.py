"""Random small networks and schedules, for Hypothesis."""

import itertools
from collections.abc import Collection, Sequence

import numpy as np
from hypothesis import strategies as st

from gradweave.schedulers import CentralParameterServer, Merged, ParameterServer, Ring
from gradweave.schedules import COLLECTIVES, Schedule
from gradweave.topology import Topology
from tests.verifier.oracle import Draft, Row, capacities

QUICK = (
    Merged(tries=1),
    Merged("random", tries=1, swap_passes=0),
    Merged("deepest", tries=1, overlap=True),
    Merged(tries=1, aggregating_switches=True),
    Ring(),
    Ring(steps="paper"),
    ParameterServer(),
    CentralParameterServer(),
)
"""Strategies that need milliseconds and find a schedule on any network."""


@st.composite
def networks(draw: st.DrawFn, *, most_nodes: int = 6) -> Topology:
    """Connected networks of any shape, servers anywhere, capacities different per direction."""
    nodes = draw(st.integers(2, most_nodes))
    switches = draw(st.sets(st.integers(0, nodes - 1), max_size=nodes - 2))
    tree = {(draw(st.integers(0, v - 1)), v) for v in range(1, nodes)}
    others = sorted(set(itertools.combinations(range(nodes), 2)) - tree)
    pairs = sorted(tree | (draw(st.sets(st.sampled_from(others))) if others else set()))
    capacity = draw(st.lists(st.integers(1, 3), min_size=2 * len(pairs), max_size=2 * len(pairs)))
    return network_of(nodes, switches, pairs, capacity)


def network_of(
    nodes: int,
    switches: Collection[int],
    pairs: Sequence[tuple[int, int]],
    capacity: Sequence[int],
) -> Topology:
    """A network of pairs of nodes; the capacities of one direction, then of the other."""
    both = np.array([*pairs, *((b, a) for a, b in pairs)])
    return Topology(
        name="random",
        is_server=[v not in switches for v in range(nodes)],
        source=both[:, 0],
        target=both[:, 1],
        bandwidth_bytes_per_s=np.array(capacity) * 1e9,
        latency_s=np.full(len(both), 1e-6),
        capacity=capacity,
    )


@st.composite
def valid_schedules(
    draw: st.DrawFn, collectives: tuple[str, ...] = COLLECTIVES, **network: int
) -> Schedule:
    """What any of the strategies makes of a random network."""
    return draw(st.sampled_from(QUICK)).schedule(
        draw(networks(**network)),
        collective=draw(st.sampled_from(collectives)),
        seed=draw(st.integers(0, 9)),
    )


@st.composite
def drafts(draw: st.DrawFn) -> Draft:
    """Transfers along random paths, which rarely come to anything; the columns make a schedule."""
    topology = draw(networks())
    near = [[b for a, b in capacities(topology) if a == v] for v in range(topology.num_nodes)]
    servers = topology.servers.tolist()
    roots = st.lists(st.sampled_from(servers), min_size=1, max_size=3)
    root = tuple(draw(roots))
    rows = []
    for _ in range(draw(st.integers(1, 8))):
        route = [draw(st.sampled_from(servers))]
        while len(route) < 2 or draw(st.booleans()):
            route.append(draw(st.sampled_from(near[route[-1]])))
        small = st.integers(0, 3)
        piece, op = draw(st.integers(0, len(root) - 1)), draw(st.integers(0, 1))
        rows.append(Row(draw(small), piece, route[0], route[-1], op, tuple(route)))
    return Draft(topology, draw(st.sampled_from(COLLECTIVES)), root, tuple(rows))
