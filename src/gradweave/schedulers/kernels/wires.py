"""Hops over links, with rates and delays of their transfers, for event simulation."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradweave.schedules.schedule import Schedule, distinct_rows, take_rows
from gradweave.simulator.seconds import first_links
from gradweave.topology.topology import Topology


class Wires(NamedTuple):
    """Hops, as concatenated links, with their rates and delays, and the links' bandwidths."""

    links: NDArray[np.int64]
    first: NDArray[np.int64]
    """[H+1] index of each hop's first link."""
    rate: NDArray[np.float64]
    """[H] bytes per second of a transfer: the scarcest link's bandwidth."""
    overhead: NDArray[np.float64]
    """[H] seconds that a message holds its links in addition to its bytes."""
    latency: NDArray[np.float64]
    """[H] seconds from the last byte sent to its arrival."""
    bandwidth: NDArray[np.float64]
    """[L] bytes per second."""


def wires_over(topology: Topology, links: NDArray[np.int64], first: NDArray[np.int64]) -> Wires:
    """The wires of a network's hops; a hop without links has no overhead and an infinite rate.

    Args:
        topology: the network.
        links: links of the hops, concatenated.
        first: [H+1] index of each hop's first link.
    """
    bandwidth = topology.bandwidth_bytes_per_s.astype(np.float64)
    hops, there = len(first) - 1, np.flatnonzero(np.diff(first))
    rate, overhead, latency = np.full(hops, np.inf), *np.zeros((2, hops))
    begin = first[:-1][there]
    rate[there] = np.minimum.reduceat(bandwidth[links], begin)
    overhead[there] = np.maximum.reduceat(topology.overhead_s[links], begin)
    latency[there] = np.add.reduceat(topology.latency_s[links], begin)
    return Wires(links, first, rate, overhead, latency, bandwidth)


def wires_of(schedule: Schedule) -> tuple[Wires, NDArray[np.int64]]:
    """The wires of a schedule's distinct routes, and [T] the route of each transfer."""
    rows, hop = distinct_rows(schedule.route_nodes, schedule.route_offsets)
    links, first = take_rows(schedule.route_links[0], first_links(schedule), rows)
    return wires_over(schedule.topology, links.astype(np.int64), first.astype(np.int64)), hop
