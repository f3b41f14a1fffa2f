"""The reference executor: plays a schedule in NumPy, with all servers' memories in one array."""

import itertools
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from gradweave.errors import OptionError
from gradweave.execute.exchanges import OWN, writes
from gradweave.execute.reduction import Reduction, check_reduction, combine
from gradweave.schedules.given import ScheduleLike, as_schedule
from gradweave.schedules.schedule import COPY, Schedule

Combine = Callable[[np.ndarray, np.ndarray], None]
"""Combines its second argument into its first, in place."""


def play(
    schedule: ScheduleLike, contributions: NDArray, reduction: Reduction | Combine = "sum"
) -> NDArray:
    """Runs a schedule, transfer by transfer.

    Each transfer reads the value that its source held when the round began. Writes happen in the
    order of `gradweave.execute.exchanges.writes`. The backends do the same additions in the same
    order, and therefore get the same bits.

    Args:
        schedule: the schedule.
        contributions: [N, elements] the contribution of each server, by rank. For a demand, a
            row has the elements of all blocks; of a server's row, only the blocks that the server
            contributes to are used.
        reduction: how contributions are combined.

    Returns:
        [N, elements] the result of each server. After a reduce-scatter, only the pieces at their
        roots are meaningful; an all-gather reads only those. For a demand, see `meaningful`.

    Raises:
        OptionError: there is not one row per server, or the type has no mean.

    >>> import gradweave as gw
    >>> schedule = gw.schedulers.Ring().schedule(gw.topology.ring(3))
    >>> play(schedule, np.array([[1, 2, 3, 4], [10, 20, 30, 40], [100, 200, 300, 400]]))
    array([[111, 222, 333, 444],
           [111, 222, 333, 444],
           [111, 222, 333, 444]])
    """
    schedule = as_schedule(schedule)
    servers = schedule.topology.num_servers
    if contributions.ndim != 2 or len(contributions) != servers:
        raise OptionError(
            f"contributions: expected {servers} rows, one per server, got an array of shape "
            f"{contributions.shape}"
        )
    if not callable(reduction):
        kind = contributions.dtype.kind
        check_reduction(reduction, floating=kind in "fcV", dtype=contributions.dtype)
    at = schedule.piece_offsets(contributions.shape[1])
    held = play_pieces(schedule, contributions, at, reduction)
    if reduction == "mean" and schedule.demand is not None:
        held /= np.repeat(schedule.contributors.sizes, np.diff(at))
    elif reduction == "mean" and schedule.collective != "all_gather":
        held /= servers
    return held


def play_pieces(
    schedule: Schedule, contributions: NDArray, at: NDArray, reduction: Reduction | Combine
) -> NDArray:
    """[N, elements] the memory of each server after all transfers.

    Args:
        schedule: the schedule.
        contributions: [N, elements] the contribution of each server, by rank.
        at: [P+1] start of each piece.
        reduction: how contributions are combined; a mean is not divided yet.
    """
    held = np.array(contributions)
    rank = schedule.topology.rank
    source, target = rank[schedule.source], rank[schedule.target]
    for first, last in itertools.pairwise(schedule.round_offsets):
        rows = range(first, last)
        part = [slice(at[p], at[p + 1]) for p in schedule.piece[first:last]]
        sent = [held[source[t], part[t - first]].copy() for t in rows]
        arrived: dict[int, list[int]] = {}
        for t in rows:
            arrived.setdefault(int(target[t]), []).append(t)
        for server, mine in arrived.items():
            own = into = np.zeros(0)
            for row, op, keeps in writes(schedule, mine):
                value = own
                if row != OWN:
                    into, value = held[server, part[row - first]], sent[row - first]
                own = into.copy() if keeps else own
                if op == COPY:
                    into[:] = value
                elif callable(reduction):
                    reduction(into, value)
                else:
                    combine(reduction, into, value)
    return held


def meaningful(schedule: Schedule, elements: int) -> NDArray[np.bool_]:
    """[N, elements] whether an element is part of a server's result.

    Args:
        schedule: the schedule.
        elements: length of the gradient.
    """
    gets, topology = schedule.destinations, schedule.topology
    table = np.zeros((topology.num_servers, schedule.pieces), bool)
    table[topology.rank[gets.servers], gets.owner] = True
    return np.repeat(table, np.diff(schedule.piece_offsets(elements)), axis=1)
