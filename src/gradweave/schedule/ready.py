"""When servers' own gradients are ready, which is of a run, and jobs, which is of a demand."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gradweave.errors import OptionError
from gradweave.schedule.schedule import Schedule
from gradweave.topology.topology import Topology

ReadyAt = Sequence[float] | NDArray[np.float64]
"""Seconds, one for each server in the order of their ids."""


def ready_times(topology: Topology, ready_at_s: ReadyAt | None) -> NDArray[np.float64]:
    """[N] seconds at which each server is ready, by rank; zeros if none are given.

    Args:
        topology: the network.
        ready_at_s: [N], or None.

    Raises:
        OptionError: for another number of them than servers, or one that is no time.

    >>> import gradweave as gw
    >>> ready_times(gw.topology.ring(3), [0, 0, 0.5]).tolist()
    [0.0, 0.0, 0.5]
    """
    servers = topology.num_servers
    if ready_at_s is None:
        return np.zeros(servers)
    if len(ready_at_s) != servers:
        raise OptionError(
            f"ready_at_s: expected {servers}, one for each server, got {len(ready_at_s)}"
        )
    times = np.asarray(ready_at_s, np.float64)
    wrong = np.flatnonzero(~((times >= 0) & np.isfinite(times)))
    if len(wrong):
        raise OptionError(
            f"ready_at_s: expected finite seconds, zero or more, for the server of rank {wrong[0]},"
            f" got {times[wrong[0]]:g}"
        )
    return times


def earliest_starts(schedule: Schedule, ready_at_s: ReadyAt | None) -> NDArray[np.float64]:
    """[T] seconds before which each transfer's source has nothing to send.

    What a server sends has its own contribution in it: in an all-gather, only of the pieces that it
    roots; of a demand, only of blocks that it contributes to. What it receives before it is ready
    waits there, to be added. Of a demand's job nothing is sent before the job is ready.

    Args:
        schedule: the schedule.
        ready_at_s: [N] when each server is ready, by rank; None for 0.

    Raises:
        OptionError: as `ready_times`.
    """
    topology, demand = schedule.topology, schedule.demand
    if ready_at_s is None and (demand is None or not demand.ready_at_s.any()):
        return np.zeros(schedule.num_transfers)
    own = ready_times(topology, ready_at_s)[topology.rank[schedule.source]]
    if schedule.demand is not None and schedule.block is not None:
        of_block = schedule.demand.ready_at_s[schedule.demand.job]
        of_job = of_block[schedule.block[schedule.piece]]
        return np.where(_contributes(schedule), np.maximum(own, of_job), of_job)
    if schedule.collective == "all_gather":
        return np.where(schedule.source == schedule.root[schedule.piece], own, 0.0)
    return own


def _contributes(schedule: Schedule) -> NDArray[np.bool_]:
    """[T] whether a transfer's source contributes to its piece."""
    sets, nodes = schedule.contributors, schedule.topology.num_nodes
    known = sets.owner * nodes + sets.servers  # ascending
    sent = schedule.piece.astype(np.int64) * nodes + schedule.source
    place = np.minimum(np.searchsorted(known, sent), len(known) - 1)
    return known[place] == sent
