"""The list scheduler's loop, compiled.

Workloads of one route are alike in what they block, so each round looks at one workload per
**lane**: the routes' lanes (as many per route as it can carry in a round) hold their ready
workloads in heaps, best first. Each round is filled greedily by key and then, where asked, improved
by swaps: a lane that does not fit takes the place of those in its way, if together they weigh no
more than it does. Swaps of equal weight are made too; they open room for others, as in a search for
a large independent set.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradweave.compiled import kernel
from gradweave.schedulers.kernels.slots import (
    Slots,
    any_holder,
    claim,
    holds_slot,
    is_full,
    no_slots_taken,
    release,
)

RANDOM, DEEPEST, MOST_LOADED = 0, 1, 2
"""The rules; `gradweave.schedulers.list_scheduling.Rule` gives them their meaning."""

SLACK_SCALE = 10
"""Rounds of slack beyond which a link is as good as idle: weights halve twice for each round of
slack, up to here."""


class Problem(NamedTuple):
    """Workloads, lanes and links as ragged arrays."""

    links: NDArray[np.int64]
    """Link directions of the lanes' routes, one lane after the other."""
    first_link: NDArray[np.int64]
    """[G+1] where each lane's links start."""
    capacity: NDArray[np.int64]
    """[L] transfers per round."""
    items: NDArray[np.int64]
    """[W] workloads, one lane after the other, best first."""
    first_item: NDArray[np.int64]
    """[G+1] where each lane's workloads start."""
    lane: NDArray[np.int64]
    """[W] lane of each workload."""
    place: NDArray[np.int64]
    """[W] place of each workload in `items`."""
    tie: NDArray[np.int64]
    """[W] place of each workload in the order that breaks ties."""
    heights: NDArray[np.int64]
    """[W] longest chain that each workload begins."""
    waiters: NDArray[np.int64]
    """Workloads that wait for each workload, one workload after the other."""
    first_waiter: NDArray[np.int64]
    """[W+1] where each workload's waiters start."""
    is_copy: NDArray[np.bool_]
    """[W]"""


class How(NamedTuple):
    """By what rule, and how long, rounds are filled."""

    rule: int
    """`RANDOM`, `DEEPEST` or `MOST_LOADED`."""
    barrier: bool
    """Whether copies wait for all reduces."""
    max_rounds: int
    """After which to give up."""
    target: int
    """Rounds hoped for, from which the slack of links is counted."""
    passes: int
    """How often the swaps go through all lanes, each round."""
    seed: int
    """Of the swaps' order."""


class State(NamedTuple):
    """What is ready, and the round that is being filled."""

    heap: NDArray[np.int64]
    """[W] places of ready workloads, a binary heap per lane in the lane's part of the array."""
    ready: NDArray[np.int64]
    """[G] number of ready workloads per lane."""
    load: NDArray[np.int64]
    """[L] transfers that each link direction has yet to carry."""
    slots: Slots
    """Which lanes send in this round, by link direction."""
    sending: NDArray[np.bool_]
    """[G] whether a lane sends its best workload in this round."""
    weight: NDArray[np.int64]
    """[G] what the swaps go by."""
    touched: NDArray[np.bool_]
    """[G] whether a lane's best workload may have changed since the lanes were sorted."""


@kernel
def run(
    problem: Problem, how: How, waiting_for: NDArray[np.int64], stop: NDArray[np.bool_]
) -> NDArray[np.int32]:
    """[W] round of each workload; an empty array where `max_rounds` were not enough.

    Args:
        problem: what must move.
        how: the rule, and when to give up.
        waiting_for: [W] number of prefixes; consumed.
        stop: [1] set by another thread once time is up: nothing is swapped from then on.
    """
    np.random.seed(how.seed)
    rule, barrier = how.rule, how.barrier
    count, at = len(problem.items), 0
    rounds = np.full(count, -1, np.int32)
    state = _start(problem)
    reduces = count - problem.is_copy.sum()
    for w in range(count):
        if waiting_for[w] == 0 and not (barrier and problem.is_copy[w] and reduces):
            _push(problem, state, w)
    lanes = np.empty(0, np.int64)
    left = count
    while left:
        if at >= how.max_rounds:
            return np.empty(0, np.int32)
        lanes = _sorted_lanes(problem, state, lanes)
        candidates = _fill(problem, state, lanes, rule)
        if how.passes and not stop[0]:
            for lane in candidates:
                state.weight[lane] = _weight(problem, state, rule, lane, how.target - at)
        for _ in range(how.passes):
            if stop[0] or not _swap(
                problem, state, candidates[np.random.permutation(len(candidates))]
            ):
                break
        sent = _send(problem, state, candidates)
        left -= len(sent)
        for w in sent:
            rounds[w] = at
            reduces -= not problem.is_copy[w]
        for w in sent:
            for i in range(problem.first_waiter[w], problem.first_waiter[w + 1]):
                waiter = problem.waiters[i]
                waiting_for[waiter] -= 1
                if waiting_for[waiter] == 0 and not (barrier and problem.is_copy[waiter]):
                    _push(problem, state, waiter)
        if barrier and reduces == 0:
            for w in range(count):
                if waiting_for[w] == 0 and problem.is_copy[w] and rounds[w] < 0:
                    _push(problem, state, w)
            barrier = False
        at += 1
    return rounds


