"""The list scheduler's loop, compiled.

Workloads with the same route block the same links, so each round considers one workload per
**channel**. A route has as many channels as it can carry transfers per round, and they hold its
ready workloads in heaps, best first. Each round is filled greedily by key and then, if requested,
improved by swaps: a channel that does not fit replaces the channels in its way, if these weigh no
more than it does in total. Swaps of equal weight are made too; they open up options for others, as
in a search for a large independent set.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradweave.common.compiled import kernel
from gradweave.schedulers.kernels.slots import (
    SKIPPED_EQUALS,
    Slots,
    any_holder,
    claim,
    holds_slot,
    is_full,
    no_slots_taken,
    release,
)

RANDOM, DEEPEST, MOST_LOADED = 0, 1, 2
"""The rules; `gradweave.schedulers.ordering.list_scheduling_in_rounds.Rule` defines them."""

SLACK_SCALE = 10
"""Rounds of slack beyond which a link counts as idle: weights are divided by four for each round of
slack, up to here, so that a link weighs at most 2²⁰. Chosen by hand; compiled in."""


class Problem(NamedTuple):
    """Workloads, channels and links as ragged arrays."""

    links: NDArray[np.int64]
    """Link directions of the channels' routes, concatenated."""
    first_link: NDArray[np.int64]
    """[G+1] index of each channel's first link."""
    capacity: NDArray[np.int64]
    """[L] transfers per round."""
    items: NDArray[np.int64]
    """[W] workloads by channel, best first."""
    first_item: NDArray[np.int64]
    """[G+1] index of each channel's first workload."""
    channel: NDArray[np.int64]
    """[W] channel of each workload."""
    place: NDArray[np.int64]
    """[W] position of each workload in `items`."""
    tie: NDArray[np.int64]
    """[W] position of each workload in the order that breaks ties."""
    heights: NDArray[np.int64]
    """[W] longest chain that each workload begins."""
    waiters: NDArray[np.int64]
    """Workloads that wait for each workload, concatenated."""
    first_waiter: NDArray[np.int64]
    """[W+1] index of each workload's first waiter."""
    is_copy: NDArray[np.bool_]
    """[W] whether each workload is a copy."""


class How(NamedTuple):
    """The rule by which rounds are filled, and the limits."""

    rule: int
    """`RANDOM`, `DEEPEST` or `MOST_LOADED`."""
    barrier: bool
    """Whether copies wait for all reductions."""
    max_rounds: int
    """Number of rounds after which to give up."""
    target: int
    """Number of rounds to aim at, from which the slack of links is measured."""
    passes: int
    """Number of passes of swaps over all channels, per round."""
    seed: int
    """Seed of the swaps' order."""
    finish: bool
    """Whether to continue without swaps when time is up, or to give up."""


class State(NamedTuple):
    """The ready workloads, and the round being filled."""

    heap: NDArray[np.int64]
    """[W] positions of ready workloads: a binary heap per channel, in its part of the array."""
    ready: NDArray[np.int64]
    """[G] number of ready workloads per channel."""
    load: NDArray[np.int64]
    """[L] transfers that each link direction still has to carry."""
    slots: Slots
    """The channels that send in this round, by link direction."""
    sending: NDArray[np.bool_]
    """[G] whether a channel sends its best workload in this round."""
    weight: NDArray[np.int64]
    """[G] weights for swaps."""
    touched: NDArray[np.bool_]
    """[G] whether a channel's best workload may have changed since the channels were sorted."""
    removed: NDArray[np.int64]
    """Scratch, as long as the longest route: channels in the way of another."""


