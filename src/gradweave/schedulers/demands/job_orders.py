"""In which orders jobs that share links are tried."""

import itertools
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from gradweave.schedule.objective import Objective
from gradweave.topology.topology import Floats


def job_orders(
    objective: Objective, load_s: Floats, alone_s: Floats, ready_s: Floats, least: float
) -> Iterator[tuple[int, ...]]:
    """Places of the jobs in orders that suit an objective, most of them once.

    One after the other, of those that are ready the shortest for its weight; all alike, which comes
    first where the last end counts; what suits the objective; the shortest for its weight first,
    whether ready or not; and the longest first, which leaves the least for the end.

    Args:
        objective: of the jobs.
        load_s: [L, jobs] seconds for which each link direction carries each job.
        alone_s: [jobs] seconds that each takes alone.
        ready_s: [jobs] seconds at which each may begin.
        least: the least value of the objective that is known.
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
    """Places of the jobs in the order that suits a sum, or the largest delay.

    Of sums that of links as machines that each job keeps busy at once; of the largest delay the one
    that must end first if none is delayed more than the least. See `job_orders`.
    """
    if objective.sums:
        return _places(np.array(last_first(load_s, objective.weight)))
    return _places(np.argsort(objective.since_s + least * objective.scale_s, kind="stable"))


def _one_by_one(ready_s: Floats, alone_s: Floats, ratio: Floats) -> list[int]:
    """Jobs one after the other: whenever one ends, of those ready that with the least ratio."""
    left, order, now = list(range(len(ready_s))), list[int](), 0.0
    while left:
        now = max(now, min(ready_s[job] for job in left))
        order.append(min((job for job in left if ready_s[job] <= now), key=lambda job: ratio[job]))
        now += alone_s[order[-1]]
        left.remove(order[-1])
    return order


def last_first(load_s: Floats, weight: Floats) -> list[int]:
    """Jobs in an order, by which of those that are left should be the last, again and again.

    On the link that those left keep busy longest, the last is the one of least weight for what it
    takes there; the others have then been charged for as much of theirs. Of jobs that need each
    machine for so long, all at once, and all from the start, the sum is at most twice the least.

    Args:
        load_s: [L, jobs] seconds of each link.
        weight: [jobs] above 0.

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
    """The order with two that follow each other exchanged; where all are alike, with one first."""
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
    """Of each job in an order."""
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return tuple(place.tolist())
