"""Random regular graphs of switches, as in Jellyfish."""

import numpy as np
from numpy.typing import NDArray

from gradweave.errors import TopologyError
from gradweave.topology.topology import components

ATTEMPTS = 200
"""Most graphs drawn until one is connected; fewer for large graphs."""


def connected_random_graph(
    name: str, nodes: int, degree: int, random: np.random.Generator
) -> NDArray[np.int64]:
    """Draws random graphs until one is connected.

    Args:
        name: the network's name, for the message.
        nodes: number of nodes.
        degree: links of each node, less than `nodes`.
        random: random generator, continued from one attempt to the next.

    Returns:
        [links, 2] pairs of nodes, the lower first, sorted.

    Raises:
        TopologyError: none was connected, or none can be.
    """
    if degree * nodes // 2 < nodes - 1:
        raise TopologyError(
            f"{name}: {nodes} switches of degree {degree} cannot be connected; give a higher degree"
        )
    attempts = max(3, min(ATTEMPTS, 2_000_000 // (nodes * degree)))
    for _ in range(attempts):
        graph = _RandomGraph(nodes, degree, random)
        graph.fill()
        pairs = [(a, b) for a, near in enumerate(graph.neighbours) for b in near if a < b]
        links = np.array(sorted(pairs), np.int64).reshape(-1, 2)
        if is_connected(nodes, links):
            return links
    raise TopologyError(
        f"{name}: none of {attempts} random graphs was connected; "
        "give a higher degree or another seed"
    )


def is_connected(nodes: int, pairs: NDArray[np.int64]) -> bool:
    """Whether links, [L, 2], connect all nodes, numbered from 0."""
    source, target = np.concatenate([pairs, pairs[:, ::-1]]).T
    return not components(nodes, source, target).any()


class _RandomGraph:
    """A graph that grows link by link until at most one port is free."""

    def __init__(self, nodes: int, degree: int, random: np.random.Generator) -> None:
        self.neighbours: list[set[int]] = [set() for _ in range(nodes)]
        self.degree = degree
        self.open = list(range(nodes))
        """Nodes with free ports."""
        self.place = list(range(nodes))
        """Index of each node in `open`."""
        self.random = random

    def free(self, node: int) -> int:
        """Number of ports of the node that have no link yet."""
        return self.degree - len(self.neighbours[node])

    def fill(self) -> None:
        """Links random pairs, then splices in remaining free ports once no pair can be linked."""
        # While far more nodes have free ports than one can be adjacent to, most draws succeed.
        while len(self.open) > 8 * (self.degree + 1):
            for a, b in self.random.integers(len(self.open), size=(16, 2)).tolist():
                if max(a, b) < len(self.open):
                    self._join_if_possible(self.open[a], self.open[b])
        # Linking in a random order of all pairs equals drawing each from those then possible.
        free = np.array(sorted(self.open), np.int64)
        apart = np.array([[b not in self.neighbours[a] for b in free] for a in free.tolist()])
        pairs = free[np.argwhere(np.triu(apart.reshape(len(free), len(free)), 1))]
        for a, b in self.random.permutation(pairs).tolist():
            self._join_if_possible(a, b)
        while self.open and self._splice():
            pass

    def _join_if_possible(self, a: int, b: int) -> None:
        if a != b and self.free(a) and self.free(b) and b not in self.neighbours[a]:
            self._join(a, b)

    def _splice(self) -> bool:
        """Replaces a random link by links from its ends to free ports; False if impossible.

        The free ports are two of one node or, if no node has two, one each of two nodes. These two
        are adjacent, since otherwise they would have been linked.
        """
        first = max(self.open, key=lambda node: (self.free(node), -node))
        others = [node for node in self.open if node != first]
        if self.free(first) >= 2:
            second = first
        elif others:
            second = min(others)
        else:
            return False
        links = [
            (x, y)
            for x, near in enumerate(self.neighbours)
            if x not in (first, second) and x not in self.neighbours[first]
            for y in sorted(near)
            if y not in (first, second) and y not in self.neighbours[second]
        ]
        if not links:
            return False
        x, y = links[int(self.random.integers(len(links)))]
        self._part(x, y)
        self._join(first, x)
        self._join(second, y)
        return True

    def _join(self, a: int, b: int) -> None:
        self.neighbours[a].add(b)
        self.neighbours[b].add(a)
        for node in (a, b):
            if not self.free(node):
                self._close(node)

    def _part(self, a: int, b: int) -> None:
        for node, other in ((a, b), (b, a)):
            if not self.free(node):
                self.place[node] = len(self.open)
                self.open.append(node)
            self.neighbours[node].remove(other)

    def _close(self, node: int) -> None:
        """Removes the node from `open`; the last node takes its place."""
        last = self.open[-1]
        self.open[self.place[node]] = last
        self.place[last] = self.place[node]
        self.open.pop()
