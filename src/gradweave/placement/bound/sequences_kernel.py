"""Sequences of groups' compositions, compiled: what may follow what, and the least of them all.

Compositions are 0 … C−1, in ascending order of their least DataP; `taken` [C, Q] has how many
devices of each class each one takes, `parts` [C, L, J] how many of each component at each
threshold. All times are whole nanoseconds.
"""

import numpy as np
from numpy.typing import NDArray

from gradweave.compiled import kernel
from gradweave.placement.exchange_kernel import matching

SMALL, LARGE = 512, 16
"""Numbers of a table that take next to nothing beside what else a beginning takes, and as how many
beginnings so many count."""
SPREAD = np.int64(0x1E3779B97F4A7C15)
"""Multiplies numbers so that their middle bits differ."""


@kernel
def followers(
    taken: NDArray[np.int64],
    alike: NDArray[np.int64],
    data_ns: NDArray[np.int64],
    sizes: NDArray[np.int64],
    steps: NDArray[np.int64],
    widths: NDArray[np.int64],
    least: int,
    spent: int,
    goal: int,
    flag: NDArray[np.bool_],
    one: NDArray[np.int64],
    other: NDArray[np.int64],
    between: NDArray[np.int64],
) -> int:
    """Pairs of compositions that a sequence below the goal may have in a row, each pair once.

    The boundary of a pair is its bottleneck matching. That is looked for only where the thresholds
    at which the two differ leave room for it.

    Args:
        taken: [C, Q].
        alike: [C, L] equal numbers of those that are alike at a threshold.
        data_ns: [C] the least DataP in any stage, ascending.
        sizes: [Q] devices of each class.
        steps: [Q, Q] the shortest step between devices of two classes.
        widths: [L] what each threshold adds to a boundary that is longer.
        least: of any boundary.
        spent: what all other boundaries of a sequence take at least.
        goal: of which the sequence stays below.
        flag: [1] ends it when set.
        one: [M] of each pair; written.
        other: [M] which is not behind `one`; written.
        between: [M] the boundary; written.

    Returns:
        How many there are; −1 where more than M boundaries are looked for, or the flag is set.
    """
    classes, data, found, looked = taken.shape[1], taken[0].sum(), 0, 0
    weights = np.empty((data, data))
    member = np.empty((2, data), np.int64)
    for first in range(len(taken)):
        room = goal - data_ns[first] - spent
        if room <= least:
            break
        for second in range(first + 1):
            length = least
            for level in range(len(widths)):
                if alike[first, level] != alike[second, level]:
                    length += widths[level]
            if length >= room:
                continue
            both = True
            for own in range(classes):
                if taken[first, own] + taken[second, own] > sizes[own]:
                    both = False
                    break
            if not both:
                continue
            looked += 1
            if looked > len(one) or flag[0]:
                return -1
            for which, row in enumerate((first, second)):
                place = 0
                for own in range(classes):
                    for _ in range(taken[row, own]):
                        member[which, place] = own
                        place += 1
            for i in range(data):
                for j in range(data):
                    weights[i, j] = steps[member[0, i], member[1, j]]
            length = np.int64(matching(weights)[0])
            if length < room:
                one[found], other[found], between[found] = first, second, length
                found += 1
    return found


