"""The exchange model's cost from its definition, and the least of it by trying everything.

Plain Python that shares no code with `gradweave.placement`; for eight devices or so.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

Groups = tuple[tuple[int, ...], ...]


class Naive:
    """Latency and bandwidth tables, and the bytes of a gradient and of activations."""

    def __init__(self, latency: Any, bandwidth: Any, gradient: float, activation: float, data: int):
        self.latency, self.bandwidth = latency, bandwidth
        self.gradient, self.activation, self.data = gradient, activation, data

    def exchange(self, group: Sequence[int]) -> float:
        """DataP of one group."""
        return max(
            sum(self._both(d, e, self.gradient / self.data) for e in group if e != d) for d in group
        )

    def edge(self, one: Sequence[int], other: Sequence[int]) -> float:
        return min(
            max(self._both(d, e, self.activation) for d, e in zip(one, turned, strict=True))
            for turned in itertools.permutations(other)
        )

    def _both(self, one: int, other: int, size: float) -> float:
        return sum(
            self.latency[a][b] + size / self.bandwidth[a][b]
            for a, b in ((one, other), (other, one))
        )

    def cost(self, groups: Groups) -> float:
        """DataP and the shortest path through the groups."""
        edges = {
            frozenset(pair): self.edge(*(groups[i] for i in pair))
            for pair in itertools.combinations(range(len(groups)), 2)
        }
        path = min(
            sum(edges[frozenset(pair)] for pair in itertools.pairwise(order))
            for order in itertools.permutations(range(len(groups)))
        )
        return path + max(map(self.exchange, groups))

    def best(self, devices: int) -> float:
        """The least cost of all ways to make groups of all devices."""
        return min(map(self.cost, partitions(tuple(range(devices)), self.data)))


def partitions(left: tuple[int, ...], size: int) -> Iterator[Groups]:
    """Every way to make groups of one size, regardless of their order."""
    if not left:
        yield ()
        return
    for mates in itertools.combinations(left[1:], size - 1):
        group = (left[0], *mates)
        rest = tuple(one for one in left if one not in group)
        for others in partitions(rest, size):
            yield (group, *others)
