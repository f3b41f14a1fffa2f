"""Orbits of links under a free group: one transfer represents all its images."""

import dataclasses

import numpy as np
from numpy.typing import NDArray

from gradweave.schedulers.flows.concurrent_flow import ConcurrentFlow
from gradweave.schedulers.flows.messages import Messages
from gradweave.schedulers.flows.parts import MessageParts
from gradweave.schedulers.flows.rounds_kernel import Transfers
from gradweave.schedulers.kernels.wires import Wires, wires_over
from gradweave.schedules.schedule import take_rows
from gradweave.topology.symmetry import FreeGroup, moved_links
from gradweave.topology.topology import Topology


@dataclasses.dataclass(frozen=True, eq=False)
class Quotient:
    """A network whose links are orbits under a free group: orders on it hold everywhere.

    A transfer represents its images, which start together. They share no link if the route passes
    each orbit at most once and no element of the group keeps a link in place. Each element that
    does keep a link in place brings one more image over that link.
    """

    topology: Topology
    permutations: NDArray[np.int32]
    """[G, V] the image of each node under each element of the group."""
    orbit: NDArray[np.int64]
    """[L] orbit of each link direction."""
    images: NDArray[np.int64]
    """[O] images of a transfer on each link of an orbit: the elements that keep the link in
    place."""

    @staticmethod
    def of(flow: ConcurrentFlow, group: FreeGroup | None) -> "Quotient":
        """The quotient by the group under which a flow is symmetric."""
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
        """G, the order of the group."""
        return len(self.permutations)

    @property
    def capacity(self) -> NDArray[np.int64]:
        """[O] transfers that an orbit carries per round."""
        capacity = np.zeros(len(self.images), np.int64)
        capacity[self.orbit] = self.topology.capacity
        return capacity // self.images

    def carries(self, transfers: Transfers) -> bool:
        """Whether images share no link, or links have capacity for those that do.

        Args:
            transfers: transfers over the network's links.
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

    def spread(
        self, messages: Messages, parts: MessageParts
    ) -> tuple[MessageParts, NDArray[np.int64]]:
        """All images of the parts; and [P·G] the part of each image.

        Args:
            messages: at most one between two servers, unless the network is its own quotient.
            parts: parts of messages whose images are all other messages.
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
        moved = np.stack([moved_links(topology, one) for one in moves])
        links = moved[np.repeat(element, np.diff(first)), links]
        return MessageParts(message[order], parts.share[of], links, first), of
