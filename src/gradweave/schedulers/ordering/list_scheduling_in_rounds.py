"""List scheduling: each round tries the ready workloads by priority and sends those that fit."""

import enum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradweave.schedulers.problem import grouped, integers
from gradweave.schedules.flow_tree import Workloads
from gradweave.schedules.schedule import COPY, take_rows

if TYPE_CHECKING:
    from gradweave.schedulers.ordering.list_scheduling_in_rounds_kernel import How


class Rule(enum.IntEnum):
    """The priority of ready workloads; ties are broken by one random order per run."""

    RANDOM = 0
    """Only the random order: random first fit."""
    DEEPEST = 1
    """The longest chain of waiting workloads behind it."""
    MOST_LOADED = 2
    """The busiest link: the most rounds still needed by a link direction of its route, plus the
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
    stop: NDArray[np.bool_] | None = None,
    finish: bool = True,
) -> NDArray[np.int32] | None:
    """Assigns a round to each workload.

    Args:
        workloads: the workloads.
        rule: the priority.
        seed: the seed of the random order.
        barrier: for an all-reduce, whether copies wait for all reductions.
        max_rounds: number of rounds after which to give up.
        target: number of rounds to aim at; swaps measure a link's slack from it.
        swap_passes: how often to improve each round by swaps; 0 is plain list scheduling.
        stop: [1] set by another thread when time is up: from then on there are no swaps.
        finish: whether to continue then; if not, it gives up.

    Returns:
        [W] rounds, or None if it gave up.
    """
    from gradweave.schedulers.ordering.list_scheduling_in_rounds_kernel import How

    count = len(workloads)
    order = np.random.default_rng(seed).permutation(count)
    how = How(
        rule=int(rule),
        barrier=barrier and workloads.collective == "all_reduce",
        max_rounds=_NEVER if max_rounds is None else max_rounds,
        target=target,
        passes=swap_passes,
        seed=seed,
        finish=finish,
    )
    stop = np.zeros(1, np.bool_) if stop is None else stop
    chains = _Chains.of(workloads, rule)
    rounds = _run(workloads.links(), workloads.topology.capacity, order, chains, how, stop)
    return rounds if len(rounds) == count else None


def first_fit(
    links: NDArray, first_link: NDArray, capacity: NDArray, order: NDArray
) -> NDArray[np.int32]:
    """Assigns rounds to transfers without dependencies, in the given order.

    Args:
        links: link directions of all routes, concatenated.
        first_link: [T+1] index of each transfer's first link.
        capacity: [L] transfers per round.
        order: [T] transfers, in the order in which they choose.

    Returns:
        [T] rounds.
    """
    from gradweave.schedulers.ordering.list_scheduling_in_rounds_kernel import How

    how = How(int(Rule.RANDOM), False, max_rounds=_NEVER, target=0, passes=0, seed=0, finish=True)
    chains, in_time = _Chains.none(len(order)), np.zeros(1, np.bool_)
    return _run((links, first_link), capacity, order, chains, how, in_time)


class _Chains(NamedTuple):
    """Dependencies between workloads."""

    heights: NDArray[np.int64]
    """As in `list_scheduling_in_rounds_kernel.Problem`, like the last three fields."""
    waiting_for: NDArray[np.int64]
    """[W] number of workloads that each waits for."""
    waiters: NDArray[np.int64]
    first_waiter: NDArray[np.int64]
    is_copy: NDArray[np.bool_]

    @staticmethod
    def of(workloads: Workloads, rule: Rule) -> "_Chains":
        """The dependencies of workloads; heights only if the rule needs them."""
        none = _Chains.none(len(workloads))
        waiting_for = np.diff(workloads.prefix_offsets)
        by_prefix, first = grouped(workloads.prefix, len(workloads))
        return _Chains(
            none.heights if rule == Rule.RANDOM else integers(workloads.heights()),
            integers(waiting_for),
            integers(np.repeat(np.arange(len(workloads)), waiting_for)[by_prefix]),
            first,
            workloads.op == COPY,
        )

    @staticmethod
    def none(count: int) -> "_Chains":
        """Workloads without dependencies."""
        nothing = np.zeros(count, np.int64)
        none = np.zeros(0, np.int64)
        return _Chains(nothing, nothing, none, np.zeros(count + 1, np.int64), nothing.astype(bool))


def _run(
    routes: tuple[NDArray, NDArray],
    capacity: NDArray,
    order: NDArray,
    chains: _Chains,
    how: "How",
    stop: NDArray[np.bool_],
) -> NDArray[np.int32]:
    """[W] rounds of workloads with the given routes; see `list_schedule` and `first_fit`."""
    from gradweave.schedulers.ordering.list_scheduling_in_rounds_kernel import Problem, run

    # No link needs more capacity than its uses by all routes; each unit of capacity has a slot.
    taken = np.bincount(routes[0], minlength=len(capacity))
    capacity = np.minimum(capacity, np.maximum(taken, 1))
    tie = np.argsort(order)
    channel, items, first_item = _channels(*routes, capacity, chains.heights, tie)
    channel_links, channel_first_link = take_rows(*routes, items[first_item[:-1]])
    problem = Problem(
        links=integers(channel_links),
        first_link=integers(channel_first_link),
        capacity=integers(capacity),
        items=integers(items),
        first_item=integers(first_item),
        channel=channel,
        place=np.argsort(items),
        tie=tie,
        heights=chains.heights,
        waiters=chains.waiters,
        first_waiter=chains.first_waiter,
        is_copy=chains.is_copy,
    )
    return run(problem, how, chains.waiting_for.copy(), stop)  # the loop counts it down


def _channels(
    links: NDArray, first_link: NDArray, capacity: NDArray, heights: NDArray, tie: NDArray
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Groups workloads by route, with as many channels per route as it can carry at a time.

    Channels are numbered by the tie order of their first workloads, so that a pass over them in
    that order reads memory in order.

    Returns:
        [W] channel of each workload; [W] workloads by channel, highest first, ties in order; [G+1]
        index of each channel's first workload.
    """
    count = len(tie)
    lengths = np.diff(first_link)
    # Routes with the same links get the same number, link by link; −1 pads shorter routes.
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
    # The workloads of a route are dealt out to its channels in turn.
    _, channel = np.unique(
        route * (int(narrowest.max(initial=1)) + 1) + within % narrowest, return_inverse=True
    )
    earliest = np.full(int(channel.max(initial=-1)) + 1, count)
    np.minimum.at(earliest, channel, tie)
    channel = np.argsort(np.argsort(earliest))[channel]
    items = np.lexsort((tie, -heights, channel))
    return channel, items, np.searchsorted(channel[items], np.arange(len(earliest) + 1))
