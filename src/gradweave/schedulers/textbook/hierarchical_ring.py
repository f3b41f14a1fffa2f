"""The runtimes' algorithm for boxes: rings across boxes, and rings inside them."""

import dataclasses
from collections.abc import Iterator
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gradweave.schedulers.textbook.runtimes import Textbook
from gradweave.topology.groups import nested_groups
from gradweave.topology.topology import Topology


@dataclasses.dataclass(frozen=True)
class HierarchicalRing(Textbook):
    """Rings across boxes, among the servers at the same place in each box, and rings inside.

    An all-gather first crosses boxes and then circulates inside each; a reduce-scatter begins
    inside; an all-reduce is both. A server sends as many bytes as in a single ring of all servers,
    and no more than the minimum over links between boxes. With B boxes a stage takes N/B + B − 2
    steps instead of N − 1. Boxes, or racks or pods, are those of
    `gradweave.topology.groups.nested_groups`; without any, there is one ring.

    Source: Mikami et al., "Massively distributed SGD: ImageNet/ResNet-50 training in a flash",
        2018 (2D-torus all-reduce).
    """

    name: ClassVar[str] = "hierarchical_ring"

    def _parents(
        self, topology: Topology, group: NDArray[np.int64], root: int
    ) -> Iterator[NDArray[np.int64]]:
        places = self._boxes(topology, group)
        column = int(np.argwhere(places == root)[0, 1])
        parent = np.empty(len(group), np.int64)
        parent[places] = np.roll(places, 1, axis=1)
        parent[places[:, column]] = np.roll(places[:, column], 1)
        parent[root] = -1
        yield parent

    def _boxes(self, topology: Topology, group: NDArray[np.int64]) -> NDArray[np.int64]:
        """[boxes, servers in each] places in the group."""
        levels = nested_groups(topology)
        box = levels[0].group[topology.servers[group]] if levels else np.zeros(len(group), int)
        count = np.unique(box, return_counts=True)[1]
        if np.ptp(count):
            raise self.refused(
                f"expected equally many servers of the group in each box, got {count.min()} and "
                f"{count.max()}"
            )
        return np.argsort(box, kind="stable").reshape(len(count), -1)