@kernel(inner=True, allocates=False)
def still_to_pay(
    parts: NDArray[np.int64],
    last: int,
    left: NDArray[np.int64],
    more: int,
    data: int,
    widths: NDArray[np.int64],
    room: int,
) -> int:
    """What boundaries to so many more groups take at least, beyond the least of any; or the room.

    At a threshold, groups in a row without a longer boundary are alike. If devices are left for as
    many groups like the last one, none need be longer. Otherwise one need, if they are left for
    some groups like the last one, then others that are all alike; and otherwise two, or more where
    groups that are alike soon run out of devices.

    Args:
        parts: [C, L, J].
        last: composition of the last group.
        left: [L, J] devices of each component that are left.
        more: groups, at least 1.
        data: devices of a group.
        widths: [L] what each threshold adds to a boundary that is longer.
        room: from which on it does not matter how much.
    """
    paid, count = 0, left.shape[1]
    for level in range(len(widths)):
        fits = True
        for part in range(count):
            if parts[last, level, part] * more > left[level, part]:
                fits = False
                break
        if fits:
            continue
        paid += widths[level]
        if paid >= room:
            return paid
        once, alike = False, 0  # groups like the last one
        while True:
            most, begun = 0, True
            for part in range(count):
                rest = left[level, part] - alike * parts[last, level, part]
                if rest < 0:
                    begun = False
                    break
                most += rest // (more - alike)
            if not begun:
                alike -= 1  # of which there are so many at most
                break
            if most >= data:
                once = True
                break
            alike += 1
        if not once:
            longest = more - 1  # groups that are alike, whatever they are
            while longest > 1:
                most = 0
                for part in range(count):
                    most += left[level, part] // longest
                if most >= data:
                    break
                longest -= 1
            runs = max(2, (more - alike + longest - 1) // longest)
            paid += widths[level] * (runs - 1)
            if paid >= room:
                return paid
    return paid


@kernel(inner=True, allocates=False)
def take(
    taken: NDArray[np.int64],
    parts: NDArray[np.int64],
    which: int,
    left: NDArray[np.int64],
    left_parts: NDArray[np.int64],
    groups: int,
) -> None:
    """Takes a composition's devices from what is left, or with −1 groups gives them back."""
    for own in range(len(left)):
        left[own] -= groups * taken[which, own]
    for level in range(left_parts.shape[0]):
        for part in range(left_parts.shape[1]):
            left_parts[level, part] -= groups * parts[which, level, part]


@kernel(inner=True, allocates=False)
def is_left(taken: NDArray[np.int64], which: int, left: NDArray[np.int64]) -> bool:
    """Whether a composition's devices are."""
    for own in range(len(left)):
        if taken[which, own] > left[own]:
            return False
    return True


@kernel(allocates=False)
def least_sequence(
    begins: NDArray[np.int64],
    after: NDArray[np.int64],
    between: NDArray[np.int64],
    taken: NDArray[np.int64],
    parts: NDArray[np.int64],
    data_ns: NDArray[np.int64],
    kind: NDArray[np.int64],
    left: NDArray[np.int64],
    left_parts: NDArray[np.int64],
    widths: NDArray[np.int64],
    least: int,
    goal: int,
    most: int,
    flag: NDArray[np.bool_],
    chosen: NDArray[np.int64],
    place_in: NDArray[np.int64],
    length: NDArray[np.int64],
    longest: NDArray[np.int64],
    found: NDArray[np.int64],
    code: NDArray[np.int64],
    known: NDArray[np.int64],
) -> int:
    """The least cost of sequences that take no more of a class than there is; depth first.

    A sequence costs the longest DataP of its groups and all its boundaries. Its beginning is pruned
    where

    - it and `still_to_pay` are no less than the goal, or than the best sequence so far;
    - the boundaries of the sequence's first half take more than those of its second half may: read
      backwards it begins with the half that takes less, if its stages are of the same kinds then;
    - another one that was explored ended in the same group, left the same devices and took no more.

    Args:
        begins: [C + 1] where each composition's followers begin; they are in ascending order of
            boundaries.
        after: [M] followers.
        between: [M] boundaries to them.
        taken: [C, Q].
        parts: [C, L, J].
        data_ns: [K, C] DataP in a stage of each kind.
        kind: [S] of each stage; S is at least 2.
        left: [Q] devices of each class; the same again at the end, but where it ends early.
        left_parts: [L, J] devices of each component; likewise.
        widths: [L] what each threshold adds to a boundary that is longer.
        least: of any boundary.
        goal: costs from which on nothing is looked for.
        most: beginnings that are looked at; one whose devices fill large tables counts as many.
        flag: [1] ends the search when set.
        chosen: [S] for the compositions.
        place_in: [S] for which of the followers are next.
        length: [S] for the sums of boundaries.
        longest: [S] for the longest DataP.
        found: [S] the least sequence; written where it costs less than the goal.
        code: [C] numbers whose sum tells which devices are taken.
        known: [T, 3] for beginnings that were looked at: a number, their boundaries and longest
            DataP; T is a power of two, or 0 where numbers would be too large.

    Returns:
        The least cost, at most the goal; −1 where it was not found in so many.
    """
    groups, data = len(kind), taken[0].sum()
    half = groups // 2
    for stage in range(groups):
        if kind[stage] != kind[groups - 1 - stage]:
            half = 1  # read backwards it costs something else
    middle = groups - 1 - 2 * (half - 1)  # boundaries between the halves
    best, looked, number, mask = goal, 0, 0, len(known) - 1
    large = LARGE * (len(widths) * left_parts.shape[1] // SMALL)
    for first in range(len(taken)):
        room = best - data_ns[kind[0], first] - (groups - 1) * least
        if room <= 0 or not is_left(taken, first, left):
            continue
        take(taken, parts, first, left, left_parts, 1)
        number += code[first]
        place = 0
        if still_to_pay(parts, first, left_parts, groups - 1, data, widths, room) >= room:
            place = -1
        chosen[0], place_in[0], length[0] = first, begins[first], 0
        longest[0] = data_ns[kind[0], first]
        while place >= 0:
            at, end = place_in[place], begins[chosen[place] + 1]
            more = groups - 2 - place  # groups after the next one
            ahead = half - 2 - place  # boundaries of the first half after the next one
            entered = False
            while at < end:
                following, far = after[at], length[place] + between[at]
                at += 1
                looked += 1
                spent = longest[place] + far + more * least
                if ahead >= 0:
                    twice = longest[place] + 2 * (far + ahead * least) + middle * least
                    spent = max(spent, twice)
                if spent >= best:
                    break  # so do those behind it
                slower = max(longest[place], data_ns[kind[place + 1], following])
                room = best - slower - far - more * least
                if room <= 0 or not is_left(taken, following, left):
                    continue
                if more == 0:
                    best = slower + far
                    for group in range(groups - 1):
                        found[group] = chosen[group]
                    found[groups - 1] = following
                    continue
                looked += large
                take(taken, parts, following, left, left_parts, 1)
                if still_to_pay(parts, following, left_parts, more, data, widths, room) >= room:
                    take(taken, parts, following, left, left_parts, -1)
                    continue
                if mask >= 0:
                    what = (number + code[following]) * len(taken) + following
                    slot = ((what * SPREAD) >> 20) & mask
                    if known[slot, 0] == what:
                        if known[slot, 1] <= far and known[slot, 2] <= slower:
                            take(taken, parts, following, left, left_parts, -1)
                            continue
                    known[slot, 0], known[slot, 1], known[slot, 2] = what, far, slower
                number += code[following]
                entered = True
                place_in[place] = at
                place += 1
                chosen[place], place_in[place] = following, begins[following]
                length[place], longest[place] = far, slower
                break
            if looked > most or flag[0]:
                return -1
            if not entered:
                if place > 0:
                    take(taken, parts, chosen[place], left, left_parts, -1)
                    number -= code[chosen[place]]
                place -= 1
        take(taken, parts, first, left, left_parts, -1)
        number -= code[first]
    return best
