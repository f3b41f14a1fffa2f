"""Lower bounds for given trees."""

import itertools

import numpy as np

from gradweave.bounds.bound import Bound, LinkLoad, TreeDepth, best
from gradweave.bounds.certificates import Certified, certified_by
from gradweave.schedules.flow_tree import FlowTrees, Workloads
from gradweave.schedules.schedule import Collective, Stage


def fixed_trees(
    trees: FlowTrees, collective: Collective = "reduce_scatter", *, overlap: bool = False
) -> Bound:
    """Minimum number of rounds for any order of these trees' workloads.

    Per stage it is the larger of two: the most transfers over one link direction divided by its
    capacity, and the longest chain of workloads, each of which waits for the previous one.

    Args:
        trees: the trees of all pieces.
        collective: a stage, or both.
        overlap: whether an all-reduce may run both stages at once.

    Returns:
        The bound, with its kind and certificate.

    Source: docs/concepts/bounds.md.

    >>> import gradweave as gw
    >>> trees = gw.schedules.FlowTrees.shortest_path(gw.topology.bcube(n=3, k=1))
    >>> gw.bounds.fixed_trees(trees).rounds, gw.bounds.fixed_trees(trees, "all_reduce").rounds
    (6, 12)
    """
    if collective == "all_reduce" and not overlap:
        stages = (fixed_trees(trees, stage) for stage in ("reduce_scatter", "all_gather"))
        return next(stages).then(next(stages)).on(trees.topology)
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
    found = best(
        Bound(int(needed[busiest]), "link_load", (by_load,)),
        Bound(int(heights[deepest]), "tree_depth", (by_depth,)),
    )
    return found.on(topology)


def certify_fixed_trees(trees: FlowTrees, stage: Stage = "reduce_scatter") -> Certified | None:
    """The certificate of a stage's bound along given trees, by the busiest link.

    Args:
        trees: merged trees, one for each server, in order of id.
        stage: one of the two stages.

    Returns:
        None if the trees are of another kind or pass a node in several ways, or if a chain of
        transfers limits the rounds instead of a link.

    >>> import gradweave as gw
    >>> trees = gw.schedules.FlowTrees.shortest_path(gw.topology.bcube(n=3, k=1))
    >>> print(certify_fixed_trees(trees))
    the given trees load the link 0→12 most, at 1 per round: 6 rounds for schedules that root a
    piece at each server, add at servers alone and keep to the given trees
    """
    topology, bound = trees.topology, fixed_trees(trees, stage)
    (load,) = bound.certificates
    if not isinstance(load, LinkLoad) or not trees.merged:
        return None
    if not np.array_equal(trees.root, topology.servers):
        return None
    before = np.full((trees.pieces, topology.num_nodes), -1)
    routes = np.split(trees.route_nodes, trees.route_offsets[1:-1])
    for piece, route in zip(trees.piece.tolist(), routes, strict=True):
        for node, following in itertools.pairwise(route.tolist()):
            if before[piece, node] not in (-1, following):
                return None
            before[piece, node] = following
    ends = (load.source, load.target)
    source, target = ends if stage == "all_gather" else ends[::-1]
    claim = {"unit": "rounds", "collective": stage, "trees": before.tolist()}
    step = {"kind": "load", "stage": stage, "source": source, "target": target}
    found = certified_by(topology, None, claim, [step])
    return found if found.least >= bound.rounds else None