@kernel(inner=True)
def _start(problem: Problem) -> State:
    lanes, links = len(problem.first_link) - 1, len(problem.capacity)
    load = np.zeros(links, np.int64)
    for lane in range(lanes):
        for i in range(problem.first_link[lane], problem.first_link[lane + 1]):
            load[problem.links[i]] += problem.first_item[lane + 1] - problem.first_item[lane]
    return State(
        heap=np.empty(len(problem.items), np.int64),
        ready=np.zeros(lanes, np.int64),
        load=load,
        slots=no_slots_taken(problem.capacity),
        sending=np.zeros(lanes, np.bool_),
        weight=np.zeros(lanes, np.int64),
        touched=np.zeros(lanes, np.bool_),
    )


@kernel(inner=True)
def _push(problem: Problem, state: State, w: int) -> None:
    """Adds a workload to its lane's ready ones."""
    lane = problem.lane[w]
    base = problem.first_item[lane]
    child = state.ready[lane]
    state.ready[lane] += 1
    place = problem.place[w]
    while child:
        parent = (child - 1) // 2
        if state.heap[base + parent] <= place:
            break
        state.heap[base + child] = state.heap[base + parent]
        child = parent
    state.heap[base + child] = place
    state.touched[lane] = True


@kernel(inner=True)
def _pop(problem: Problem, state: State, lane: int) -> Any:
    """Takes a lane's best ready workload."""
    base = problem.first_item[lane]
    best = problem.items[state.heap[base]]
    state.ready[lane] -= 1
    size = state.ready[lane]
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
    state.touched[lane] = True
    return best


@kernel(inner=True)
def _best(problem: Problem, state: State, lane: int) -> Any:
    return problem.items[state.heap[problem.first_item[lane]]]


@kernel(inner=True)
def _sorted_lanes(problem: Problem, state: State, lanes: NDArray[np.int64]) -> NDArray[np.int64]:
    """The lanes with something ready, by the tie order of their best workloads.

    Lanes touched since the last round are sorted and merged into the rest, which is in order still:
    time in all lanes with something ready, and a sort of the touched ones alone.
    """
    touched = np.flatnonzero(state.touched)
    state.touched[touched] = False
    fresh = touched[state.ready[touched] > 0]
    ties = np.empty(len(fresh), np.int64)
    for i in range(len(fresh)):
        ties[i] = problem.tie[_best(problem, state, fresh[i])]
    order = np.argsort(ties)
    fresh, ties = fresh[order], ties[order]
    state.touched[touched] = True
    merged = np.empty(len(lanes) + len(fresh), np.int64)
    count, following = 0, 0
    for lane in lanes:
        if state.touched[lane]:
            continue
        if following < len(fresh):
            tie = problem.tie[_best(problem, state, lane)]
            while following < len(fresh) and ties[following] < tie:
                merged[count] = fresh[following]
                count += 1
                following += 1
        merged[count] = lane
        count += 1
    for i in range(following, len(fresh)):
        merged[count] = fresh[i]
        count += 1
    state.touched[touched] = False
    return merged[:count]


@kernel(inner=True)
def _fill(problem: Problem, state: State, lanes: NDArray[np.int64], rule: int) -> NDArray[np.int64]:
    """Fills the round greedily. Returns the lanes in the order in which they were tried."""
    if rule != RANDOM:
        key = np.empty(len(lanes), np.int64)
        for i in range(len(lanes)):
            key[i] = _key(problem, state, rule, lanes[i])
        lanes = _by_key(lanes, key)
    state.slots.used[:] = 0
    for lane in lanes:
        state.sending[lane] = _claim(problem, state, lane)
    return lanes


