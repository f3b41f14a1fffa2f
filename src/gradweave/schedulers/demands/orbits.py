"""Orbits of links under a free group, by which one transfer stands for all its images."""

import dataclasses

import numpy as np
from numpy.typing import NDArray

from gradweave.bounds.unicast import Messages
from gradweave.schedule.schedule import take_rows
from gradweave.schedulers.demands.concurrent_flow import ConcurrentFlow
from gradweave.schedulers.demands.parts import Parts
from gradweave.schedulers.demands.rounds_kernel import Transfers
from gradweave.schedulers.kernels.wires import Wires, wires_over
from gradweave.topology.symmetry import FreeGroup
from gradweave.topology.topology import Topology


@dataclasses.dataclass(frozen=True, eq=False)
class Quotient:
    """A network whose links are orbits of a free group's: what is in order there is so everywhere.

    A transfer stands for its images, which start together. They share no link where its route
    passes each orbit once and no element keeps a link in place; of those that do, each brings one
    more over the link.
    """

    topology: Topology
    permutations: NDArray[np.int32]
    """[G, V] where each element of the group moves each node."""
    orbit: NDArray[np.int64]
    """[L] orbit of each link direction."""
    images: NDArray[np.int64]
    """[O] of a transfer, over each link of an orbit: elements that keep it in place."""

    @staticmethod
    def of(flow: ConcurrentFlow, group: FreeGroup | None) -> "Quotient":
        """The one by which a flow is symmetric."""
        topology = flow.messages.topology
        if group is None:
            return Quotient.trivial(topology)
        images = group.order // np.bincount(flow.orbit)
        return Quotient(topology, group.permutations, flow.orbit, images)

    @staticmethod
    def trivial(topology: Topology) -> "Quotient":
        """The network itself."""
        links = len(topology.source)
        identity = np.arange(topology.num_nodes, dtype=np.int32)
        return Quotient(topology, identity[None], np.arange(links), np.ones(links, np.int64))

    @property
    def order(self) -> int:
        """G, of the group."""
        return len(self.permutations)

    @property
    def capacity(self) -> NDArray[np.int64]:
        """[O] transfers that an orbit carries in a round."""
        capacity = np.zeros(len(self.images), np.int64)
        capacity[self.orbit] = self.topology.capacity
        return capacity // self.images

    def carries(self, transfers: Transfers) -> bool:
        """Whether images share no link, or links have room for those that do.

        Args:
            transfers: over the network's links.
        """
        links, first = transfers.links, transfers.first_link
        route = np.repeat(np.arange(len(first) - 1), np.diff(first))
        distinct = np.unique(route * len(self.images) + self.orbit[links])
        if len(distinct) < len(links):
            return False
        wires = self.wires(transfers)
        room = wires.bandwidth[wires.links] >= wires.rate[route]
        return bool(room.all() and self.capacity[wires.links].all())

    def wires(self, transfers: Transfers) -> Wires:
        """Routes over orbits of links, for event simulation."""
        wires = wires_over(self.topology, transfers.links, transfers.first_link)
        bandwidth = np.zeros(len(self.images))
        bandwidth[self.orbit] = wires.bandwidth
        return wires._replace(links=self.orbit[wires.links], bandwidth=bandwidth / self.images)

    def spread(self, messages: Messages, parts: Parts) -> tuple[Parts, NDArray[np.int64]]:
        """All images of parts; and [P·G] of which part each is one.

        Args:
            messages: one at most between two servers, unless the network is its own quotient.
            parts: of messages that have the others as images.
        """
        if self.order == 1:
            return parts, np.arange(len(parts.message))
        topology, moves = self.topology, self.permutations.astype(np.int64)
        pair = messages.source * topology.num_nodes + messages.target
        by_pair = np.argsort(pair)
        source, target = messages.source[parts.message], messages.target[parts.message]
        images = (moves[:, source] * topology.num_nodes + moves[:, target]).ravel()
        message = by_pair[np.searchsorted(pair[by_pair], images)]
        order = np.argsort(message, kind="stable")
        element, of = np.divmod(order, len(source))
        links, first = take_rows(parts.links, parts.first, of)
        moved = np.stack(
            [topology.find_links(m[topology.source], m[topology.target]) for m in moves]
        )
        links = moved[np.repeat(element, np.diff(first)), links]
        return Parts(message[order], parts.share[of], links, first), of
