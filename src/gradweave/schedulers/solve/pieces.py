"""How many pieces each server's part of the gradient is cut into."""

import numpy as np

from gradweave.bounds import Bottleneck, throughput
from gradweave.schedule.schedule import Collective
from gradweave.topology.topology import Floats, Topology

MOST = 16
"""Most pieces per server that are tried."""
TRIED = 3
"""Most numbers of pieces that are tried because of how whole pieces fill the bottleneck."""
WORTH = 1e-3
"""Gain, relative to the least time, for which a larger number of pieces is tried."""


def piece_counts(topology: Topology, collective: Collective) -> tuple[int, ...]:
    """Numbers of pieces per server with which whole pieces fill the bottleneck best, ascending.

    In the least time, each link of the bottleneck carries its bandwidth times that time. Where that
    is no whole number of pieces, the stage takes longer: with five pieces per server a torus of
    4×2×3 takes the least time, with one 8.7 % more. Each number returned is better than all smaller
    ones, but for the last, a multiple of the best: the smaller the pieces, the sooner the last one
    has spread beyond the bottleneck.

    Args:
        topology: the network.
        collective: a stage, or both.

    >>> import gradweave as gw
    >>> piece_counts(gw.topology.torus((4, 2, 3)), "all_gather")
    (1, 3, 5, 15)
    """
    stages = throughput(topology, collective).bottlenecks
    crossing = [_crossing(topology, bottleneck) for bottleneck in stages]
    excess = {
        count: max(
            _excess(bandwidth, bottleneck.pieces * count)
            for bottleneck, bandwidth in zip(stages, crossing, strict=True)
        )
        for count in range(1, MOST + 1)
    }
    better = [1]
    for count in range(2, MOST + 1):
        if excess[count] < excess[better[-1]] - WORTH:
            better.append(count)
    multiple = MOST // better[-1] * better[-1]
    return tuple(sorted({1, *better[-(TRIED - 1) :], multiple}))


def _crossing(topology: Topology, bottleneck: Bottleneck) -> Floats:
    """Bandwidths of the link directions that a bottleneck's pieces cross."""
    inside = np.zeros(topology.num_nodes, bool)
    inside[[*bottleneck.servers, *bottleneck.switches]] = True
    if bottleneck.kind == "ports":  # all servers', in one direction
        ends = topology.source if bottleneck.leaving else topology.target
        return topology.bandwidth_bytes_per_s[topology.is_server[ends]]
    start, end = inside[topology.source], inside[topology.target]
    crosses = start & ~end if bottleneck.leaving else end & ~start
    return topology.bandwidth_bytes_per_s[crosses]


def _excess(bandwidth: Floats, pieces: int) -> float:
    """How much longer so many whole pieces take over parallel links than at their full bandwidth.

    The time is the least at which the whole pieces that each link has carried are enough.
    """
    ideal = pieces / float(bandwidth.sum())
    values, links = np.unique(bandwidth, return_counts=True)
    most = np.ceil(ideal * values * 2) + 1
    ends = np.unique(
        np.concatenate(
            [np.arange(1, count + 1) / value for value, count in zip(values, most, strict=True)]
        )
    )
    ends = ends[ends >= ideal * (1 - 1e-12)]
    carried = (np.floor(ends[:, None] * values * (1 + 1e-12)) * links).sum(axis=1)
    return float(ends[np.argmax(carried >= pieces)] / ideal - 1)
