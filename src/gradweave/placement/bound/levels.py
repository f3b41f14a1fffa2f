"""Which devices are near each other at each threshold, and the groups that classes of them form."""

import dataclasses
import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

MAX_LEVELS = 48
"""Thresholds that are told apart; of more, the widest steps. Fewer bound less."""


@dataclasses.dataclass(frozen=True, eq=False)
class Level:
    """From one threshold to the next, who can be reached from whom by steps no longer than it."""

    width: int
    """Nanoseconds from this threshold to the next."""
    component: NDArray[np.int64]
    """[N] devices of one number reach each other."""


@dataclasses.dataclass(frozen=True, eq=False)
class Levels:
    """All thresholds: single linkage."""

    least: int
    """Nanoseconds of the shortest step between any two devices."""
    levels: tuple[Level, ...]
    """From `least` on; all devices reach each other after the last."""


def levels_of(steps: NDArray[np.int64]) -> Levels:
    """The thresholds at which more devices reach each other.

    Args:
        steps: [N, N] nanoseconds, symmetric.
    """
    tree = _spanning_tree(steps)
    heights = np.unique([height for height, *_ in tree])
    if len(heights) > MAX_LEVELS:
        widest = np.argsort(-np.diff(heights), kind="stable")[: MAX_LEVELS - 2] + 1
        heights = heights[np.unique([0, *widest.tolist(), len(heights) - 1])]
    levels = []
    for low, high in zip(heights[:-1].tolist(), heights[1:].tolist(), strict=True):
        # What merges between two thresholds that are told apart counts as merged from the first on.
        joined = [edge for edge in tree if edge[0] < high]
        levels.append(Level(high - low, _components(len(steps), joined)))
    return Levels(int(heights[0]) if len(heights) else 0, tuple(levels))


def _spanning_tree(steps: NDArray[np.int64]) -> list[tuple[int, int, int]]:
    """Height and ends of the edges of a minimum spanning tree, found as Prim does."""
    count = len(steps)
    outside = np.ones(count, bool)
    outside[0] = False
    near, far = np.zeros(count, np.int64), steps[0].copy()
    tree = []
    for _ in range(count - 1):
        chosen = int(np.argmin(np.where(outside, far, np.iinfo(np.int64).max)))
        tree.append((int(far[chosen]), int(near[chosen]), chosen))
        outside[chosen] = False
        closer = steps[chosen] < far
        near[closer], far[closer] = chosen, steps[chosen][closer]
    return sorted(tree)


def _components(count: int, edges: list[tuple[int, int, int]]) -> NDArray[np.int64]:
    label = np.arange(count)
    for _, one, other in edges:
        label[label == label[one]] = label[other]
    return np.unique(label, return_inverse=True)[1].astype(np.int64)


def classings(levels: Levels, devices: int, data: int, most: int) -> Iterator[NDArray[np.int64]]:
    """[N] classes of devices by which groups may be told apart, some ways to choose them.

    The components of a level, or where they are too many, the largest ones and a class of all
    others. Each device of its own first, where those are few.

    Args:
        levels: the thresholds.
        devices: N.
        data: D.
        most: compositions of a group that there may be.
    """
    allowed = 1
    while allowed < devices and math.comb(data + allowed, data) <= most:
        allowed += 1
    seen: set[bytes] = set()
    for component in (np.arange(devices), *(level.component for level in levels.levels)):
        classes = _at_most(component, allowed)
        if classes.tobytes() not in seen:
            seen.add(classes.tobytes())
            yield classes
    if not levels.levels:
        yield np.zeros(devices, np.int64)


def _at_most(component: NDArray[np.int64], allowed: int) -> NDArray[np.int64]:
    """Components, but the smallest as one where there are more than allowed."""
    sizes = np.bincount(component)
    if len(sizes) > allowed:
        kept = np.argsort(-sizes, kind="stable")[: allowed - 1]
        component = np.where(np.isin(component, kept), component, len(sizes))
    return np.unique(component, return_inverse=True)[1].astype(np.int64)


def count_compositions(sizes: NDArray[np.int64], data: int) -> int:
    """In how many ways D devices can be taken of classes of these sizes."""
    ways = [1] + [0] * data
    for size in sizes.tolist():
        ways = [sum(ways[max(0, taken - size) : taken + 1]) for taken in range(data + 1)]
    return ways[data]


def compositions(sizes: NDArray[np.int64], data: int) -> NDArray[np.int64]:
    """[C, Q] every way to take D devices of classes of these sizes."""
    rows = np.zeros((1, 0), np.int64)
    left = np.array([data])
    for place, size in enumerate(sizes.tolist()):
        after = int(sizes[place + 1 :].sum())
        low, high = np.maximum(left - after, 0), np.minimum(left, size)
        counts = high - low + 1
        index = np.repeat(np.arange(len(rows)), counts)
        first = np.cumsum(counts) - counts
        taken = np.arange(counts.sum()) - first[index] + low[index]
        rows = np.column_stack([rows[index], taken])
        left = left[index] - taken
    return rows
