"""Trees from one root that share no link, limited in number by the server with the fewest links."""

import dataclasses
import math
from collections.abc import Iterator
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gradweave.common.stop import UNLIMITED, Stop
from gradweave.schedulers.carriers import Carrier, TreePair, even_plan
from gradweave.schedulers.demand_tuning import TUNING
from gradweave.schedulers.ordering.pieces import Pieces
from gradweave.schedulers.scheduler import DemandStrategy
from gradweave.schedulers.trees.own_hops import OwnHops, units_of
from gradweave.schedules.demand import Demand
from gradweave.schedules.schedule import Schedule
from gradweave.topology.topology import Integers, Topology


@dataclasses.dataclass(frozen=True)
class DisjointTrees(DemandStrategy):
    """A broadcast or a reduction over as many trees as can each have bandwidth of their own.

    Each tree carries an equal part, in as few levels as the search finds. The bytes then take the
    minimum time of any schedule.
    """

    name: ClassVar[str] = "disjoint_trees"

    def make(self, topology: Topology, demand: Demand, seed: int, stop: Stop) -> Schedule:
        """Makes the schedule; `schedule` verifies it."""
        planning = stop.part(TUNING.planning)
        carriers = list(disjoint_carriers(topology, demand, planning, every_block=True))
        if len({block for block, _ in carriers}) < len(demand):
            raise self.refused(
                "plans broadcasts and reductions among all servers, over links whose bandwidths "
                "are small multiples of the slowest link's"
            )
        pieces = Pieces(even_plan(topology, demand, carriers))
        return pieces.schedule(pieces.fastest(stop))


def disjoint_carriers(
    topology: Topology, demand: Demand, stop: Stop = UNLIMITED, *, every_block: bool = False
) -> Iterator[tuple[int, Carrier]]:
    """Carriers of broadcasts and reductions among all servers.

    Each tree carries an equal part of its block, and all have their own bandwidth, so that no tree
    waits for another. Other blocks get no carriers, and no block gets any if links have too many
    different bandwidths.

    Args:
        topology: the network.
        demand: the blocks to sum and move; the more blocks, the fewer sets are tried for each.
        stop: after which no further block is started.
        every_block: whether every block gets a set of trees, however long that takes.
    """
    units = units_of(topology)
    if units is None or len(topology.source) > TUNING.max_disjoint_links:
        return
    for block in range(len(demand)):
        given, wanted = demand.contributors[block], demand.destinations[block]
        everywhere = len(np.union1d(given, wanted)) == topology.num_servers
        if min(len(given), len(wanted)) > 1 or not everywhere:
            continue
        tries = math.ceil(TUNING.splits / len(demand)) if len(topology.switches) else 1
        search = _Search(topology, units, given, wanted)
        for carrier in search.carriers(tries, stop.part(1 / (len(demand) - block))):
            yield block, carrier
        if stop.reached() and not every_block:
            return


class _Search:
    """Sets of trees for one block, of which the flattest is kept.

    Sets whose trees share the fewest links between fast and slow hops are preferred.
    """

    def __init__(
        self,
        topology: Topology,
        units: NDArray[np.int64],
        given: Integers,
        wanted: Integers,
    ) -> None:
        self._topology, self._units = topology, units
        self._given, self._wanted = given, wanted
        self._towards = len(wanted) == 1
        self._root = int(wanted[0] if self._towards else given[0])
        self._rng = np.random.default_rng(0)
        self._best = (np.inf, np.inf, np.inf)

    def carriers(self, tries: int, stop: Stop) -> list[Carrier]:
        """The carriers of the best set; empty if there is no set.

        Args:
            tries: ways to split off the switches.
            stop: after which no further way is tried, once a set was found.
        """
        best = None
        for _ in range(tries):
            if best and stop.reached():
                break
            hops = OwnHops(self._topology, self._root, self._towards, self._units, self._rng)
            if not 0 < hops.count <= TUNING.max_disjoint_trees:
                break
            best = self._grown(hops) or best
        return [self._carrier(best[0], parent) for parent in best[1]] if best else []

    def _grown(self, hops: OwnHops) -> tuple[OwnHops, NDArray[np.int64]] | None:
        """A set of trees over some hops that is better than the best so far."""
        arcs, mixed, better = hops.between_servers, hops.links_of_several_rates, None
        for _ in range(TUNING.growths if mixed <= self._best[0] else 0):
            root = int(self._topology.rank[self._root])
            parents, *depth = disjoint_trees(arcs, root, hops.count, self._rng)
            if parents is not None and (mixed, *depth) < self._best:
                self._best, better = (mixed, *depth), (hops, parents)
        return better

    def _carrier(self, hops: OwnHops, parent: NDArray[np.int64]) -> Carrier:
        topology = self._topology
        servers, root = topology.servers, int(topology.rank[self._root])
        gives, wants = (np.isin(servers, ends) for ends in (self._given, self._wanted))
        trees = TreePair(np.arange(len(servers)), root, parent, gives, parent, wants)
        return trees.carrier(topology, hops.take)


def disjoint_trees(
    arcs: Integers, root: int, count: int, rng: np.random.Generator
) -> tuple[NDArray[np.int64] | None, int, int]:
    """Trees from a root that share no unit of an arc, grown level by level.

    Args:
        arcs: [N, N] units from each node to each other.
        root: the root of all trees.
        count: k, the number of trees.
        rng: randomises the order in which arcs are tried.

    Returns:
        [k, N] the parent of each node in each tree, −1 at the root, or None if there are not that
        many trees; the levels of the deepest tree; and the sum of all nodes' depths.
    """
    from gradweave.schedulers.trees.disjoint_trees_kernel import grow_trees, most_that_flows

    nodes = len(arcs)
    if most_that_flows(arcs, root, np.arange(nodes), count) < count:
        return None, nodes, 0
    parent = np.empty((count, nodes), np.int64)
    order = rng.permutation(count * nodes * nodes)
    levels, depth = grow_trees(arcs.copy(), root, count, order, parent)
    return parent, levels, depth
