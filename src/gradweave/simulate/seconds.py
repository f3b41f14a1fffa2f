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
    first = np.searchsorted(transfer, np.arange(schedule.num_transfers))
    latency = np.add.reduceat(topology.latency_s[links], first)
    duration = latency + piece_bytes / rates(schedule)
    longest = np.zeros(schedule.rounds)
    np.maximum.at(longest, schedule.round, duration)
    return longest


def event_seconds(
    schedule: Schedule, gradient_bytes: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Start and end of each transfer, where a transfer waits only for its data and its links.

    A transfer is as fast as in the model of rounds (`rates`). It starts as soon as every earlier
    write to its piece at its source has arrived and each link of its route has that much bandwidth
    left. Transfers claim bandwidth in the schedule's order, hold it for their bytes, and arrive the
    route's latency later. So one alone on a link has all of its bandwidth, whatever its capacity; a
    fast link carries several slow transfers at once; and nothing takes longer than in the model of
    rounds.

    Args:
        schedule: the schedule.
        gradient_bytes: size of the whole gradient.

    Returns:
        [T] start and [T] end in seconds.
    """
    from gradweave.simulate.events import play_events

    piece_bytes = bytes_per_piece(schedule, gradient_bytes)
    if not schedule.num_transfers:
        return np.zeros(0), np.zeros(0)
    topology = schedule.topology
    links, transfer = schedule.route_links
    rate = rates(schedule)
    slowest = np.full(len(topology.source), np.inf)
    np.minimum.at(slowest, links, rate[transfer])
    at_once = np.floor(topology.bandwidth_bytes_per_s / slowest * (1 + 1e-6))
    carried = np.bincount(links, minlength=len(topology.source))
    slots = np.minimum(at_once, carried).astype(np.int64)
    return play_events(
        schedule.round_offsets,
        schedule.piece,
        schedule.source,
        schedule.target,
        links,
        np.searchsorted(transfer, np.arange(schedule.num_transfers + 1)),
        rate,
        topology.bandwidth_bytes_per_s,
        topology.latency_s,
        np.concatenate([[0], np.cumsum(slots)]),
        topology.num_nodes,
        schedule.pieces,
        piece_bytes,
    )


def rates(schedule: Schedule) -> NDArray[np.float64]:
    """[T] bytes per second of each transfer: its share of the scarcest link of its route.

    A link direction's bandwidth divides evenly among the transfers that it carries in their round.

    Args:
        schedule: the schedule.
    """
    topology = schedule.topology
    links, transfer = schedule.route_links
    link_in_round = schedule.round[transfer].astype(np.int64) * len(topology.source) + links
    _, slot, load = np.unique(link_in_round, return_inverse=True, return_counts=True)
    share = topology.bandwidth_bytes_per_s[links] / load[slot]
    first = np.searchsorted(transfer, np.arange(schedule.num_transfers))
    return np.minimum.reduceat(share, first)
