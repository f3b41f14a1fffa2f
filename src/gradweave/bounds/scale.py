"""Units for linear programs over links of any bandwidth, so that their numbers are near one."""

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from gradweave.schedules.schedule import Collective
from gradweave.topology.topology import Topology

ALIKE = 1e4
"""Ratio of largest to smallest bandwidth up to which bandwidths are not rescaled: solvers that
count in floats fail if numbers span many more decades."""
MOST = 100.0
"""Cap on a link's bandwidth, in units of the required bandwidth and times the number of servers."""
LEAST_TIME = 2e-2
"""If a solution's time in such units exceeds this, no capped link limits it: a link carries the
gradient at most 2(N−1) times."""
NOTHING = 1e-9
"""Bandwidth, in the smallest of such units, below which a link counts as carrying nothing."""
MAX_RESCALED = 8
"""Number of times that a program is rebuilt because its minimum time turned out smaller."""


def units_of(
    topology: Topology,
    stages: tuple[Collective, ...],
    apart: bool,
    shares: tuple[Fraction, ...] | None,
) -> tuple[float, ...]:
    """The unit of bandwidth for each time variable, so that the minimum time per byte is near one.

    If bandwidths are alike, the unit is the largest. Otherwise it is the minimum that the widest
    trees need: a root's share crosses each link of its trees, including the narrowest, and all
    narrower links together carry little more. So the minimum time in this unit differs from one by
    at most a factor that depends on the numbers of links and servers.

    Args:
        topology: the network.
        stages: one stage or both.
        apart: whether each stage has a separate time.
        shares: [N] of the roots; any split if not given.
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
    """Whether bandwidths are close enough to count them all in units of the largest."""
    bandwidth = topology.bandwidth_bytes_per_s
    return bool(bandwidth.max() <= ALIKE * bandwidth.min())


def has_equal_links(topology: Topology) -> bool:
    """Whether all link directions have the same bandwidth, so that rounds determine the time."""
    return float(np.ptp(topology.bandwidth_bytes_per_s)) == 0.0


def has_equal_ports(topology: Topology) -> bool:
    """Whether all servers have the same total bandwidth out and in."""
    ends = (topology.source, topology.target)
    ports = [np.bincount(end, topology.bandwidth_bytes_per_s, topology.num_nodes) for end in ends]
    return all(float(np.ptp(port[topology.servers])) == 0.0 for port in ports)


def widest_trees(topology: Topology, stage: Collective) -> NDArray[np.float64]:
    """[N] the narrowest bandwidth in each root's widest tree of a stage, in bytes per second."""
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
    """[L] bandwidths in each unit, capped at `MOST` per server, and zero below `NOTHING`.

    Args:
        topology: the network.
        units_bytes_per_s: estimates of the required bandwidth.
    """
    bandwidth = topology.bandwidth_bytes_per_s
    bandwidth = np.where(bandwidth < NOTHING * min(units_bytes_per_s), 0.0, bandwidth)
    most = MOST * topology.num_servers
    return [np.minimum(bandwidth / unit, most) for unit in units_bytes_per_s]
