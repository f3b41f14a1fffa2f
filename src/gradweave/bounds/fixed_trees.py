"""Lower bounds for given trees."""

import numpy as np

from gradweave.bounds.bound import Bound, LinkLoad, TreeDepth, best
from gradweave.schedule.flow_tree import FlowTrees, Workloads
from gradweave.schedule.schedule import Collective


def fixed_trees(
    trees: FlowTrees, collective: Collective = "reduce_scatter", *, overlap: bool = False
) -> Bound:
    """Fewest rounds that any order of these trees' workloads can have.

    Per stage the larger of: the most transfers over one link direction, divided by its capacity;
    and the longest chain of workloads, each of which waits for the one before.

    Args:
        trees: the trees of all pieces.
        collective: a stage, or both.
        overlap: whether an all-reduce may run both stages at once.

    Returns:
        The bound, with its kind and certificate.

    Source: docs/concepts/bounds.md.

    >>> import gradweave as gw
    >>> trees = gw.schedule.FlowTrees.shortest_path(gw.topology.bcube(n=3, k=1))
    >>> gw.bounds.fixed_trees(trees).rounds, gw.bounds.fixed_trees(trees, "all_reduce").rounds
    (6, 12)
    """
    if collective == "all_reduce" and not overlap:
        return fixed_trees(trees, "reduce_scatter").then(fixed_trees(trees, "all_gather"))
    topology = trees.topology
    workloads = Workloads.of(trees, collective)
    links, _ = workloads.links()
    load = np.bincount(links, minlength=len(topology.source))
    needed = -(-load // topology.capacity)
    busiest = int(needed.argmax())
    ends = int(topology.source[busiest]), int(topology.target[busiest])
    by_load = LinkLoad(*ends, int(load[busiest]), int(topology.capacity[busiest]))
    heights = workloads.heights()
    deepest = int(heights.argmax())
    by_depth = TreeDepth(int(workloads.piece[deepest]), int(heights[deepest]))
    return best(
        Bound(int(needed[busiest]), "link_load", (by_load,)),
        Bound(int(heights[deepest]), "tree_depth", (by_depth,)),
    )