@kernel(inner=True)
def _key(problem: Problem, state: State, rule: int, lane: int) -> Any:
    """What the greedy fill goes by: larger first."""
    if rule == RANDOM:
        return 0
    height = problem.heights[_best(problem, state, lane)]
    if rule == DEEPEST:
        return height
    busiest = 0
    for i in range(problem.first_link[lane], problem.first_link[lane + 1]):
        link = problem.links[i]
        busiest = max(busiest, -(-state.load[link] // problem.capacity[link]))
    return busiest + height


@kernel(inner=True)
def _weight(problem: Problem, state: State, rule: int, lane: int, left: int) -> Any:
    """What the swaps go by. A link with as much load as rounds left must not idle."""
    if rule != MOST_LOADED:
        return 1 + _key(problem, state, rule, lane)
    weight = 0
    for i in range(problem.first_link[lane], problem.first_link[lane + 1]):
        link = problem.links[i]
        slack = left - -(-state.load[link] // problem.capacity[link])
        weight += 1 << (2 * (SLACK_SCALE - min(max(slack, 0), SLACK_SCALE)))
    return weight + problem.heights[_best(problem, state, lane)]


@kernel(inner=True)
def _by_key(lanes: NDArray[np.int64], key: NDArray[np.int64]) -> NDArray[np.int64]:
    """Lanes by descending key, in the given order among equals: a counting sort."""
    if len(lanes) == 0:
        return lanes
    highest = key.max()
    place = np.zeros(highest + 2, np.int64)
    for k in key:
        place[highest - k + 1] += 1
    for k in range(highest + 1):
        place[k + 1] += place[k]
    result = np.empty(len(lanes), np.int64)
    for i in range(len(lanes)):
        slot = highest - key[i]
        result[place[slot]] = lanes[i]
        place[slot] += 1
    return result


@kernel(inlined=True)
def _claim(problem: Problem, state: State, lane: int) -> bool:
    """Adds a lane to the round, if it fits."""
    first = problem.first_link
    return claim(state.slots, problem.links, first[lane], first[lane + 1], lane)


@kernel(inner=True)
def _swap(problem: Problem, state: State, candidates: NDArray[np.int64]) -> bool:
    """One pass of swaps over all lanes. Returns whether anything changed."""
    changed = False
    for lane in candidates:
        if state.sending[lane] or not _has_room_somewhere(problem, state, lane):
            continue
        in_the_way = _in_the_way(problem, state, lane)
        lost = 0
        for other in in_the_way:
            lost += state.weight[other]
        # Of the swaps that change no weight some are left out, so that a pass does not undo itself.
        if lost > state.weight[lane] or (lost == state.weight[lane] and np.random.random() < 0.3):
            continue
        first = problem.first_link
        for other in in_the_way:
            release(state.slots, problem.links, first[other], first[other + 1], other)
            state.sending[other] = False
        state.sending[lane] = _claim(problem, state, lane)
        changed = True
    return changed


@kernel(inner=True)
def _has_room_somewhere(problem: Problem, state: State, lane: int) -> bool:
    """Whether sending would use a link direction that would idle otherwise."""
    for i in range(problem.first_link[lane], problem.first_link[lane + 1]):
        if not is_full(state.slots, problem.links[i]):
            return True
    return False


@kernel(inner=True)
def _in_the_way(problem: Problem, state: State, lane: int) -> NDArray[np.int64]:
    """Lanes to remove so that one fits: one at random on each full link direction.

    None on a link direction from which one goes already.
    """
    first, last = problem.first_link[lane], problem.first_link[lane + 1]
    removed = np.empty(last - first, np.int64)
    count = 0
    for i in range(first, last):
        link = problem.links[i]
        if not is_full(state.slots, link):
            continue
        going = False
        for j in range(count):
            going |= holds_slot(state.slots, link, removed[j])
        if not going:
            removed[count] = any_holder(state.slots, link)
            count += 1
    return removed[:count]


@kernel(inner=True)
def _send(problem: Problem, state: State, candidates: NDArray[np.int64]) -> NDArray[np.int64]:
    """Takes what the round sends off the lanes. Returns the workloads."""
    sent = np.empty(len(candidates), np.int64)
    count = 0
    for lane in candidates:
        if state.sending[lane]:
            state.sending[lane] = False
            sent[count] = _pop(problem, state, lane)
            count += 1
            for i in range(problem.first_link[lane], problem.first_link[lane + 1]):
                state.load[problem.links[i]] -= 1
    return sent[:count]
