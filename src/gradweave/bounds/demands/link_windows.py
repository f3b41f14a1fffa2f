"""Minimum idle time of each link for a demand, while bytes travel to the link and from it."""

import functools

import numpy as np
from numpy.typing import NDArray

from gradweave.bounds.distances import shortened
from gradweave.bounds.seconds.latency import by_overhead
from gradweave.schedules.demand import Demand
from gradweave.topology.topology import Integers, Topology

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
            sets.take(mine).union for sets in (demand.contributors, demand.destinations)
        )
        passes = np.union1d(demand.servers_of(job), demand.relays).astype(np.int64)
        key = given.tobytes(), wanted.tobytes(), passes.tobytes()
        if key not in known:
            known.add(key)
            before = _reached(topology, given, passes, ahead)
            after = _reached(topology, wanted, passes, back)
            levels = zip(by_overhead(topology), before, after, strict=True)
            for (overhead_s, latency_s), reached, left in levels:
                over = reached[ahead[0]] + latency_s + left[ahead[1]] + overhead_s
                np.minimum(least, over, out=least)
    there = np.isfinite(least)
    found = np.where(there, least * (1 - ROUNDING) * FEMTOSECONDS, NEVER).astype(np.int64)
    found.flags.writeable = False
    return found


def _reached(
    topology: Topology, first: Integers, passes: Integers, ends: tuple[Integers, Integers]
) -> list[NDArray[np.float64]]:
    """For each overhead, [V] earliest seconds at which a byte may be at a node, in a message of it.

    Each message starts at a server and ends at the next server on its way, where the byte has
    arrived after the message's overhead. Switches are copied once for each overhead, and a message
    passes those of its overhead alone.

    Args:
        topology: the network.
        first: node ids of servers that have it from the start.
        passes: node ids of servers that may pass it on, including `first`.
        ends: [L] nodes that bytes leave and enter.
    """
    nodes, is_server = topology.num_nodes, topology.is_server
    tails, heads, costs = [], [], []
    levels = by_overhead(topology)
    for copy, (overhead_s, latency_s) in enumerate(levels, 1):
        inside = copy * nodes
        tails += [np.where(is_server[ends[0]], ends[0], inside + ends[0]), inside + passes]
        heads += [inside + ends[1], passes]
        costs += [latency_s, np.full(len(passes), overhead_s)]
    least = np.full((nodes * (len(levels) + 1), 1), np.inf)
    least[first] = 0.0
    backwards = np.concatenate(heads), np.concatenate(tails)
    arrived, *inside = shortened(least, np.concatenate(costs), backwards).reshape(-1, nodes)
    return [np.where(is_server, arrived, each) for each in inside]