@kernel
def run(
    problem: Problem, how: How, waiting_for: NDArray[np.int64], stop: NDArray[np.bool_]
) -> NDArray[np.int32]:
    """[W] round of each workload; an empty array if it gave up.

    Args:
        problem: the workloads, channels and links.
        how: the rule and the limits.
        waiting_for: [W] number of dependencies; consumed.
        stop: [1] set by another thread when time is up: from then on there are no swaps, and
            without `How.finish` it gives up.
    """
    np.random.seed(how.seed)
    rule, barrier = how.rule, how.barrier
    count, at = len(problem.items), 0
    rounds = np.full(count, -1, np.int32)
    state = _start(problem)
    reduces = count - problem.is_copy.sum()
    _push_ready(problem, state, waiting_for, rounds, not (barrier and reduces))
    channels = np.empty(0, np.int64)
    left = count
    while left:
        if at >= how.max_rounds or (stop[0] and not how.finish):
            return np.empty(0, np.int32)
        channels = _sorted_channels(problem, state, channels)
        candidates = _fill(problem, state, channels, rule)
        if how.passes and not stop[0]:
            _weigh(problem, state, rule, candidates, how.target - at)
        for _ in range(how.passes):
            if stop[0] or not _swap(
                problem, state, candidates[np.random.permutation(len(candidates))]
            ):
                break
        sent = _send(problem, state, candidates)
        left -= len(sent)
        reduces -= _arrive(problem, state, sent, waiting_for, rounds, at, not barrier)
        if barrier and reduces == 0:
            _push_ready(problem, state, waiting_for, rounds, True)
            barrier = False
        at += 1
    return rounds


@kernel(inner=True)
def _start(problem: Problem) -> State:
    channels, links = len(problem.first_link) - 1, len(problem.capacity)
    load = np.zeros(links, np.int64)
    longest = _count_load(problem, load)
    return State(
        heap=np.empty(len(problem.items), np.int64),
        ready=np.zeros(channels, np.int64),
        load=load,
        slots=no_slots_taken(problem.capacity),
        sending=np.zeros(channels, np.bool_),
        weight=np.zeros(channels, np.int64),
        touched=np.zeros(channels, np.bool_),
        removed=np.empty(longest, np.int64),
    )


@kernel(inner=True, allocates=False)
def _count_load(problem: Problem, load: NDArray[np.int64]) -> int:
    """Adds up the load of each link direction; returns the most links of a route."""
    longest = 0
    for channel in range(len(problem.first_link) - 1):
        longest = max(longest, problem.first_link[channel + 1] - problem.first_link[channel])
        for i in range(problem.first_link[channel], problem.first_link[channel + 1]):
            load[problem.links[i]] += problem.first_item[channel + 1] - problem.first_item[channel]
    return longest


@kernel(inner=True, allocates=False)
def _push_ready(
    problem: Problem,
    state: State,
    waiting_for: NDArray[np.int64],
    rounds: NDArray[np.int32],
    copies: bool,
) -> None:
    """Adds all unsent workloads without pending dependencies; copies only if allowed."""
    for w in range(len(rounds)):
        if waiting_for[w] == 0 and rounds[w] < 0 and (copies or not problem.is_copy[w]):
            _push(problem, state, w)


@kernel(inner=True, allocates=False)
def _arrive(
    problem: Problem,
    state: State,
    sent: NDArray[np.int64],
    waiting_for: NDArray[np.int64],
    rounds: NDArray[np.int32],
    at: int,
    copies: bool,
) -> int:
    """Records sent workloads and adds newly ready ones; returns the number of reductions sent."""
    reduces = 0
    for w in sent:
        rounds[w] = at
        reduces += not problem.is_copy[w]
    for w in sent:
        for i in range(problem.first_waiter[w], problem.first_waiter[w + 1]):
            waiter = problem.waiters[i]
            waiting_for[waiter] -= 1
            if waiting_for[waiter] == 0 and (copies or not problem.is_copy[waiter]):
                _push(problem, state, waiter)
    return reduces


@kernel(inner=True, allocates=False)
def _push(problem: Problem, state: State, w: int) -> None:
    """Adds a workload to the ready workloads of its channel."""
    channel = problem.channel[w]
    base = problem.first_item[channel]
    child = state.ready[channel]
    state.ready[channel] += 1
    place = problem.place[w]
    while child:
        parent = (child - 1) // 2
        if state.heap[base + parent] <= place:
            break
        state.heap[base + child] = state.heap[base + parent]
        child = parent
    state.heap[base + child] = place
    state.touched[channel] = True


@kernel(inner=True, allocates=False)
def _pop(problem: Problem, state: State, channel: int) -> Any:
    """Removes and returns a channel's best ready workload."""
    base = problem.first_item[channel]
    best = problem.items[state.heap[base]]
    state.ready[channel] -= 1
    size = state.ready[channel]
    place = state.heap[base + size]
    parent = 0
    while 2 * parent + 1 < size:
        child = 2 * parent + 1
        if child + 1 < size and state.heap[base + child + 1] < state.heap[base + child]:
            child += 1
        if place <= state.heap[base + child]:
            break
        state.heap[base + parent] = state.heap[base + child]
        parent = child
    state.heap[base + parent] = place
    state.touched[channel] = True
    return best


