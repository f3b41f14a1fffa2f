"""Point-to-point messages as a problem for flows: a demand on a network, and where paths may go."""

import dataclasses
import functools

import numpy as np
from numpy.typing import NDArray

from gradweave.bounds.distances import node_distances
from gradweave.bounds.prices import Unit, capacity_in
from gradweave.errors import OptionError
from gradweave.schedules.demand import LET_RELAY, Demand
from gradweave.topology.topology import Floats, Integers, Topology


@dataclasses.dataclass(frozen=True, eq=False)
class Messages:
    """K messages on a network: a demand's blocks of one contributor and one destination each.

    Raises:
        OptionError: for other blocks, or servers that the network does not have.
    """

    topology: Topology
    demand: Demand
    """Its bytes may stand for pieces of equal size."""

    def __post_init__(self) -> None:
        demand = self.demand
        if not demand.unicast:
            sizes = demand.contributors.sizes * demand.destinations.sizes
            raise OptionError(
                f"demand: block {int(np.argmax(sizes > 1))}: expected one contributor and one "
                "destination; this strategy cannot add or copy"
            )
        demand.check_servers(self.topology)

    def __len__(self) -> int:
        """K, the number of messages."""
        return len(self.demand)

    @property
    def source(self) -> Integers:
        """[K] node ids of servers that send."""
        return self.demand.contributors.servers

    @property
    def target(self) -> Integers:
        """[K] node ids of servers that receive."""
        return self.demand.destinations.servers

    @property
    def amount(self) -> Integers:
        """[K] bytes, or pieces."""
        return self.demand.bytes

    def capacity(self, unit: Unit) -> NDArray[np.float64]:
        """[L] capacity of link directions in bytes per second, or in pieces per round."""
        return capacity_in(self.topology, unit)

    def of_amounts(self, amount: Integers) -> "Messages":
        """The same messages with other amounts.

        Args:
            amount: [K] bytes, or pieces.
        """
        return dataclasses.replace(self, demand=dataclasses.replace(self.demand, bytes=amount))

    @functools.cached_property
    def passes(self) -> NDArray[np.bool_]:
        """[V] whether each node may relay messages of every job."""
        passes = np.ones(self.topology.num_nodes, bool)
        for job in range(len(self.demand.jobs)):
            allowed = ~self.topology.is_server
            allowed[self.demand.servers_of(job)] = allowed[self.demand.relays] = True
            passes &= allowed
        return passes

    @functools.cached_property
    def ends(self) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
        """[L] nodes that link directions leave and enter, and the number of such nodes.

        A server that does not relay is split into two nodes: its links leave v and enter v + V,
        so no path passes through it.
        """
        topology = self.topology
        source, target = topology.source.astype(np.int64), topology.target.astype(np.int64)
        if self.passes.all():
            return source, target, topology.num_nodes
        return source, self.entered(target), 2 * topology.num_nodes

    def entered(self, nodes: NDArray) -> NDArray[np.int64]:
        """The node of `ends` at which messages to each node arrive."""
        return np.where(self.passes[nodes], nodes, nodes + self.topology.num_nodes)

    def distances(self, cost: Floats) -> NDArray[np.float64]:
        """[K] minimum sum of link costs from each message's source to its target.

        Args:
            cost: [L] cost of each link direction.

        Raises:
            OptionError: for a message whose target cannot be reached.
        """
        source, target, nodes = self.ends
        servers, column = np.unique(self.target, return_inverse=True)
        least = node_distances(self.entered(servers), cost, (source, target), nodes)
        found = least[self.source, column]
        if not np.isfinite(found).all():
            k = int(np.argmin(np.isfinite(found)))
            raise OptionError(
                f"messages: number {k}: every path from server {self.source[k]} to server "
                f"{self.target[k]} passes servers that are not in the job; {LET_RELAY}"
            )
        return found
