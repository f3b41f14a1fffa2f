"""The orders in which to try jobs that share links."""

import itertools
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from gradweave.schedules.objective import Objective
from gradweave.topology.topology import Floats


def job_orders(
    objective: Objective, load_s: Floats, alone_s: Floats, ready_s: Floats, least: float
) -> Iterator[tuple[int, ...]]:
    """Positions of the jobs in several orders that suit an objective, mostly distinct.

    The orders are: one job after the other, always the ready job that is shortest for its weight;
    all jobs with equal positions, which comes first if the last end counts; the order that suits
    the objective; the shortest for its weight first, ready or not; and the longest first, which
    leaves the least work for the end.

    Args:
        objective: the jobs' objective.
        load_s: [L, jobs] seconds for which each link direction carries each job.
        alone_s: [jobs] seconds that each job takes by itself.
        ready_s: [jobs] seconds at which each job may start.
        least: lower bound on the objective.
    """
    ratio, alike = alone_s / objective.weight, (0,) * len(alone_s)
    if objective.name == "makespan":
        yield alike
    yield _places(np.array(_one_by_one(ready_s, alone_s, ratio)))
    yield alike
    if objective.name != "makespan":
        yield suited_order(objective, load_s, least)
    if objective.sums:
        busiest = load_s[int(np.argmax(load_s.sum(axis=1)))]
        yield _places(np.argsort(busiest / objective.weight, kind="stable"))
    yield _places(np.argsort(ratio, kind="stable"))
    yield _places(np.argsort(-ratio, kind="stable"))


def suited_order(objective: Objective, load_s: Floats, least: float) -> tuple[int, ...]:
    """Positions of the jobs in the order that suits a sum, or the largest delay.

    For sums, it treats links as machines that each job keeps busy concurrently. For the largest
    delay, it sorts by the time at which each job must end so that no delay exceeds the lower bound.
    See `job_orders`.
    """
    if objective.sums:
        return _places(np.array(last_first(load_s, objective.weight)))
    return _places(np.argsort(objective.since_s + least * objective.scale_s, kind="stable"))


def _one_by_one(ready_s: Floats, alone_s: Floats, ratio: Floats) -> list[int]:
    """Jobs one after the other: when a job ends, the ready job with the smallest ratio is next."""
    left, order, now = list(range(len(ready_s))), list[int](), 0.0
    while left:
        now = max(now, min(ready_s[job] for job in left))
        order.append(min((job for job in left if ready_s[job] <= now), key=lambda job: ratio[job]))
        now += alone_s[order[-1]]
        left.remove(order[-1])
    return order


def last_first(load_s: Floats, weight: Floats) -> list[int]:
    """An order of the jobs, built backwards by repeatedly choosing the last of those left.

    On the link that the remaining jobs keep busy longest, the last job is the one with the smallest
    weight per second there; the other jobs' weights are then reduced in proportion to their seconds
    there. If jobs need each machine for a fixed time, concurrently and from the start, the sum is
    at most twice the optimum.

    Args:
        load_s: [L, jobs] seconds of each job on each link.
        weight: [jobs] weights above 0.

    Source: Mastrolilli, Queyranne, Schulz, Svensson and Uhan, "Minimizing the sum of weighted
        completion times in a concurrent open shop", 2010.

    >>> last_first(np.array([[2.0, 1.0], [0.0, 4.0]]), np.ones(2))
    [0, 1]
    """
    left, charged = list(range(len(weight))), np.asarray(weight, np.float64).copy()
    total, backward = load_s.sum(axis=1), list[int]()
    while left:
        busy = load_s[int(np.argmax(total))]
        taken = [job for job in left if busy[job] > 0] or left
        rate = [charged[job] / max(busy[job], 1e-300) for job in taken]
        last = taken[int(np.argmin(rate))]
        charged[left] -= min(rate) * busy[left]
        charged = np.maximum(charged, 0.0)
        total = total - load_s[:, last]
        left.remove(last)
        backward.append(last)
    return backward[::-1]


def neighbours(place: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Orders with two neighbours exchanged; if all positions are equal, with one job first."""
    distinct = sorted(set(place))
    if len(distinct) == 1:
        for job in range(len(place)):
            yield tuple(int(other != job) for other in range(len(place)))
        return
    for a, b in itertools.pairwise(distinct):
        exchanged: NDArray[np.int64] = np.array(place)
        of_a, of_b = exchanged == a, exchanged == b
        exchanged[of_a], exchanged[of_b] = b, a
        yield tuple(exchanged.tolist())


def _places(order: NDArray[np.integer]) -> tuple[int, ...]:
    """Each job's position in an order."""
    return tuple(np.argsort(order).tolist())
