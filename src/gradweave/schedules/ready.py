"""Release times: of servers' gradients, for a run, and of jobs, for a demand."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gradweave.errors import OptionError
from gradweave.schedules.schedule import Schedule
from gradweave.topology.topology import Topology

ReadyAt = Sequence[float] | NDArray[np.float64]
"""Seconds, one for each server in order of id."""


def ready_times(topology: Topology, ready_at_s: ReadyAt | None) -> NDArray[np.float64]:
    """[N] seconds at which each server is ready, by rank; zeros if none are given.

    Args:
        topology: the network.
        ready_at_s: [N], or None.

    Raises:
        OptionError: the number of times is wrong, or one is invalid.

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


def planned_ready_times(schedule: Schedule) -> NDArray[np.float64] | None:
    """[N] times in seconds at which servers are ready in the run planned for.

    Args:
        schedule: from a search, or from a file with any content.

    Returns:
        The times, or None if all servers are ready at the start or the stated times are invalid.
    """
    stated = schedule.scheduler.options.get("ready_at_s")
    if not isinstance(stated, list | tuple) or not all(
        isinstance(time, int | float) and not isinstance(time, bool) for time in stated
    ):
        return None
    try:
        times = ready_times(schedule.topology, stated)
    except OptionError:  # times of another network, or invalid times
        return None
    return times if times.any() else None


def ready_at_once(schedule: Schedule) -> Schedule:
    """The same transfers for a run in which all servers and jobs are ready at the start.

    Args:
        schedule: the schedule; returned unchanged if it was planned for such a run.
    """
    options, demand = schedule.scheduler.options, schedule.demand
    if demand is not None and demand.ready_at_s.any():
        demand = dataclasses.replace(demand, ready_at_s=np.zeros(len(demand.jobs)))
    elif planned_ready_times(schedule) is None:
        return schedule
    kept = {name: value for name, value in options.items() if name != "ready_at_s"}
    made_by = dataclasses.replace(schedule.scheduler, options=kept)
    return schedule.replace(demand=demand, scheduler=made_by)


def earliest_starts(schedule: Schedule, ready_at_s: ReadyAt | None) -> NDArray[np.float64]:
    """[T] seconds before which each transfer's source has nothing to send.

    Everything a server sends contains its contribution: in an all-gather only in the pieces that it
    roots; with a demand, only in blocks that it contributes to. Data received before the server is
    ready waits there to be added. No data of a demand's job is sent before the job is ready.

    Args:
        schedule: the schedule.
        ready_at_s: [N] when each server is ready, by rank; by default the times that the schedule
            was planned for.

    Raises:
        OptionError: see `ready_times`.
    """
    topology, demand = schedule.topology, schedule.demand
    if ready_at_s is None:
        ready_at_s = planned_ready_times(schedule)
    if ready_at_s is None and (demand is None or not demand.ready_at_s.any()):
        return np.zeros(schedule.num_transfers)
    own = ready_times(topology, ready_at_s)[topology.rank[schedule.source]]
    gives = schedule.contributors.has(schedule.piece, schedule.source)
    if demand is None or schedule.block is None:
        return np.where(gives, own, 0.0)
    of_job = demand.ready_at_s[demand.job][schedule.block[schedule.piece]]
    return np.where(gives, np.maximum(own, of_job), of_job)
