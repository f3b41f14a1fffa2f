"""Sequences of groups' compositions, compiled: boundaries, the least of them, and a search.

Compositions are 0 … C−1; `taken` [C, Q] has how many devices of each class each one takes. All
times are whole nanoseconds.
"""

import numpy as np
from numpy.typing import NDArray

from gradweave.compiled import kernel
from gradweave.placement.exchange_kernel import matching

NEVER = np.int64(1) << np.int64(58)
"""Longer than any sequence: of groups that cannot stand in one placement."""


@kernel
def boundaries(
    steps: NDArray[np.int64], taken: NDArray[np.int64], sizes: NDArray[np.int64]
) -> NDArray[np.int64]:
    """[C, C] the least time from one group to another: their bottleneck matching.

    Args:
        steps: [Q, Q] the shortest step between devices of two classes.
        taken: [C, Q].
        sizes: [Q] devices of each class.
    """
    count, classes = taken.shape
    data = taken[0].sum()
    member = np.empty((count, data), np.int64)
    for one in range(count):
        place = 0
        for own in range(classes):
            for _ in range(taken[one, own]):
                member[one, place] = own
                place += 1
    found = np.full((count, count), NEVER)
    weights = np.empty((data, data))
    for one in range(count):
        for other in range(one + 1):
            if (taken[one] + taken[other] > sizes).any():
                continue
            for i in range(data):
                for j in range(data):
                    weights[i, j] = steps[member[one, i], member[other, j]]
            found[one, other] = found[other, one] = np.int64(matching(weights)[0])
    return found


@kernel
def completions(edges: NDArray[np.int64], own: NDArray[np.int64], groups: int) -> NDArray[np.int64]:
    """[groups, C] the least that so many more groups cost after one of a composition."""
    count = len(own)
    least = np.zeros((groups, count), np.int64)
    for more in range(1, groups):
        for one in range(count):
            best = NEVER
            for other in range(count):
                best = min(best, edges[one, other] + own[other] + least[more - 1, other])
            least[more, one] = best
    return least


@kernel
def least_walk(
    edges: NDArray[np.int64], own: NDArray[np.int64], caps: NDArray[np.int64], groups: int
) -> tuple[int, NDArray[np.int64]]:
    """The cheapest sequence of groups, and its compositions.

    Args:
        edges: [C, C] what a boundary costs.
        own: [C] what a group costs.
        caps: [C] how often a composition may follow itself, at most.
        groups: in the sequence.
    """
    count = len(own)
    best = np.full((groups, count), NEVER)
    length = np.ones((groups, count), np.int64)
    before = np.full((groups, count), -1, np.int64)
    entered = np.full((groups, count), NEVER)
    entered[0] = own
    best[0] = own
    for place in range(1, groups):
        for one in range(count):
            if best[place - 1, one] >= NEVER:
                continue
            for other in range(count):
                value = best[place - 1, one] + edges[one, other]
                if other != one and value + own[other] < entered[place, other]:
                    entered[place, other] = value + own[other]
                    before[place, other] = one
        for one in range(count):
            again = edges[one, one] + own[one]
            for run in range(1, min(caps[one], place + 1) + 1):
                value = entered[place - run + 1, one] + (run - 1) * again
                if value < best[place, one]:
                    best[place, one], length[place, one] = value, run
    last = np.argmin(best[groups - 1])
    value = best[groups - 1, last]
    walk = np.empty(groups, np.int64)
    place = groups - 1
    while place >= 0 and value < NEVER:
        run = length[place, last]
        walk[place - run + 1 : place + 1] = last
        last, place = before[place - run + 1, last], place - run
    return value, walk


@kernel
def search(
    lengths: NDArray[np.int64],
    edges: NDArray[np.int64],
    own: NDArray[np.int64],
    constant: int,
    taken: NDArray[np.int64],
    sizes: NDArray[np.int64],
    groups: int,
    goal: int,
    most: int,
) -> tuple[int, int]:
    """The least cost of sequences that take no more of a class than there is; depth first.

    A sequence costs its boundaries' lengths, or what it costs by duals and runs if that is more.
    Its beginning is left where it and its cheapest completion by either, whatever that takes, cost
    no less than the goal, or than the best sequence so far.

    Args:
        lengths: [C, C] of boundaries.
        edges: [C, C] what a boundary costs by duals and runs.
        own: [C] what a group costs so.
        constant: what each sequence costs so in addition.
        taken: [C, Q].
        sizes: [Q].
        groups: in the sequence.
        goal: costs from which on nothing is looked for.
        most: compositions that are looked at, over all sequences.

    Returns:
        The least cost, at most the goal, or −`NEVER` where it was not found in so many; and how
        many were looked at.
    """
    after = completions(edges, own, groups)
    count = len(own)
    longer = completions(lengths, np.zeros(count, np.int64), groups)
    length = np.zeros(groups + 1, np.int64)
    left = sizes.copy()
    chosen = np.full(groups, -1, np.int64)
    cost = np.full(groups + 1, constant)
    place, looked, best = 0, 0, np.int64(goal)
    while place >= 0:
        if chosen[place] >= 0:
            left += taken[chosen[place]]
        following, here, long = count, np.int64(0), np.int64(0)
        for one in range(chosen[place] + 1, count):
            looked += 1
            here, long = cost[place] + own[one], length[place]
            if place:
                here += edges[chosen[place - 1], one]
                long += lengths[chosen[place - 1], one]
            more = groups - 1 - place
            if here + after[more, one] >= best or long + longer[more, one] >= best:
                continue
            if (taken[one] <= left).all():
                following = one
                break
        if looked > most:
            return int(-NEVER), looked
        if following == count:
            place -= 1
            continue
        chosen[place], cost[place + 1], length[place + 1] = following, here, long
        left -= taken[following]
        if place == groups - 1:
            best = max(here, long)
            continue
        place += 1
        chosen[place] = -1
    return int(best), looked