@kernel(inner=True, allocates=False)
def _best(problem: Problem, state: State, channel: int) -> Any:
    return problem.items[state.heap[problem.first_item[channel]]]


@kernel(inner=True)
def _sorted_channels(
    problem: Problem, state: State, channels: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The channels with ready workloads, by the tie order of their best workloads.

    Channels touched since the last round are sorted and merged into the rest, which is still in
    order: time is linear in the channels with ready workloads, plus a sort of the touched channels.
    """
    touched = np.flatnonzero(state.touched)
    state.touched[touched] = False
    fresh = touched[state.ready[touched] > 0]
    ties = np.empty(len(fresh), np.int64)
    _write_ties(problem, state, fresh, ties)
    order = np.argsort(ties)
    fresh, ties = fresh[order], ties[order]
    # Marks for `_merge` which channels to leave out of the old order.
    state.touched[touched] = True
    merged = np.empty(len(channels) + len(fresh), np.int64)
    count = _merge(problem, state, channels, fresh, ties, merged)
    state.touched[touched] = False
    return merged[:count]


@kernel(inner=True, allocates=False)
def _write_ties(
    problem: Problem, state: State, channels: NDArray[np.int64], ties: NDArray[np.int64]
) -> None:
    """Writes the tie order of each channel's best workload."""
    for i in range(len(channels)):
        ties[i] = problem.tie[_best(problem, state, channels[i])]


@kernel(inner=True, allocates=False)
def _merge(
    problem: Problem,
    state: State,
    channels: NDArray[np.int64],
    fresh: NDArray[np.int64],
    ties: NDArray[np.int64],
    merged: NDArray[np.int64],
) -> int:
    """Merges untouched with touched channels; returns their number."""
    count, following = 0, 0
    for channel in channels:
        if state.touched[channel]:
            continue
        if following < len(fresh):
            tie = problem.tie[_best(problem, state, channel)]
            while following < len(fresh) and ties[following] < tie:
                merged[count] = fresh[following]
                count += 1
                following += 1
        merged[count] = channel
        count += 1
    for i in range(following, len(fresh)):
        merged[count] = fresh[i]
        count += 1
    return count


@kernel(inner=True)
def _fill(
    problem: Problem, state: State, channels: NDArray[np.int64], rule: int
) -> NDArray[np.int64]:
    """Fills the round greedily. Returns the channels in the order tried."""
    if rule != RANDOM:
        key = np.empty(len(channels), np.int64)
        _write_keys(problem, state, rule, channels, key)
        channels = _by_key(channels, key)
    _claim_each(problem, state, channels)
    return channels


@kernel(inner=True, allocates=False)
def _write_keys(
    problem: Problem,
    state: State,
    rule: int,
    channels: NDArray[np.int64],
    key: NDArray[np.int64],
) -> None:
    for i in range(len(channels)):
        key[i] = _key(problem, state, rule, channels[i])


@kernel(inner=True, allocates=False)
def _claim_each(problem: Problem, state: State, channels: NDArray[np.int64]) -> None:
    """Fills an empty round with each channel that fits, in order."""
    state.slots.used[:] = 0
    for channel in channels:
        state.sending[channel] = _claim(problem, state, channel)


@kernel(inner=True, allocates=False)
def _weigh(
    problem: Problem, state: State, rule: int, channels: NDArray[np.int64], left: int
) -> None:
    """Computes the weights for swaps."""
    for channel in channels:
        state.weight[channel] = _weight(problem, state, rule, channel, left)


@kernel(inner=True, allocates=False)
def _key(problem: Problem, state: State, rule: int, channel: int) -> Any:
    """The key of the greedy fill: larger first."""
    if rule == RANDOM:
        return 0
    height = problem.heights[_best(problem, state, channel)]
    if rule == DEEPEST:
        return height
    busiest = 0
    for i in range(problem.first_link[channel], problem.first_link[channel + 1]):
        link = problem.links[i]
        busiest = max(busiest, -(-state.load[link] // problem.capacity[link]))
    return busiest + height


@kernel(inner=True, allocates=False)
def _weight(problem: Problem, state: State, rule: int, channel: int, left: int) -> Any:
    """The weight for swaps. A link with as much load as remaining rounds must not idle."""
    if rule != MOST_LOADED:
        return 1 + _key(problem, state, rule, channel)
    weight = 0
    for i in range(problem.first_link[channel], problem.first_link[channel + 1]):
        link = problem.links[i]
        slack = left - -(-state.load[link] // problem.capacity[link])
        weight += 1 << (2 * (SLACK_SCALE - min(max(slack, 0), SLACK_SCALE)))
    return weight + problem.heights[_best(problem, state, channel)]


@kernel(inner=True)
def _by_key(channels: NDArray[np.int64], key: NDArray[np.int64]) -> NDArray[np.int64]:
    """Channels by descending key, in the given order among equals: a counting sort."""
    if len(channels) == 0:
        return channels
    highest = key.max()
    place = np.zeros(highest + 2, np.int64)
    for k in key:
        place[highest - k + 1] += 1
    for k in range(highest + 1):
        place[k + 1] += place[k]
    result = np.empty(len(channels), np.int64)
    for i in range(len(channels)):
        slot = highest - key[i]
        result[place[slot]] = channels[i]
        place[slot] += 1
    return result


@kernel(inlined=True)
def _claim(problem: Problem, state: State, channel: int) -> bool:
    """Adds a channel to the round, if it fits."""
    first = problem.first_link
    return claim(state.slots, problem.links, first[channel], first[channel + 1], channel)


@kernel(inner=True, allocates=False)
def _swap(problem: Problem, state: State, candidates: NDArray[np.int64]) -> bool:
    """One pass of swaps over all channels. Returns whether anything changed."""
    changed, first, removed = False, problem.first_link, state.removed
    for channel in candidates:
        if state.sending[channel] or not _has_room_somewhere(problem, state, channel):
            continue
        in_the_way, lost = _in_the_way(problem, state, channel), 0
        for other in removed[:in_the_way]:
            lost += state.weight[other]
        if lost > state.weight[channel]:
            continue
        if lost == state.weight[channel] and np.random.random() < SKIPPED_EQUALS:
            continue
        for other in removed[:in_the_way]:
            release(state.slots, problem.links, first[other], first[other + 1], other)
            state.sending[other] = False
        state.sending[channel] = _claim(problem, state, channel)
        changed = True
    return changed


@kernel(inner=True, allocates=False)
def _has_room_somewhere(problem: Problem, state: State, channel: int) -> bool:
    """Whether sending would use a link direction that would otherwise have idle capacity."""
    for i in range(problem.first_link[channel], problem.first_link[channel + 1]):
        if not is_full(state.slots, problem.links[i]):
            return True
    return False


@kernel(inner=True, allocates=False)
def _in_the_way(problem: Problem, state: State, channel: int) -> int:
    """Number of channels to remove so that one fits: a random one on each full link direction.

    Full link directions that a removed channel already uses need no further removal.
    """
    removed, count = state.removed, 0
    for i in range(problem.first_link[channel], problem.first_link[channel + 1]):
        link = problem.links[i]
        if not is_full(state.slots, link):
            continue
        going = False
        for j in range(count):
            going |= holds_slot(state.slots, link, removed[j])
        if not going:
            removed[count] = any_holder(state.slots, link)
            count += 1
    return count


@kernel(inner=True)
def _send(problem: Problem, state: State, candidates: NDArray[np.int64]) -> NDArray[np.int64]:
    """Removes the workloads that the round sends from the channels, and returns them."""
    sent = np.empty(len(candidates), np.int64)
    return sent[: _pop_sent(problem, state, candidates, sent)]


@kernel(inner=True, allocates=False)
def _pop_sent(
    problem: Problem, state: State, candidates: NDArray[np.int64], sent: NDArray[np.int64]
) -> int:
    """Writes the workloads that the round sends; returns their number."""
    count = 0
    for channel in candidates:
        if state.sending[channel]:
            state.sending[channel] = False
            sent[count] = _pop(problem, state, channel)
            count += 1
            for i in range(problem.first_link[channel], problem.first_link[channel + 1]):
                state.load[problem.links[i]] -= 1
    return count
