"""Bytes that a schedule moves, counted transfer by transfer."""

import dataclasses

import numpy as np
from numpy.typing import NDArray

from gradweave.errors import OptionError
from gradweave.schedules.given import ScheduleLike, as_schedule
from gradweave.schedules.schedule import Schedule, inside_rows
from gradweave.topology.topology import Floats, Integers
from gradweave.topology.units import as_size


@dataclasses.dataclass(frozen=True, eq=False)
class Traffic:
    """Bytes per link direction and per server."""

    link_bytes: Floats
    """[L] bytes that each link direction carries."""
    sent_bytes: Floats
    """[N] bytes that each server sends as a source, by rank."""
    received_bytes: Floats
    """[N] bytes that each server receives as a target, by rank."""
    forwarded_bytes: Floats
    """[N] bytes that each server forwards on the routes of others, by rank."""


def traffic(schedule: ScheduleLike, gradient_bytes: float | str | None = None) -> Traffic:
    """Counts the bytes that a schedule moves.

    Args:
        schedule: the schedule.
        gradient_bytes: size of the whole gradient, M; not needed if the schedule has a demand.

    Source: Bandyopadhyay's comparison (lecture, 2025): 2·(N−1)·M at the server against
    2·(N−1)/N·M.

    >>> import gradweave as gw
    >>> ring = gw.schedulers.Ring().schedule(gw.topology.ring(8))
    >>> gw.simulator.traffic(ring, gradient_bytes=800).sent_bytes.tolist() == [2 * 7 / 8 * 800] * 8
    True
    """
    schedule = as_schedule(schedule)
    moved = piece_bytes(schedule, gradient_bytes)[schedule.piece]
    topology = schedule.topology
    links, transfer = schedule.route_links
    inside = inside_rows(schedule.route_offsets)
    forwarded = np.repeat(moved, np.diff(schedule.route_offsets))[inside]
    per_node = {
        "sent": _sums(schedule.source, moved, topology.num_nodes),
        "received": _sums(schedule.target, moved, topology.num_nodes),
        "forwarded": _sums(schedule.route_nodes[inside], forwarded, topology.num_nodes),
    }
    return Traffic(
        link_bytes=_sums(links, moved[transfer], len(topology.source)),
        **{f"{name}_bytes": each[topology.servers] for name, each in per_node.items()},
    )


def _sums(index: Integers, values: Floats, length: int) -> NDArray[np.float64]:
    """[length] the sum of the values at each index."""
    return np.bincount(index, values, length).astype(np.float64)


def piece_bytes(schedule: Schedule, gradient_bytes: float | str | None) -> NDArray[np.float64]:
    """[P] size of each piece of a gradient, or of a demand's blocks.

    Args:
        schedule: the schedule.
        gradient_bytes: size of the gradient, or of all blocks together; the demand's bytes if not
            given.

    Raises:
        OptionError: the size is not a finite, non-negative number.
    """
    if gradient_bytes is None and schedule.demand is not None:
        gradient_bytes = schedule.demand.total_bytes
    gradient_bytes = None if gradient_bytes is None else as_size(gradient_bytes)
    if gradient_bytes is None or not np.isfinite(gradient_bytes) or gradient_bytes < 0:
        raise OptionError(
            f"gradient_bytes: expected a finite number of at least 0, got {gradient_bytes}"
        )
    return gradient_bytes * schedule.share
