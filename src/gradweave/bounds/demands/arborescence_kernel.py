"""Edmonds' algorithm for the minimum cost of a spanning tree, exact and compiled."""

import numpy as np

from gradweave.common.compiled import kernel
from gradweave.topology.topology import Integers


@kernel
def least_arborescence(cost: Integers, root: int, far: int) -> int:
    """Minimum cost of a tree that spans all nodes from a root; exact.

    Each node takes its cheapest arc and its cost is added to the total. The nodes on a cycle of
    such arcs are contracted to one node, whose other arcs cost only the difference.

    Args:
        cost: [N, N] of the arc from each node to each other, non-negative integers.
        root: node.
        far: cost of a missing arc; also returned if no tree exists. It must be more than twice
            the cost of any tree.

    Source: Edmonds, "Optimum branchings", 1967.
    """
    cost, count, total = cost.copy(), len(cost), 0
    cheapest, group = np.empty(count, np.int64), np.empty(count, np.int64)
    while True:
        for node in range(count):
            if node == root:
                continue
            best = -1
            for other in range(count):
                if other != node and (best < 0 or cost[other, node] < cost[best, node]):
                    best = other
            paid = cost[best, node]
            if paid >= far // 2:
                return far
            total += paid
            cheapest[node] = best
            for other in range(count):
                if cost[other, node] < far // 2:
                    cost[other, node] -= paid
        # Nodes on one cycle get one number. `group` is −1 for nodes not yet visited and −2 − k on
        # the k-th walk, which has found a cycle when it meets itself.
        group[:count] = -1
        groups, cycles = 0, 0
        group[root] = groups
        groups += 1
        for begun in range(count):
            node = begun
            while group[node] == -1:
                group[node] = -2 - begun
                node = cheapest[node]
            if group[node] == -2 - begun:
                cycles += 1
                while group[node] == -2 - begun:
                    group[node] = groups
                    node = cheapest[node]
                groups += 1
            node = begun
            while group[node] == -2 - begun:
                group[node] = groups
                groups += 1
                node = cheapest[node]
        if not cycles:
            return total
        merged = np.full((groups, groups), far)
        for a in range(count):
            for b in range(count):
                if group[a] != group[b] and cost[a, b] < merged[group[a], group[b]]:
                    merged[group[a], group[b]] = cost[a, b]
        cost, count, root = merged, groups, 0
