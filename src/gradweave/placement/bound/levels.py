"""Which devices are close to each other at each threshold, and the groups that classes can form."""

import dataclasses
import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

MAX_LEVELS = 48
"""Number of thresholds that are distinguished: the widest steps; fewer give a weaker bound."""


@dataclasses.dataclass(frozen=True, eq=False)
class Level:
    """The range from one threshold to the next, and the devices connected by steps within it."""

    width: int
    """Nanoseconds from this threshold to the next."""
    component: NDArray[np.int64]
    """[N] component of each device; devices of one component reach each other."""


@dataclasses.dataclass(frozen=True, eq=False)
class Levels:
    """All thresholds, as in single-linkage clustering."""

    least: int
    """Nanoseconds of the shortest step between any two devices."""
    levels: tuple[Level, ...]
    """From `least` on; after the last level all devices reach each other."""


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
        # Merges between two distinguished thresholds count as if they happened at the first.
        joined = [edge for edge in tree if edge[0] < high]
        levels.append(Level(high - low, _components(len(steps), joined)))
    return Levels(int(heights[0]) if len(heights) else 0, tuple(levels))


def _spanning_tree(steps: NDArray[np.int64]) -> list[tuple[int, int, int]]:
    """Heights and ends of the edges of a minimum spanning tree, by Prim's algorithm."""
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
    """[N] several ways to divide devices into classes.

    Each device is a class if there are few. Then the components of each level; if there are too
    many, the largest, with one class for all others.

    Args:
        levels: the thresholds.
        devices: N.
        data: D.
        most: maximum number of compositions of a group.
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
    """Components, with the smallest merged into one if there are more than allowed."""
    sizes = np.bincount(component)
    if len(sizes) > allowed:
        kept = np.argsort(-sizes, kind="stable")[: allowed - 1]
        component = np.where(np.isin(component, kept), component, len(sizes))
    return np.unique(component, return_inverse=True)[1].astype(np.int64)


def count_compositions(sizes: NDArray[np.int64], data: int) -> int:
    """Number of ways to take D devices from classes of these sizes."""
    ways = [1] + [0] * data
    for size in sizes.tolist():
        ways = [sum(ways[max(0, taken - size) : taken + 1]) for taken in range(data + 1)]
    return ways[data]


def compositions(sizes: NDArray[np.int64], data: int) -> NDArray[np.int64]:
    """[C, Q] every way to take D devices from classes of these sizes."""
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
