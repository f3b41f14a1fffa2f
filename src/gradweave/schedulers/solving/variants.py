"""Variants of a schedule: finer pieces, other rounds, other link capacities."""

import dataclasses
from itertools import pairwise

import numpy as np

from gradweave.errors import OptionError
from gradweave.schedulers.ordering.list_scheduling_in_rounds import first_fit
from gradweave.schedulers.solving.tuning import TUNING
from gradweave.schedules.schedule import Schedule, take_rows
from gradweave.topology.topology import Topology
from gradweave.topology.units import ROUNDING


def split(schedule: Schedule, parts: int) -> Schedule:
    """Cuts each piece into parts that follow each other along its way (pipelining).

    Round r becomes rounds r·parts to r·parts + parts − 1, each of which moves one part of
    everything that moved in round r. The bytes are the same. If transfers need not wait for rounds
    to end, a part travels on while the next follows, so that links idle less while data is on its
    way.

    Args:
        schedule: a valid schedule; the result is also valid.
        parts: the number of parts per piece.

    Source: Patarasuk and Yuan 2009 (pipelined broadcasts); Thakur, Rabenseifner and Gropp 2005.

    >>> import gradweave as gw
    >>> tree = gw.schedulers.Binomial().schedule(gw.topology.hypercube(3))
    >>> halves = split(tree, 2)
    >>> (tree.pieces, tree.rounds), (halves.pieces, halves.rounds)
    ((1, 6), (2, 12))
    """
    if parts < 1:
        raise OptionError(f"split: parts: expected at least 1, got {parts}")
    if parts == 1:
        return schedule
    part = np.arange(parts, dtype=np.int64)
    # Rows sorted by round, part, and then as before.
    count = np.diff(schedule.round_offsets)
    row, of_part = np.empty((2, schedule.num_transfers * parts), np.int64)
    for first, size in zip(schedule.round_offsets.tolist(), count.tolist(), strict=False):
        here = slice(first * parts, (first + size) * parts)
        row[here] = np.tile(np.arange(first, first + size), parts)
        of_part[here] = np.repeat(part, size)
    return schedule.take(
        row,
        root=np.repeat(schedule.root, parts),
        round=schedule.round[row] * np.int64(parts) + of_part,
        piece=schedule.piece[row] * np.int64(parts) + of_part,
        bound=None,
        shares=None if schedule.shares is None else np.repeat(schedule.shares, parts),
    )


def rated(topology: Topology) -> Topology | None:
    """The network with capacities proportional to bandwidths, or None if they already are.

    Bandwidths are rounded to multiples of a unit: the smallest bandwidth, or 1/2 to 1/4 of it.
    """
    each = topology.bandwidth_bytes_per_s / topology.capacity
    if each.max() <= each.min() * (1 + ROUNDING):
        return None
    ratio = topology.bandwidth_bytes_per_s / topology.bandwidth_bytes_per_s.min()
    capacity = np.ones(len(ratio))
    for finer in (1, 2, 3, 4):
        capacity = np.clip(np.rint(ratio * finer), 1, TUNING.max_capacity)
        if (np.abs(capacity / (ratio * finer) - 1) <= TUNING.capacity_error).all():
            break
    return dataclasses.replace(topology, capacity=capacity.astype(np.int64))


def refitted(schedule: Schedule, topology: Topology) -> Schedule:
    """A schedule made for other capacities, with each round spread over as many as it needs.

    The result is valid if no transfer of a round writes data that another transfer of the same
    round reads, as with merged trees.

    Args:
        schedule: the schedule.
        topology: the same network with its actual capacities.
    """
    links, transfer = schedule.route_links
    first_link = np.searchsorted(transfer, np.arange(schedule.num_transfers + 1))
    rounds = np.empty(schedule.num_transfers, np.int64)
    begin = 0
    for low, high in pairwise(schedule.round_offsets.tolist()):
        if low == high:
            continue
        of_round = take_rows(links, first_link, np.arange(low, high))
        rounds[low:high] = begin + first_fit(*of_round, topology.capacity, np.arange(high - low))
        begin = int(rounds[low:high].max()) + 1
    return schedule.replace(topology=topology, round=rounds, bound=None)
