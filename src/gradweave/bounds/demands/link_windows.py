"""Minimum idle time of each link for a demand, while bytes travel to the link and from it."""

import functools

import numpy as np
from numpy.typing import NDArray

from gradweave.bounds.seconds.latency import by_overhead
from gradweave.schedules.demand import Demand
from gradweave.topology.topology import Floats, Integers, Topology

FEMTOSECONDS = 10**15
"""Femtoseconds per second."""
NEVER = -1
"""Stands for the time of a link that can carry no byte of the demand."""
ROUNDING = 1e-12
"""Relative error of sums of floats."""


@functools.lru_cache(maxsize=8)
def least_idle(topology: Topology, demand: Demand) -> NDArray[np.int64]:
    """[L] minimum femtoseconds for which each link direction carries no byte of a demand.

    Before the first byte: the messages that bring it to the server that sends it over the link.
    After the last byte: the latency of its message, and the messages that take it to a destination.
    Each takes the latency of its route plus one overhead, and ends at the first server of its
    route; the overhead of the message over the link holds it without a byte. Messages may be
    arbitrarily small and go to the nearest destination; any contributor of a job may send to any of
    its destinations.

    Args:
        topology: the network.
        demand: the blocks to sum and move.

    Returns:
        Whole femtoseconds, rounded down; `NEVER` if no path over the link leads from a
        contributor to a destination.
    """
    ahead = topology.source.astype(np.int64), topology.target.astype(np.int64)
    back = ahead[1], ahead[0]
    least = np.full(len(ahead[0]), np.inf)
    known = set()
    for job in range(len(demand.jobs)):
        mine = demand.job == job
        given, wanted = (
            np.unique(sets.servers[mine[sets.owner]])
            for sets in (demand.contributors, demand.destinations)
        )
        passes = np.union1d(demand.servers_of(job), demand.relays).astype(np.int64)
        key = given.tobytes(), wanted.tobytes(), passes.tobytes()
        if key not in known:
            known.add(key)
            before = _arrivals(topology, given, passes, ahead)
            after = _arrivals(topology, wanted, passes, back)
            for overhead_s, latency_s in by_overhead(topology):
                reached = _through_switches(topology, before, latency_s, ahead)
                left = _through_switches(topology, after, latency_s, back)
                over = reached[ahead[0]] + latency_s + left[ahead[1]] + overhead_s
                np.minimum(least, over, out=least)
    there = np.isfinite(least)
    found = np.where(there, least * (1 - ROUNDING) * FEMTOSECONDS, NEVER).astype(np.int64)
    found.flags.writeable = False
    return found


def _arrivals(
    topology: Topology, first: Integers, passes: Integers, ends: tuple[Integers, Integers]
) -> NDArray[np.float64]:
    """[V] earliest seconds at which each relaying server may have a byte; infinite elsewhere.

    Args:
        topology: the network.
        first: node ids of servers that have it from the start.
        passes: node ids of servers that may pass it on, including `first`.
        ends: [L] nodes that bytes leave and enter.
    """
    may = np.zeros(topology.num_nodes, bool)
    may[passes] = True
    since = np.full(topology.num_nodes, np.inf)
    since[first] = 0.0
    while True:
        sooner = since.copy()
        for overhead_s, latency_s in by_overhead(topology):
            reached = _through_switches(topology, since, latency_s, ends)
            np.minimum.at(sooner, ends[1], reached[ends[0]] + latency_s + overhead_s)
        sooner[~may] = np.inf
        if np.array_equal(sooner, since):
            return since
        since = sooner


def _through_switches(
    topology: Topology, since: Floats, latency_s: Floats, ends: tuple[Integers, Integers]
) -> NDArray[np.float64]:
    """[V] minimum latency of a partial route from servers through switches; `since` at servers."""
    least = np.where(topology.is_server, since, np.inf)
    while True:
        shorter = least.copy()
        np.minimum.at(shorter, ends[1], least[ends[0]] + latency_s)
        shorter[topology.servers] = since[topology.servers]
        if np.array_equal(shorter, least):
            return least
        least = shorter
