"""Bytes that a schedule moves, counted transfer by transfer."""

import dataclasses

import numpy as np

from gradweave.errors import OptionError
from gradweave.schedule.schedule import Schedule, inside_rows
from gradweave.topology.topology import Floats


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


def traffic(schedule: Schedule, gradient_bytes: float) -> Traffic:
    """Counts the bytes that a schedule moves.

    Args:
        schedule: the schedule; its pieces are of equal size.
        gradient_bytes: size of the whole gradient, M.

    Source: Bandyopadhyay's comparison (lecture, 2025): 2·(N−1)·M at the server against
    2·(N−1)/N·M.

    >>> import gradweave as gw
    >>> ring = gw.schedulers.Ring().schedule(gw.topology.ring(8))
    >>> gw.simulate.traffic(ring, gradient_bytes=800).sent_bytes.tolist() == [2 * 7 / 8 * 800] * 8
    True
    """
    piece_bytes = bytes_per_piece(schedule, gradient_bytes)
    topology = schedule.topology
    links, _ = schedule.route_links
    per_node = {
        "sent": np.bincount(schedule.source, minlength=topology.num_nodes),
        "received": np.bincount(schedule.target, minlength=topology.num_nodes),
    }
    inside = inside_rows(schedule.route_offsets)
    per_node["forwarded"] = np.bincount(schedule.route_nodes[inside], minlength=topology.num_nodes)
    return Traffic(
        link_bytes=np.bincount(links, minlength=len(topology.source)) * piece_bytes,
        **{
            f"{name}_bytes": count[topology.servers] * piece_bytes
            for name, count in per_node.items()
        },
    )


def bytes_per_piece(schedule: Schedule, gradient_bytes: float) -> float:
    """Size of one piece of a gradient cut evenly.

    Raises:
        OptionError: where the gradient's size is not a finite number of bytes, zero or more.
    """
    if not np.isfinite(gradient_bytes) or gradient_bytes < 0:
        raise OptionError(
            f"gradient_bytes: expected a finite number of at least 0, got {gradient_bytes}"
        )
    return gradient_bytes / schedule.pieces
