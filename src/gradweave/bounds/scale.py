"""Units in which a linear program over links of any bandwidth has numbers near one."""

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from gradweave.schedule.schedule import Collective
from gradweave.topology.topology import Topology

ALIKE = 1e4
"""The largest bandwidth over the smallest, up to which they are counted as they are: solvers that
count in floats lose their way where numbers span many more decades."""
MOST = 100.0
"""Times the number of servers, what a link's bandwidth is taken for at most, in units of what is
needed."""
LEAST_TIME = 2e-2
"""A time in such units, above which a link so fast never delays anything: no link carries the
gradient more than 2(N−1) times."""
NOTHING = 1e-9
"""Bandwidth, in the smallest of such units, below which a link is taken to carry nothing."""
MAX_RESCALED = 8
"""Times that a program is built again because its least time turned out smaller."""


def units_of(
    topology: Topology,
    stages: tuple[Collective, ...],
    apart: bool,
    shares: tuple[Fraction, ...] | None,
) -> tuple[float, ...]:
    """For each time of a program, bytes a second that make it about one for a byte of gradient.

    The largest bandwidth where all are alike, else the least that the widest trees need: a root's
    share crosses each of its trees' links, the narrowest too, and all narrower ones together carry
    little more. So the least time is within a factor of some links and servers of one.

    Args:
        topology: the network.
        stages: one or both.
        apart: whether each stage has a time of its own.
        shares: [N] of the roots; any if not given.
    """
    times = len(stages) if apart else 1
    if are_alike(topology):
        return (float(topology.bandwidth_bytes_per_s.max()),) * times
    narrowest = np.array([widest_trees(topology, stage) for stage in stages])
    if not apart:
        narrowest = narrowest.min(axis=0, keepdims=True)
    if shares is None:
        root = int(np.argmin((1 / narrowest).sum(axis=0)))
        return tuple(narrowest[:, root].tolist())
    return tuple((1 / (np.array(shares, float) / narrowest).max(axis=1)).tolist())


def are_alike(topology: Topology) -> bool:
    """Whether bandwidths are near enough to each other to count them in the largest one."""
    bandwidth = topology.bandwidth_bytes_per_s
    return bool(bandwidth.max() <= ALIKE * bandwidth.min())


def has_equal_links(topology: Topology) -> bool:
    """Whether all link directions have one bandwidth, so that rounds tell the time."""
    return float(np.ptp(topology.bandwidth_bytes_per_s)) == 0.0


def has_equal_ports(topology: Topology) -> bool:
    """Whether all servers send and receive as many bytes a second, all their links together."""
    ends = (topology.source, topology.target)
    ports = [np.bincount(end, topology.bandwidth_bytes_per_s, topology.num_nodes) for end in ends]
    return all(float(np.ptp(port[topology.servers])) == 0.0 for port in ports)


def widest_trees(topology: Topology, stage: Collective) -> NDArray[np.float64]:
    """[N] the narrowest bandwidth in each root's widest tree of a stage, bytes a second."""
    tail, head, servers = topology.source, topology.target, topology.servers
    if stage == "reduce_scatter":
        tail, head = head, tail
    bandwidth = topology.bandwidth_bytes_per_s
    alike = np.array_equal(bandwidth, bandwidth[topology.opposite])
    roots = servers[:1] if alike else servers
    width = np.zeros((topology.num_nodes, len(roots)))
    width[roots, np.arange(len(roots))] = np.inf
    while True:
        wider = width.copy()
        np.maximum.at(wider, head, np.minimum(width[tail], bandwidth[:, None]))
        if np.array_equal(wider, width):
            return np.broadcast_to(width[servers].min(axis=0), len(servers))
        width = wider


def in_units(topology: Topology, units_bytes_per_s: tuple[float, ...]) -> list[NDArray[np.float64]]:
    """[L] bandwidths in each unit, none above `MOST` for each server, and zero below `NOTHING`.

    Args:
        topology: the network.
        units_bytes_per_s: about what is needed.
    """
    bandwidth = topology.bandwidth_bytes_per_s
    bandwidth = np.where(bandwidth < NOTHING * min(units_bytes_per_s), 0.0, bandwidth)
    most = MOST * topology.num_servers
    return [np.minimum(bandwidth / unit, most) for unit in units_bytes_per_s]
