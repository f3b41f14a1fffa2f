"""How long a schedule takes, in seconds: round by round, or event by event."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gradweave.errors import OptionError
from gradweave.schedule.schedule import Schedule
from gradweave.simulate.traffic import bytes_per_piece

Model = Literal["rounds", "events"]
"""How time passes: see `seconds`."""


def seconds(schedule: Schedule, gradient_bytes: float, model: Model = "rounds") -> float:
    """Predicts the time of a schedule.

    Args:
        schedule: the schedule; its pieces are of equal size.
        gradient_bytes: size of the whole gradient.
        model: ``rounds``: a barrier after each round, see `round_seconds`; ``events``: a transfer
            starts as soon as it can, see `event_seconds`.

    Returns:
        Time from the first transfer's start to the last one's end, in seconds.

    Source: docs/concepts/semantics.md.
    """
    if model == "rounds":
        return float(round_seconds(schedule, gradient_bytes).sum())
    if model == "events":
        _, finish = event_seconds(schedule, gradient_bytes)
        return float(finish.max(initial=0.0))
    raise OptionError(f"model: expected rounds or events, got {model!r}")


def round_seconds(schedule: Schedule, gradient_bytes: float) -> NDArray[np.float64]:
    """Duration of each round, where every round waits for its slowest transfer.

    A transfer takes the sum of its route's latencies, plus its bytes over its share of the scarcest
    link: a link direction's bandwidth divides evenly among the transfers that it carries in that
    round.

    Args:
        schedule: the schedule.
        gradient_bytes: size of the whole gradient.

    Returns:
        [rounds] seconds.

    >>> import gradweave as gw
    >>> gigabyte_links = gw.topology.Link(bandwidth_bytes_per_s=1e9, latency_s=0.0)
    >>> ring = gw.schedulers.Ring().schedule(gw.topology.ring(4, link=gigabyte_links))
    >>> gw.simulate.round_seconds(ring, gradient_bytes=4e9).tolist()
    [1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    """
    piece_bytes = bytes_per_piece(schedule, gradient_bytes)
    if not schedule.num_transfers:
        return np.zeros(0)
    topology = schedule.topology
    links, transfer = schedule.route_links
    link_in_round = schedule.round[transfer].astype(np.int64) * len(topology.source) + links
    _, slot, load = np.unique(link_in_round, return_inverse=True, return_counts=True)
    share = topology.bandwidth_bytes_per_s[links] / load[slot]
    first = np.searchsorted(transfer, np.arange(schedule.num_transfers))
    duration = np.add.reduceat(
        topology.latency_s[links], first
    ) + piece_bytes / np.minimum.reduceat(share, first)
    longest = np.zeros(schedule.rounds)
    np.maximum.at(longest, schedule.round, duration)
    return longest


def event_seconds(
    schedule: Schedule, gradient_bytes: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Start and end of each transfer, where a transfer waits only for its data and its links.

    Transfers claim their links in the schedule's order. Each of a link's `capacity` lanes has an
    equal part of the bandwidth and carries one transfer at a time; a transfer starts when every
    earlier write to its piece at its source has arrived and each link of its route has a lane free;
    it holds the lanes for its bytes over the slowest lane, and arrives the route's latency later.
    Bandwidths may differ from link to link.

    Args:
        schedule: the schedule.
        gradient_bytes: size of the whole gradient.

    Returns:
        [T] start and [T] end in seconds.
    """
    from gradweave.simulate.events import play_events

    piece_bytes = bytes_per_piece(schedule, gradient_bytes)
    topology = schedule.topology
    links, transfer = schedule.route_links
    route_start = np.searchsorted(transfer, np.arange(schedule.num_transfers + 1))
    lane_bandwidth = topology.bandwidth_bytes_per_s / topology.capacity
    first_lane = np.concatenate([[0], np.cumsum(topology.capacity, dtype=np.int64)])
    return play_events(
        schedule.round_offsets,
        schedule.piece,
        schedule.source,
        schedule.target,
        links,
        route_start,
        piece_bytes / lane_bandwidth,
        topology.latency_s,
        first_lane,
        topology.num_nodes,
        schedule.pieces,
    )
