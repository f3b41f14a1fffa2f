"""Predicted time of an implicit schedule, round by round, from the loads of orbits of links."""

import numpy as np
from numpy.typing import NDArray

from gradweave.schedules.implicit import ImplicitSchedule


def round_seconds(plan: ImplicitSchedule, gradient_bytes: float) -> NDArray[np.float64]:
    """Duration of each round, as in `gradweave.simulator.round_seconds` for all transfers.

    All links of an orbit have the same load and properties, so the images of a transfer take as
    long as the transfer itself.

    Args:
        plan: a valid implicit schedule.
        gradient_bytes: size of the whole gradient.

    Returns:
        [rounds] seconds.
    """
    base, topology = plan.base_collective, plan.topology
    links, transfer = base.route_links
    orbit, keeps = plan.symmetry.link_orbits(topology.source[links], topology.target[links])
    orbits, orbit = np.unique(orbit, return_inverse=True)
    key = base.round[transfer] * np.int64(len(orbits)) + orbit
    _, slot, uses = np.unique(key, return_inverse=True, return_counts=True)
    share = topology.bandwidth_bytes_per_s[links] / (uses[slot] * keeps)
    first = (base.route_offsets - np.arange(base.num_transfers + 1))[:-1]
    duration = np.add.reduceat(topology.latency_s[links], first)
    duration += np.maximum.reduceat(topology.overhead_s[links], first)
    duration += gradient_bytes / plan.pieces / np.minimum.reduceat(share, first)
    longest = np.zeros(plan.rounds)
    np.maximum.at(longest, base.round, duration)
    return longest
