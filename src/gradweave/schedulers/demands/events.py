"""Parts in event time, where they, or links' bandwidths, differ."""

import numpy as np
from numpy.typing import NDArray

from gradweave.schedulers.demands.rounds_kernel import Transfers
from gradweave.schedulers.kernels.ordered_rounds import rounds_in_order
from gradweave.schedulers.kernels.wires import wires_over
from gradweave.schedulers.unequal.event_simulation_kernel import Trees, simulate
from gradweave.topology.topology import Floats, Topology


def rounds_by_events(
    topology: Topology,
    transfers: Transfers,
    size: Floats,
    busy_s: Floats,
    farther: float,
    ahead: float,
) -> tuple[NDArray[np.int64], float]:
    """Rounds that keep the order in which transfers start, and the seconds that they take.

    Whenever links get free they take, of what is ready and fits, the transfer whose links have most
    left to carry; then the one that counts most as follows. Routes are those planned.

    Args:
        topology: the network.
        transfers: of the parts.
        size: [P] bytes of each part.
        busy_s: [L] seconds for which each link direction carries them all.
        farther: how much the time counts that a part takes to its target, of two that wait for a
            link.
        ahead: how much the time counts for which the busiest link farther on is used.

    Returns:
        [X] rounds, in each of which a link has one transfer, and the seconds.
    """
    parts, counts = len(size), np.diff(transfers.first)
    most = int(counts.max())
    # The first route is of no links: what shorter parts end with.
    links = transfers.links
    first = np.append(0, transfers.first_link)
    wires = wires_over(topology, links, first)
    there = np.arange(most) < counts[:, None]
    hop = np.zeros((parts, most), np.int64)
    hop[there] = transfers.route + 1
    waits = np.broadcast_to(np.minimum(np.arange(most), 1), hop.shape).astype(np.int64)
    following = np.tile(np.arange(1, most), parts).astype(np.int64)
    begins = np.minimum(np.arange(most + 1), most - 1)
    first_following = np.arange(parts)[:, None] * (most - 1) + begins
    takes = np.where(
        there, (wires.latency + wires.overhead)[hop] + size[:, None] / wires.rate[hop], 0
    )
    takes[~there] = 0.0
    onward = np.cumsum(takes[:, ::-1], axis=1)[:, ::-1]
    load = np.zeros(len(first) - 1)
    np.maximum.at(load, np.repeat(np.arange(len(load)), np.diff(first)), busy_s[links])
    later = np.maximum.accumulate(np.where(there, load[hop], 0.0)[:, ::-1], axis=1)[:, ::-1]
    later = np.append(later[:, 1:], np.zeros((parts, 1)), axis=1)
    urgency = farther * onward + ahead * later
    trees = Trees(
        hop,
        waits,
        following,
        first_following.astype(np.int64),
        np.zeros(hop.shape),
        urgency,
        np.zeros(hop.shape),
    )
    whole = np.asarray(size, np.float64)
    start, seconds = simulate(trees, wires, np.arange(parts), whole, 0.0, parts, np.inf)
    began = start.reshape(hop.shape)[there]
    order = np.argsort(began, kind="stable")
    number = np.arange(len(began))
    rounds = np.empty(len(began), np.int64)
    last = np.repeat(transfers.first[1:], counts) - 1
    rounds[order] = rounds_in_order(
        links,
        transfers.first_link,
        transfers.route[order],
        number[order],
        np.where(number < last, number + 1, len(began))[order],
        len(began) + 1,
        len(topology.source),
    )
    return rounds, float(seconds)
