"""Trees from one root that share no link: as many as any server's links can tell apart."""

import dataclasses
from collections.abc import Iterator
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gradweave.schedule.demand import Demand
from gradweave.schedule.schedule import Schedule
from gradweave.schedulers.demands.carriers import Carrier, Trees, even_plan
from gradweave.schedulers.demands.own_hops import OwnHops, units_of
from gradweave.schedulers.demands.pieces import Pieces
from gradweave.schedulers.demands.strategy import DemandStrategy
from gradweave.schedulers.demands.tuning import TUNING
from gradweave.stop import Stop
from gradweave.topology.topology import Integers, Topology


@dataclasses.dataclass(frozen=True)
class DisjointTrees(DemandStrategy):
    """A broadcast, or a reduction, over as many trees as have bandwidth of their own on every link.

    Each carries the same part, in as few levels as are found; their bytes take the least time that
    any schedule can.
    """

    name: ClassVar[str] = "disjoint_trees"

    def make(self, topology: Topology, demand: Demand, seed: int, stop: Stop) -> Schedule:
        """Makes the schedule; `schedule` verifies it."""
        carriers = list(disjoint_carriers(topology, demand))
        if len({block for block, _ in carriers}) < len(demand):
            raise self.refused(
                "is for broadcasts and reductions among all servers, over links whose bandwidths "
                "are small multiples of the slowest one's"
            )
        pieces = Pieces(even_plan(topology, demand, carriers))
        return pieces.schedule(pieces.fastest(stop))


def disjoint_carriers(topology: Topology, demand: Demand) -> Iterator[tuple[int, Carrier]]:
    """Carriers of broadcasts and reductions among all servers.

    Each tree carries the same part of its block, and all have bandwidth of their own, so that none
    waits for another. Of other blocks none, nor where links have too many different bandwidths.

    Args:
        topology: the network.
        demand: what is to be summed and moved.
    """
    units = units_of(topology)
    if units is None or len(topology.source) > TUNING.max_disjoint_links:
        return
    servers, rank = topology.num_servers, topology.rank.astype(np.int64)
    for block in range(len(demand)):
        given, wanted = demand.contributors[block], demand.destinations[block]
        if min(len(given), len(wanted)) > 1 or len(np.union1d(given, wanted)) < servers:
            continue
        towards = len(wanted) == 1
        root = int(wanted[0] if towards else given[0])
        found = _flattest(topology, root, towards, units)
        if found is None:
            continue
        hops, parents = found
        for parent in parents:
            trees = Trees(
                np.arange(servers),
                int(rank[root]),
                towards=parent if towards else None,
                given=np.isin(topology.servers, given),
                away=None if towards else parent,
                wanted=np.isin(topology.servers, wanted),
            )
            yield block, trees.carrier(topology, hops.take)


def _flattest(
    topology: Topology, root: int, towards: bool, units: Integers
) -> tuple[OwnHops, NDArray[np.int64]] | None:
    """Of some sets of trees those that share links least with slower ones; then the flattest."""
    rng, best, found = np.random.default_rng(0), (np.inf, np.inf, np.inf), None
    for _ in range(TUNING.splits if len(topology.switches) else 1):
        hops = OwnHops(topology, root, towards, units, rng)
        if not 0 < hops.count <= TUNING.max_disjoint_trees:
            return None
        arcs, mixed = hops.between_servers, hops.links_of_several_rates
        if mixed > best[0]:
            continue
        for _ in range(TUNING.growths):
            parents, *depth = disjoint_trees(arcs, int(topology.rank[root]), hops.count, rng)
            if parents is not None and (mixed, *depth) < best:
                best, found = (mixed, *depth), (hops, parents)
    return found


def disjoint_trees(
    arcs: Integers, root: int, count: int, rng: np.random.Generator
) -> tuple[NDArray[np.int64] | None, int, int]:
    """Trees from a root without a common unit of an arc, level by level.

    Args:
        arcs: [N, N] units from each node to each other.
        root: of the trees.
        count: k, trees.
        rng: by which arcs are ordered that are tried.

    Returns:
        [k, N] of each tree the parent of each node, −1 at the root; None where there are not so
        many. Levels of the deepest, and the sum of all nodes' depths.
    """
    from gradweave.schedulers.demands.disjoint_trees_kernel import grow_trees, most_that_flows

    nodes = len(arcs)
    if most_that_flows(arcs, root, np.arange(nodes), count) < count:
        return None, nodes, 0
    parent = np.empty((count, nodes), np.int64)
    order = rng.permutation(count * nodes * nodes)
    levels, depth = grow_trees(arcs.copy(), root, count, order, parent)
    return parent, levels, depth
