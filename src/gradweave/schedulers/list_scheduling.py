"""List scheduling: each round, try the ready workloads by priority and send what fits."""

import enum

import numpy as np
from numpy.typing import NDArray

from gradweave.schedule.flow_tree import Workloads
from gradweave.schedule.schedule import COPY, take_rows


class Rule(enum.IntEnum):
    """What comes first among ready workloads; ties are broken by one random order per run."""

    RANDOM = 0
    """The random order alone: random first fit."""
    DEEPEST = 1
    """The longest chain of waiting workloads behind it."""
    MOST_LOADED = 2
    """The busiest link: most rounds still needed by a link direction of its route, plus the
    longest chain."""


_NEVER = np.iinfo(np.int32).max


def list_schedule(
    workloads: Workloads,
    rule: Rule,
    seed: int,
    *,
    barrier: bool = True,
    max_rounds: int | None = None,
    target: int = 0,
    swap_passes: int = 0,
    late: NDArray[np.bool_] | None = None,
) -> NDArray[np.int32] | None:
    """Assigns a round to each workload.

    Args:
        workloads: what must move.
        rule: what comes first.
        seed: of the random order.
        barrier: for an all-reduce, whether copies wait for all reduces.
        max_rounds: after which to give up.
        target: rounds hoped for; swaps count a link's slack from it.
        swap_passes: how often to improve each round by swaps; 0 is plain list scheduling.
        late: [1] set by another thread once time is up: no swaps from then on.

    Returns:
        [W] rounds; None where it gave up.
    """
    count = len(workloads)
    waiting_for = np.diff(workloads.prefix_offsets)
    waiter = np.repeat(np.arange(count), waiting_for)
    by_prefix = np.argsort(workloads.prefix, kind="stable")
    rounds = _run(
        *workloads.links(),
        workloads.topology.capacity,
        order=np.random.default_rng(seed).permutation(count),
        rule=rule,
        heights=workloads.heights() if rule != Rule.RANDOM else None,
        waiters=waiter[by_prefix],
        first_waiter=np.searchsorted(workloads.prefix[by_prefix], np.arange(count + 1)),
        is_copy=workloads.op == COPY,
        waiting_for=waiting_for,
        barrier=barrier and workloads.collective == "all_reduce",
        max_rounds=_NEVER if max_rounds is None else max_rounds,
        target=target,
        passes=swap_passes,
        seed=seed,
        late=late,
    )
    return rounds if len(rounds) == count else None


def first_fit(
    links: NDArray, first_link: NDArray, capacity: NDArray, order: NDArray
) -> NDArray[np.int32]:
    """Assigns a round to each of some transfers that wait for nothing, in the given order.

    Args:
        links: link directions of all routes, one transfer after the other.
        first_link: [T+1] where each transfer's links start.
        capacity: [L] transfers per round.
        order: [T] transfers, in the order in which they choose.

    Returns:
        [T] rounds.
    """
    return _run(links, first_link, capacity, order=order)


def _run(
    links: NDArray,
    first_link: NDArray,
    capacity: NDArray,
    *,
    order: NDArray,
    rule: Rule = Rule.RANDOM,
    heights: NDArray | None = None,
    waiters: NDArray | None = None,
    first_waiter: NDArray | None = None,
    is_copy: NDArray | None = None,
    waiting_for: NDArray | None = None,
    barrier: bool = False,
    max_rounds: int = _NEVER,
    target: int = 0,
    passes: int = 0,
    seed: int = 0,
    late: NDArray[np.bool_] | None = None,
) -> NDArray[np.int32]:
    from gradweave.schedulers.list_scheduling_kernel import Problem, run

    count = len(order)

    def integers(array: NDArray | None, length: int) -> NDArray[np.int64]:
        return np.zeros(length, np.int64) if array is None else np.array(array, np.int64)

    heights = integers(heights, count)
    capacity = np.minimum(capacity, max(count, 1))  # no link takes more, and each unit has a slot
    tie = np.empty(count, np.int64)
    tie[order] = np.arange(count)
    lane, items, first_item = _lanes(links, first_link, capacity, heights, tie)
    lane_links, lane_first_link = take_rows(links, first_link, items[first_item[:-1]])
    place = np.empty(count, np.int64)
    place[items] = np.arange(count)
    problem = Problem(
        links=integers(lane_links, 0),
        first_link=integers(lane_first_link, 0),
        capacity=integers(capacity, 0),
        first_slot=np.concatenate([[0], np.cumsum(capacity, dtype=np.int64)]),
        items=integers(items, 0),
        first_item=integers(first_item, 0),
        lane=lane,
        place=place,
        tie=tie,
        heights=heights,
        waiters=integers(waiters, 0),
        first_waiter=integers(first_waiter, count + 1),
        is_copy=np.zeros(count, np.bool_) if is_copy is None else is_copy,
    )
    waiting = integers(waiting_for, count)
    late = np.zeros(1, np.bool_) if late is None else late
    return run(problem, int(rule), waiting, barrier, max_rounds, target, passes, seed, late)


def _lanes(
    links: NDArray, first_link: NDArray, capacity: NDArray, heights: NDArray, tie: NDArray
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Groups workloads by route, as many lanes a route as it can carry at once.

    Lanes are numbered by the tie order of their first workloads, so that a pass over lanes in that
    order reads memory in order.

    Returns:
        [W] lane of each workload; [W] workloads by lane, highest first and then by tie; [G+1] where
        each lane's start.
    """
    count = len(tie)
    lengths = np.diff(first_link)
    route = np.zeros(count, np.int64)
    for step in range(int(lengths.max(initial=0))):
        link = np.where(
            step < lengths, links[np.minimum(first_link[:-1] + step, len(links) - 1)], -1
        )
        _, route = np.unique(route * (len(capacity) + 1) + link + 1, return_inverse=True)
    narrowest = (
        np.minimum.reduceat(capacity[links], first_link[:-1]) if count else np.zeros(0, np.int64)
    )
    in_route = np.lexsort((tie, -heights, route))
    starts = np.searchsorted(route[in_route], np.arange(count))
    within = np.empty(count, np.int64)
    within[in_route] = np.arange(count) - starts[route[in_route]]
    _, lane = np.unique(
        route * (int(narrowest.max(initial=1)) + 1) + within % narrowest, return_inverse=True
    )
    earliest = np.full(int(lane.max(initial=-1)) + 1, count)
    np.minimum.at(earliest, lane, tie)
    number = np.empty(len(earliest), np.int64)
    number[np.argsort(earliest)] = np.arange(len(earliest))
    lane = number[lane]
    items = np.lexsort((tie, -heights, lane))
    return lane, items, np.searchsorted(lane[items], np.arange(len(earliest) + 1))
