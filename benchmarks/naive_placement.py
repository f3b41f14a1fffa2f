"""The exchange model's cost from its definition, and the least of it by trying everything.

Plain Python that shares no code with `gradweave.placement`; for eight devices or so.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

Groups = tuple[tuple[int, ...], ...]


class Naive:
    """Latency and bandwidth tables, and the bytes of a gradient and of activations.

    Bytes are of every stage alike, or of each; then groups are in the order of their stages.
    """

    def __init__(self, latency: Any, bandwidth: Any, gradient: Any, activation: Any, data: int):
        self.latency, self.bandwidth = latency, bandwidth
        self.gradient, self.activation, self.data = gradient, activation, data

    def exchange(self, group: Sequence[int], stage: int = 0) -> float:
        """DataP of one group."""
        part = _of(self.gradient, stage) / self.data
        return max(sum(self._both(d, e, part) for e in group if e != d) for d in group)

    def edge(self, one: Sequence[int], other: Sequence[int], stage: int = 0) -> float:
        """What a stage's activations take to the next stage, over the best matching."""
        moved = _of(self.activation, stage)
        return min(
            max(self._both(d, e, moved) for d, e in zip(one, turned, strict=True))
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

    def cost_in_order(self, groups: Groups) -> float:
        """DataP and PipelineP of groups whose places are their stages."""
        edges = (self.edge(*pair, stage) for stage, pair in enumerate(itertools.pairwise(groups)))
        return sum(edges) + max(self.exchange(group, stage) for stage, group in enumerate(groups))

    def best_in_order(self, devices: int, stages: int) -> float:
        """The least cost of all tables of groups; devices beyond them stay idle."""
        return min(map(self.cost_in_order, tables(tuple(range(devices)), stages, self.data)))

    def best(self, devices: int) -> float:
        """The least cost of all ways to make groups of all devices."""
        return min(map(self.cost, partitions(tuple(range(devices)), self.data)))


def _of(bytes_: Any, stage: int) -> float:
    return bytes_[stage] if isinstance(bytes_, Sequence) else bytes_


def tables(left: tuple[int, ...], stages: int, data: int) -> Iterator[Groups]:
    """Every group for the first stage, and for the next of what is left, and so on."""
    if not stages:
        yield ()
        return
    for group in itertools.combinations(left, data):
        rest = tuple(one for one in left if one not in group)
        for others in tables(rest, stages - 1, data):
            yield (group, *others)


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
