"""The paper's evolutionary search, compiled.

A placement is a label for each device: its group, 0 … S−1, or S if it is idle.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradweave.common.compiled import kernel
from gradweave.placement.exchange_kernel import exchange_cost
from gradweave.placement.strategies.annealing_kernel import Table


@kernel
def evolve(
    table: Table,
    alike: bool,
    population: NDArray[np.int64],
    trials: int,
    points: int,
    seed: int,
    stopped: NDArray[np.bool_],
) -> NDArray[np.int64]:
    """The best labels after a number of children.

    Args:
        table: the problem; its placement is ignored.
        alike: whether stages may change places.
        population: [P, N] labels that fit; changed.
        trials: number of children.
        points: number of labels that a child takes from its first parent.
        seed: seed of all choices.
        stopped: [1] set to end the search.
    """
    np.random.seed(seed)
    size = len(population)
    scores = np.empty(size)
    for i in range(size):
        scores[i] = _score(table, alike, population[i])
    for _ in range(trials):
        if stopped[0]:
            break
        first, second = np.random.randint(size), np.random.randint(size)
        child = _crossed(table, population[first], population[second], points)
        _move_in_cycles(table, child)
        if not _fits(table, child):
            continue
        score = _score(table, alike, child)
        worse = first if scores[first] > scores[second] else second
        if score <= scores[worse]:
            population[worse], scores[worse] = child, score
    return population[np.argmin(scores)]


@kernel
def groups_of(labels: NDArray[np.int64], stages: int, data: int) -> NDArray[np.int64]:
    """[S, D] the devices of each label."""
    groups, filled = np.empty((stages, data), np.int64), np.zeros(stages, np.int64)
    for device in range(len(labels)):
        group = labels[device]
        if group < stages:
            groups[group, filled[group]] = device
            filled[group] += 1
    return groups


@kernel(inner=True)
def _score(table: Any, alike: bool, labels: Any) -> float:
    stages, data = table.exchange.shape
    groups = groups_of(labels, stages, data)
    return exchange_cost(table.delay, table.per_byte, table.moved, table.part, alike, groups)


@kernel(inner=True, allocates=False)
def _fits(table: Any, labels: Any) -> bool:
    for device in range(len(labels)):
        if labels[device] < len(table.fits) and not table.fits[labels[device], device]:
            return False
    return True


@kernel(inner=True)
def _crossed(table: Any, one: Any, other: Any, points: int) -> Any:
    """The second parent with some labels of the first, rebalanced to groups of equal size."""
    stages, data = table.exchange.shape
    child = other.copy()
    for _ in range(points):
        place = np.random.randint(len(child))
        child[place] = one[place]
    size = np.zeros(stages + 1, np.int64)
    size[stages] = stages * data - len(child)  # so that every count should reach `data` or 0
    for label in child:
        size[label] += 1
    size[stages] += data
    for device in np.random.permutation(len(child)):
        label = child[device]
        if size[label] > data:
            for group in range(stages + 1):
                if size[group] < data:
                    child[device] = group
                    size[group] += 1
                    size[label] -= 1
                    break
    return child


@kernel(inner=True)
def _move_in_cycles(table: Any, labels: Any) -> None:
    """Moves devices in cycles, each device at most once, as long as the moves gain.

    A device's gain by a move is its mean distance to the group that it enters, less its distance to
    the nearest device in the group that it leaves. Groups thus spread over regions, so that
    pipelines can stay within them.
    """
    stages = len(table.exchange)
    locked = np.zeros(len(labels), np.bool_)
    for _ in range(stages):
        moved, left = np.empty(stages + 1, np.int64), np.empty(stages + 1, np.int64)
        gain, best, kept, steps = 0.0, 0.0, 0, 0
        home, device, target, most = -1, -1, -1, -np.inf
        for group in range(stages):
            candidate = _most_redundant(table, labels, locked, group)
            if candidate >= 0:
                entered, value = _farthest(table, labels, candidate)
                if value > most:
                    home, device, target, most = group, candidate, entered, value
        if home < 0:
            break
        group = home
        while steps < stages:
            moved[steps], left[steps] = device, group
            steps += 1
            closing = gain + _gain(table, labels, device, home)
            if steps > 1 and closing > best:
                best, kept = closing, steps
            gain += most
            locked[device], labels[device] = True, target
            group = target
            if group == home:
                if gain > best:
                    best, kept = gain, -steps
                break
            device = _most_redundant(table, labels, locked, group)
            if device < 0:
                break
            target, most = _farthest(table, labels, device)
        _keep(labels, moved, left, steps, kept, home)
        if kept == 0:
            break


@kernel(inner=True, allocates=False)
def _keep(labels: Any, moved: Any, left: Any, steps: int, kept: int, home: int) -> None:
    """Undoes the moves after the best point to close the cycle, and closes it there."""
    if kept < 0:  # the cycle closed by itself
        return
    for step in range(steps - 1, kept - 1, -1):
        labels[moved[step]] = left[step]
    if kept > 0:
        labels[moved[kept - 1]] = home


@kernel(inner=True, allocates=False)
def _weight(table: Any, one: int, other: int) -> float:
    moved = table.moved[0] if len(table.moved) else 0.0
    return table.delay[one, other] + moved * table.per_byte[one, other]


@kernel(inner=True, allocates=False)
def _nearest_mate(table: Any, labels: Any, device: int) -> float:
    nearest = np.inf
    for other in range(len(labels)):
        if other != device and labels[other] == labels[device]:
            nearest = min(nearest, _weight(table, device, other))
    return nearest


@kernel(inner=True, allocates=False)
def _most_redundant(table: Any, labels: Any, locked: Any, group: int) -> int:
    """The device of a group that is nearest to another of the group; −1 if all are locked."""
    chosen, least = -1, np.inf
    for device in range(len(labels)):
        if labels[device] == group and not locked[device]:
            near = _nearest_mate(table, labels, device)
            if chosen < 0 or near < least:
                chosen, least = device, near
    return chosen


@kernel(inner=True, allocates=False)
def _gain(table: Any, labels: Any, device: int, target: int) -> float:
    total, count = 0.0, 0
    for other in range(len(labels)):
        if labels[other] == target and other != device:
            total += _weight(table, device, other)
            count += 1
    near = _nearest_mate(table, labels, device)
    return (total / count if count else 0.0) - (near if near < np.inf else 0.0)


@kernel(inner=True, allocates=False)
def _farthest(table: Any, labels: Any, device: int) -> Any:
    """The group from which a device is farthest relative to its current group, and the gain."""
    chosen, most = labels[device], -np.inf
    for target in range(len(table.exchange)):
        if target != labels[device]:
            value = _gain(table, labels, device, target)
            if value > most:
                chosen, most = target, value
    return chosen, most
