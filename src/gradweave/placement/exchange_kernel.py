"""Loops of the exchange model, compiled: matchings, paths, and the cost of groups in an order.

Devices are 0 … N−1. A table of groups [S, D] has a row for each stage.
"""

import numpy as np
from numpy.typing import NDArray

from gradweave.common.compiled import kernel

MAX_PATH = 14
"""Number of groups up to which their best order is found exactly, in 2^S·S² steps."""


@kernel
def matching(weights: NDArray[np.float64]) -> tuple[float, NDArray[np.int64]]:
    """The perfect matching with the smallest maximum weight: that weight, and each row's column.

    Rows are added one by one along a path with the smallest maximum weight, found like Prim's tree.
    Adding rows never lowers the maximum, so each step's weight is needed. O(D³).

    Source: Garfinkel 1971, "An improved algorithm for the bottleneck assignment problem".
    """
    size = len(weights)
    row_of, column_of = np.full(size, -1, np.int64), np.full(size, -1, np.int64)
    largest = 0.0
    key, parent = np.empty(size), np.empty(size, np.int64)
    done = np.empty(size, np.bool_)
    for start in range(size):
        key[:], done[:] = np.inf, False
        row, reached = start, 0.0
        while True:
            column = -1
            for j in range(size):
                if done[j]:
                    continue
                if max(weights[row, j], reached) < key[j]:
                    key[j], parent[j] = max(weights[row, j], reached), row
                if column < 0 or key[j] < key[column]:
                    column = j
            done[column], reached = True, key[column]
            if row_of[column] < 0:
                break
            row = row_of[column]
        largest = max(largest, reached)
        while column >= 0:  # each row on the path takes the next column
            row = parent[column]
            row_of[column], column_of[row], column = row, column, column_of[row]
    return largest, column_of


@kernel
def boundary(
    delay: NDArray[np.float64],
    per_byte: NDArray[np.float64],
    moved: float,
    one: NDArray[np.int64],
    other: NDArray[np.int64],
) -> tuple[float, NDArray[np.int64]]:
    """The matching of two groups for a number of bytes both ways: its seconds and its columns."""
    weights = np.empty((len(one), len(other)))
    for i in range(len(one)):
        for j in range(len(other)):
            weights[i, j] = delay[one[i], other[j]] + moved * per_byte[one[i], other[j]]
    return matching(weights)


@kernel
def group_seconds(
    delay: NDArray[np.float64], per_byte: NDArray[np.float64], part: float, group: NDArray[np.int64]
) -> float:
    """The longest time a device takes to exchange its part with every other in its group."""
    longest = 0.0
    for one in group:
        total = 0.0
        for other in group:
            if other != one:
                total += delay[one, other] + part * per_byte[one, other]
        longest = max(longest, total)
    return float(longest)


@kernel
def best_path(lengths: NDArray[np.float64]) -> NDArray[np.int64]:
    """The order of the shortest open path through all groups (Held and Karp 1962).

    With more than `MAX_PATH` groups, the order stays as given.
    """
    size = len(lengths)
    if size > MAX_PATH:
        return np.arange(size)
    least = np.full((1 << size, size), np.inf)
    before = np.full((1 << size, size), -1, np.int64)
    for last in range(size):
        least[1 << last, last] = 0.0
    for visited in range(1, 1 << size):
        for last in range(size):
            here = least[visited, last]
            if here == np.inf:
                continue
            for following in range(size):
                if visited >> following & 1:
                    continue
                there = visited | 1 << following
                if here + lengths[last, following] < least[there, following]:
                    least[there, following] = here + lengths[last, following]
                    before[there, following] = last
    visited, last = (1 << size) - 1, 0
    for one in range(size):
        if least[visited, one] < least[visited, last]:
            last = one
    order = np.empty(size, np.int64)
    for place in range(size - 1, -1, -1):
        order[place] = last
        last, visited = before[visited, last], visited ^ 1 << last
    return order


@kernel
def ordered(
    delay: NDArray[np.float64],
    per_byte: NDArray[np.float64],
    moved: NDArray[np.float64],
    alike: bool,
    groups: NDArray[np.int64],
) -> tuple[float, NDArray[np.int64]]:
    """The pipelines' seconds, and the groups in their best order, each column a pipeline.

    Stages may change their order only if they are all alike.
    """
    stages, data = groups.shape
    order = np.arange(stages)
    if alike and stages > 2:
        lengths = np.zeros((stages, stages))
        for i in range(stages):
            for j in range(i):
                length, _ = boundary(delay, per_byte, moved[0], groups[i], groups[j])
                lengths[i, j] = lengths[j, i] = length
        order = best_path(lengths)
    placed = np.empty((stages, data), np.int64)
    placed[0] = groups[order[0]]
    total = 0.0
    for i in range(1, stages):
        there = groups[order[i]]
        length, columns = boundary(delay, per_byte, moved[i - 1], placed[i - 1], there)
        total += length
        for p in range(data):
            placed[i, p] = there[columns[p]]
    return total, placed


@kernel
def exchange_cost(
    delay: NDArray[np.float64],
    per_byte: NDArray[np.float64],
    moved: NDArray[np.float64],
    part: NDArray[np.float64],
    alike: bool,
    groups: NDArray[np.int64],
) -> float:
    """DataP + PipelineP of a table of groups."""
    total, _ = ordered(delay, per_byte, moved, alike, groups)
    longest = 0.0
    for stage in range(len(groups)):
        longest = max(longest, group_seconds(delay, per_byte, part[stage], groups[stage]))
    return total + longest
