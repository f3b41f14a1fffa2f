"""How many pieces to cut each server's part of the gradient into."""

import math

import numpy as np
from numpy.typing import NDArray

from gradweave.bounds import Bottleneck, throughput
from gradweave.schedulers.solving.tuning import TUNING
from gradweave.schedules.schedule import Collective
from gradweave.topology.topology import Floats, Topology


def piece_counts(
    topology: Topology, collective: Collective, gradient_bytes: float = math.inf
) -> tuple[int, ...]:
    """Numbers of pieces per server with which whole pieces fill the bottleneck best, ascending.

    To meet the lower bound, each bottleneck link must carry exactly its bandwidth times that time.
    If that is not a whole number of pieces, the stage takes longer: a torus of 4×2×3 meets the
    bound with five pieces per server and takes 8.7 % longer with one. Each number returned is
    better than all smaller ones, including the overhead of messages. The exception is the last, a
    multiple of the best: the smaller the pieces, the sooner the last of them has spread beyond the
    bottleneck.

    Args:
        topology: the network.
        collective: a stage, or both.
        gradient_bytes: size of the whole gradient; if not given, messages have no overhead.

    >>> import gradweave as gw
    >>> piece_counts(gw.topology.torus((4, 2, 3)), "all_gather")
    (1, 3, 5, 15)
    """
    stages = throughput(topology, collective).bottlenecks
    crossing = [_crossing(topology, bottleneck) for bottleneck in stages]

    def excess_of(count: int) -> float:
        """How much longer than its lower bound the slowest bottleneck takes."""
        size, overhead = gradient_bytes / (topology.num_servers * count), topology.overhead_s
        if math.isinf(size):
            size, overhead = 1.0, np.zeros(len(overhead))
        return max(
            _excess(topology.bandwidth_bytes_per_s[links] / size, overhead[links], stage, count)
            for stage, links in zip(stages, crossing, strict=True)
        )

    excess = {count: excess_of(count) for count in range(1, TUNING.max_pieces + 1)}
    better = [1]
    for count in range(2, TUNING.max_pieces + 1):
        if excess[count] < excess[better[-1]] - TUNING.min_pieces_gain:
            better.append(count)
    best = better[-1]
    cheap = [
        multiple
        for multiple in range(best, TUNING.max_pieces + 1, best)
        if excess[multiple] <= excess[best] + TUNING.spreading
    ]
    return tuple(sorted({1, *better[-(TUNING.max_piece_counts - 1) :], cheap[-1]}))


def _crossing(topology: Topology, bottleneck: Bottleneck) -> NDArray[np.bool_]:
    """[L] whether a bottleneck's pieces cross a link direction."""
    inside = np.zeros(topology.num_nodes, bool)
    inside[[*bottleneck.servers, *bottleneck.switches]] = True
    if bottleneck.kind == "ports":  # all servers', in one direction
        ends = topology.source if bottleneck.leaving else topology.target
        return topology.is_server[ends]
    start, end = inside[topology.source], inside[topology.target]
    return start & ~end if bottleneck.leaving else end & ~start


def _excess(bandwidth: Floats, overhead: Floats, stage: Bottleneck, count: int) -> float:
    """How much longer whole pieces take over parallel links than their bytes at full bandwidth.

    The time is the earliest at which the links together have carried enough whole pieces.

    Args:
        bandwidth: of each link, in pieces per second.
        overhead: of each link, in seconds per piece.
        stage: the bottleneck.
        count: pieces per server.
    """
    pieces = stage.pieces * count
    least = pieces / float(bandwidth.sum())
    values, links = np.unique(1 / (overhead + 1 / bandwidth), return_counts=True)
    ideal = pieces / float((values * links).sum())
    # The last of these ends comes at least one piece of each link after 2·ideal, so that enough
    # whole pieces have crossed by then.
    most = np.ceil(ideal * values * 2) + 1
    ends = np.unique(
        np.concatenate(
            [np.arange(1, count + 1) / value for value, count in zip(values, most, strict=True)]
        )
    )
    ends = ends[ends >= ideal * (1 - 1e-12)]
    carried = (np.floor(ends[:, None] * values * (1 + 1e-12)) * links).sum(axis=1)
    return float(ends[np.argmax(carried >= pieces)] / least - 1)
