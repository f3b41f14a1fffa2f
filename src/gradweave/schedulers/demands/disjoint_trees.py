"""Trees from one root that share no link: as many as any server's links can tell apart."""

from collections import deque
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from gradweave.schedule.demand import Demand
from gradweave.schedulers.demands.carriers import Carrier, Route, Trees
from gradweave.schedulers.demands.tuning import TUNING
from gradweave.topology.topology import Topology


def disjoint_carriers(topology: Topology, demand: Demand) -> Iterator[tuple[int, Carrier]]:
    """Carriers of broadcasts and reductions among all servers of a network of equal links.

    Each tree carries the same part of its block, and no two have a link in common, so that none
    waits for another. Of other blocks and networks, none.

    Args:
        topology: the network.
        demand: what is to be summed and moved.
    """
    equal = len(np.unique(topology.bandwidth_bytes_per_s)) == 1
    small = len(topology.source) <= TUNING.max_disjoint_links
    if len(topology.switches) or not equal or not small:
        return
    servers, rank = topology.num_servers, topology.rank.astype(np.int64)
    source, target = topology.source.astype(np.int64), topology.target.astype(np.int64)
    for block in range(len(demand)):
        given, wanted = demand.contributors[block], demand.destinations[block]
        if min(len(given), len(wanted)) > 1 or len(np.union1d(given, wanted)) < servers:
            continue
        towards = len(wanted) == 1
        root = int(rank[wanted[0] if towards else given[0]])
        ends = (target, source) if towards else (source, target)
        for parent, link in disjoint_trees(*ends, root, servers):
            trees = Trees(
                np.arange(servers),
                root,
                towards=parent if towards else None,
                given=np.isin(topology.servers, given),
                away=None if towards else parent,
                wanted=np.isin(topology.servers, wanted),
            )
            yield block, trees.carrier(topology, _route_over(link, towards))


def _route_over(link: NDArray[np.int64], towards: bool) -> Route:
    """Hops of a tree as its links.

    Args:
        link: [N] between each server and its parent.
        towards: whether data goes to the parents.
    """
    return lambda source, target: (int(link[source if towards else target]),)


def disjoint_trees(
    source: NDArray[np.int64], target: NDArray[np.int64], root: int, nodes: int
) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """As many trees from a root as can be without a link in common.

    A tree grows link by link, nearest to the root first; a link is taken if what is left still
    lets as many trees as are to come reach every node.

    Args:
        source: [L] node that each link direction leaves.
        target: [L] node that it enters.
        root: of the trees.
        nodes: V; all are spanned.

    Returns:
        Of each tree the parent of each node and the link that enters it; −1 at the root.

    Source: Lovász, "On two minimax theorems in graph", 1976 (a proof of Edmonds' theorem on
        disjoint branchings).
    """
    graph = _Graph(source, target, nodes)
    count = min(graph.flow({root}, node, len(source)) for node in range(nodes) if node != root)
    trees = []
    for left in range(count, 0, -1):
        parent, link = np.full(nodes, -1), np.full(nodes, -1)
        reached = deque([root])
        inside = {root}
        while len(inside) < nodes:
            grown = False
            for node in list(reached):
                for number in graph.leaving[node]:
                    other = int(target[number])
                    if not graph.free[number] or other in inside:
                        continue
                    if graph.flow({root, node}, other, left) >= left:
                        graph.free[number] = False
                        parent[other], link[other] = node, number
                        inside.add(other)
                        reached.append(other)
                        grown = True
            if not grown:
                return trees
        trees.append((parent, link))
    return trees


class _Graph:
    """Links that no tree has yet."""

    def __init__(self, source: NDArray[np.int64], target: NDArray[np.int64], nodes: int) -> None:
        self.source, self.target = source.tolist(), target.tolist()
        self.free = [True] * len(source)
        self.leaving: list[list[int]] = [[] for _ in range(nodes)]
        self.entering: list[list[int]] = [[] for _ in range(nodes)]
        for number, (one, other) in enumerate(zip(self.source, self.target, strict=True)):
            self.leaving[one].append(number)
            self.entering[other].append(number)

    def flow(self, sources: set[int], sink: int, enough: int) -> int:
        """How many paths without a common link lead to a node; not counted beyond `enough`."""
        used = [False] * len(self.free)
        for paths in range(enough):
            if not self._augment(sources, sink, used):
                return paths
        return enough

    def _augment(self, sources: set[int], sink: int, used: list[bool]) -> bool:
        """Finds one more path in the residual graph; breadth first."""
        came: dict[int, tuple[int, bool] | None] = dict.fromkeys(sources)
        queue = deque(sources)
        while queue:
            node = queue.popleft()
            for number in self.leaving[node]:
                other = self.target[number]
                if self.free[number] and not used[number] and other not in came:
                    came[other] = number, True
                    queue.append(other)
            for number in self.entering[node]:
                other = self.source[number]
                if used[number] and other not in came:
                    came[other] = number, False
                    queue.append(other)
            if sink in came:
                while (step := came[sink]) is not None:
                    number, forward = step
                    used[number] = forward
                    sink = self.source[number] if forward else self.target[number]
                return True
        return False
