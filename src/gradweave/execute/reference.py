"""The oracle: a schedule played in NumPy, with all servers' memories in one array."""

import itertools
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from gradweave.errors import OptionError
from gradweave.execute.reduction import Reduction, check_reduction, combine
from gradweave.schedule.schedule import COPY, Schedule

Combine = Callable[[np.ndarray, np.ndarray], None]
"""Combines its second argument into its first, in place."""


def play(
    schedule: Schedule, contributions: NDArray, reduction: Reduction | Combine = "sum"
) -> NDArray:
    """Runs a schedule, transfer by transfer.

    Transfers of a round read what stood at their sources when the round began, and write in the
    schedule's order. The backends do the same additions in the same order and so arrive at the same
    bits.

    Args:
        schedule: the schedule.
        contributions: [N, elements] of each server, by rank; of a demand the elements of all its
            blocks, of which a server's own count that it contributes to.
        reduction: how contributions are combined.

    Returns:
        [N, elements] the result of each server. After a reduce-scatter only the pieces at their
        roots mean anything; an all-gather reads only those; of a demand see `meaningful`.

    Raises:
        OptionError: the contributions are not one row per server, or have no mean.

    >>> import gradweave as gw
    >>> schedule = gw.schedulers.Ring().schedule(gw.topology.ring(3))
    >>> play(schedule, np.array([[1, 2, 3, 4], [10, 20, 30, 40], [100, 200, 300, 400]]))
    array([[111, 222, 333, 444],
           [111, 222, 333, 444],
           [111, 222, 333, 444]])
    """
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
    """[N, elements] what each server holds after all transfers.

    Args:
        schedule: the schedule.
        contributions: [N, elements] of each server, by rank.
        at: [P+1] where each piece starts.
        reduction: how contributions are combined; a mean is not yet divided.
    """
    held = np.array(contributions)
    rank = schedule.topology.rank
    source, target = rank[schedule.source], rank[schedule.target]
    for first, last in itertools.pairwise(schedule.round_offsets):
        rows = range(first, last)
        part = [slice(at[p], at[p + 1]) for p in schedule.piece[first:last]]
        sent = [held[source[t], part[t - first]].copy() for t in rows]
        for t in rows:
            into = held[target[t], part[t - first]]
            if schedule.op[t] == COPY:
                into[:] = sent[t - first]
            elif callable(reduction):
                reduction(into, sent[t - first])
            else:
                combine(reduction, into, sent[t - first])
    return held


def meaningful(schedule: Schedule, elements: int) -> NDArray[np.bool_]:
    """[N, elements] whether an element means anything at a server after the schedule.

    Args:
        schedule: the schedule.
        elements: length of the gradient.
    """
    servers, topology = schedule.topology.num_servers, schedule.topology
    if schedule.demand is not None:
        gets = schedule.destinations
        table = np.zeros((servers, schedule.pieces), bool)
        table[topology.rank[gets.servers], gets.owner] = True
        return np.repeat(table, np.diff(schedule.piece_offsets(elements)), axis=1)
    if schedule.collective != "reduce_scatter":
        return np.ones((servers, elements), bool)
    rank = topology.rank[schedule.root]
    piece = np.repeat(np.arange(schedule.pieces), np.diff(schedule.piece_offsets(elements)))
    return rank[piece] == np.arange(servers)[:, None]
