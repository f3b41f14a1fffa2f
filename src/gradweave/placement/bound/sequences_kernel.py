"""Sequences of group compositions, compiled: possible successors, and the cheapest sequence.

Compositions are numbered 0 … C−1 in ascending order of their minimum DataP. `taken` [C, Q] has the
number of devices of each class in each composition, `parts` [C, L, J] the number in each component
at each threshold. All times are whole nanoseconds.
"""

import numpy as np
from numpy.typing import NDArray

from gradweave.common.compiled import kernel
from gradweave.placement.exchange_kernel import matching

SMALL, LARGE = 512, 16
"""Tables of fewer than `SMALL` numbers add little to the work of a prefix; of larger tables, each
full `SMALL` counts as `LARGE` more prefixes."""
SPREAD = np.int64(0x1E3779B97F4A7C15)
"""Multiplier of a hash function: products differ in their middle bits."""


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
    """Pairs of compositions that may be consecutive in a sequence below the goal, each pair once.

    The boundary of a pair is its bottleneck matching, which is computed only if the thresholds at
    which the two compositions differ leave enough time for it.

    Args:
        taken: [C, Q].
        alike: [C, L] equal numbers for compositions that agree at a threshold.
        data_ns: [C] the minimum DataP in any stage, ascending.
        sizes: [Q] devices of each class.
        steps: [Q, Q] the shortest step between devices of two classes.
        widths: [L] time that each threshold adds to a longer boundary.
        least: minimum time of any boundary.
        spent: minimum time of all other boundaries of a sequence.
        goal: upper limit on the cost of the sequence.
        flag: [1] ends the search when set.
        one: [M] first composition of each pair; written.
        other: [M] second composition, which is not after the first in order; written.
        between: [M] the boundary; written.

    Returns:
        The number of pairs; −1 if more than M boundaries are computed, or the flag is set.
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
    """Minimum time of the boundaries to the remaining groups, less the minimum of each; or `room`.

    Two groups agree at a threshold if they have equally many devices in each component. A boundary
    between groups that do not agree is longer than the threshold. If enough devices are left for
    all remaining groups to agree with the last group, no boundary needs to be longer. If they
    suffice for some groups that do and then for others that agree with each other, one boundary is
    longer. Otherwise two are, or more if groups that agree soon run out of devices.

    Args:
        parts: [C, L, J].
        last: composition of the last group.
        left: [L, J] remaining devices of each component.
        more: number of remaining groups, at least 1.
        data: devices of a group.
        widths: [L] time that each threshold adds to a longer boundary.
        room: value from which on the exact time does not matter.
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
                alike -= 1  # the number of remaining groups like the last one
                break
            if most >= data:
                once = True
                break
            alike += 1
        if not once:
            longest = more - 1  # length of a run of groups that agree, whatever they are
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
    """Removes a composition's devices from those left, or puts them back with −1 groups."""
    for own in range(len(left)):
        left[own] -= groups * taken[which, own]
    for level in range(left_parts.shape[0]):
        for part in range(left_parts.shape[1]):
            left_parts[level, part] -= groups * parts[which, level, part]


@kernel(inner=True, allocates=False)
def is_left(taken: NDArray[np.int64], which: int, left: NDArray[np.int64]) -> bool:
    """Whether enough devices are left for a composition."""
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
    """Minimum cost of sequences that take at most the devices of each class; depth first.

    A sequence costs the longest DataP of its groups plus all its boundaries. A prefix is pruned if

    - its cost plus `still_to_pay` reaches the goal, or the best sequence so far;
    - the boundaries of the sequence's first half cost more than those of the second half can: if
      the kinds of stages are symmetric, the reversed sequence starts with the cheaper half;
    - an explored prefix ended in the same group, left the same devices and cost no more.

    Args:
        begins: [C + 1] start of each composition's successors, which are in ascending order of
            boundaries.
        after: [M] successors.
        between: [M] boundaries to them.
        taken: [C, Q].
        parts: [C, L, J].
        data_ns: [K, C] DataP in a stage of each kind.
        kind: [S] of each stage; S is at least 2.
        left: [Q] devices of each class; restored at the end unless the search ends early.
        left_parts: [L, J] devices of each component; likewise.
        widths: [L] time that each threshold adds to a longer boundary.
        least: minimum time of any boundary.
        goal: sequences that cost at least this much are not sought.
        most: maximum number of prefixes; a prefix that updates large tables counts as several.
        flag: [1] ends the search when set.
        chosen: [S] scratch for the compositions.
        place_in: [S] scratch for positions in the lists of successors.
        length: [S] scratch for sums of boundaries.
        longest: [S] scratch for the longest DataP.
        found: [S] the cheapest sequence; written if it costs less than the goal.
        code: [C] numbers whose sum identifies the devices taken.
        known: [T, 3] explored prefixes: a number, their boundaries and longest DataP; T is a power
            of two, or 0 if the numbers would be too large.

    Returns:
        The minimum cost, at most the goal; −1 if the search did not finish.
    """
    groups, data = len(kind), taken[0].sum()
    half = groups // 2
    for stage in range(groups):
        if kind[stage] != kind[groups - 1 - stage]:
            half = 1  # the reversed sequence has another cost
    middle = groups - 1 - 2 * (half - 1)  # number of boundaries between the halves
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
                    break  # later successors cost no less
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
