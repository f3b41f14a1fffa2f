"""Distances in small graphs, the best circulants, and random graphs improved by swaps of links."""

import functools
import itertools
import math
import operator
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

MOST_CIRCULANTS = 50_000
"""Most sets of jumps that are tried: all of them up to here, otherwise as many at random."""
SWAPS = 2_500_000
"""Swaps tried, divided by the number of links in both directions: one to four seconds."""

Score = tuple[float, int]
"""Diameter, and the sum of distances between ordered pairs; less is better."""


def score(neighbours: Sequence[Sequence[int]]) -> Score:
    """Diameter and total distance of a graph; infinite if it is not connected.

    Args:
        neighbours: of each node.
    """
    nodes = len(neighbours)
    # Sets of nodes within h links of each node, as bits of one integer, for all nodes at once.
    balls, known, hops, total = [1 << node for node in range(nodes)], nodes, 0, 0
    while known < nodes * nodes:
        balls = [
            functools.reduce(operator.or_, [balls[near] for near in around], ball)
            for ball, around in zip(balls, neighbours, strict=True)
        ]
        reached = sum(map(int.bit_count, balls))
        if reached == known:
            return math.inf, 0
        hops += 1
        total += hops * (reached - known)
        known = reached
    return hops, total


def circulant_score(n: int, jumps: Sequence[int]) -> Score:
    """As `score`, of a circulant: all its nodes are alike."""
    full, ball, known, hops, total = (1 << n) - 1, 1, 1, 0, 0
    turns = {turn for jump in jumps for turn in (jump, n - jump)}
    while known < n:
        grown = ball
        for turn in turns:
            grown |= ball << turn | ball >> n - turn
        ball = grown & full
        reached = ball.bit_count()
        if reached == known:
            return math.inf, 0
        hops += 1
        total += hops * (reached - known)
        known = reached
    return hops, n * total


def best_circulants(
    n: int, degree: int, most: int, random: np.random.Generator
) -> list[tuple[int, ...]]:
    """The jumps of the circulants of minimum diameter, ties broken by mean distance.

    The search is exhaustive up to `MOST_CIRCULANTS` sets of jumps. If a multiplication of all nodes
    turns one circulant into another, only the first is returned.

    Args:
        n: number of nodes, at least 3.
        degree: links of each node at most, at least 2; if odd, the last link needs an even n.
        most: circulants returned.
        random: draws sets of jumps if there are too many.
    """
    half, pairs = n // 2, min(degree // 2, (n - 1) // 2)
    middle = (half,) if n % 2 == 0 and degree > 2 * pairs else ()
    units = [unit for unit in range(1, half + 1) if math.gcd(unit, n) == 1]
    ranked = sorted(
        (circulant_score(n, jumps), jumps)
        for jumps in _sets_of_jumps((n - 1) // 2, pairs, middle, random)
    )
    chosen: dict[tuple[int, ...], tuple[int, ...]] = {}
    for (diameter, _), jumps in ranked:
        if len(chosen) == most or diameter == math.inf:
            break
        multiples = (sorted(min(u * j % n, -u * j % n) for j in jumps) for u in units)
        chosen.setdefault(tuple(min(multiples)), jumps)
    return list(chosen.values())


def _sets_of_jumps(
    largest: int, size: int, middle: tuple[int, ...], random: np.random.Generator
) -> Iterator[tuple[int, ...]]:
    if math.comb(largest, size) <= MOST_CIRCULANTS:
        for jumps in itertools.combinations(range(1, largest + 1), size):
            yield jumps + middle
        return
    for _ in range(MOST_CIRCULANTS):
        drawn = random.choice(largest, size, replace=False) + 1
        yield (*sorted(drawn.tolist()), *middle)


def with_links_swapped(
    pairs: NDArray[np.int64], nodes: int, least: Score, random: np.random.Generator
) -> NDArray[np.int64]:
    """Exchanges the ends of two links while that does not worsen diameter and total distance.

    Args:
        pairs: [L, 2] the links of a connected graph.
        nodes: number of nodes.
        least: score at which the search ends; no graph may undercut it.
        random: draws links.

    Returns:
        [L, 2] links of a graph with the same degrees.
    """
    links = [(int(a), int(b)) for a, b in pairs]
    near: list[set[int]] = [set() for _ in range(nodes)]
    for a, b in links:
        near[a].add(b)
        near[b].add(a)
    best = score([list(around) for around in near])
    for first, second, turned in random.integers(
        [len(links), len(links), 2], size=(SWAPS // (2 * len(links)), 3)
    ).tolist():
        (a, b), (c, d) = links[first], links[second][:: 1 - 2 * turned]
        if len({a, b, c, d}) < 4 or c in near[a] or d in near[b]:
            continue
        _exchange(near, a, b, c, d)
        found = score([list(around) for around in near])
        if found <= best:
            best, links[first], links[second] = found, (a, c), (b, d)
            if best <= least:
                break
        else:
            _exchange(near, a, c, b, d)
    return np.array(sorted(tuple(sorted(link)) for link in links), np.int64)


def _exchange(near: list[set[int]], a: int, b: int, c: int, d: int) -> None:
    """Replaces the links a–b and c–d by a–c and b–d."""
    for x, y in ((a, b), (c, d)):
        near[x].remove(y)
        near[y].remove(x)
    for x, y in ((a, c), (b, d)):
        near[x].add(y)
        near[y].add(x)
