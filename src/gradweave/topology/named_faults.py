"""Faults in text: links and servers by name."""

import dataclasses

from gradweave.errors import SpecError
from gradweave.topology.faults import degraded
from gradweave.topology.names import Node, find_link, find_node
from gradweave.topology.topology import Topology


@dataclasses.dataclass(frozen=True)
class Faults:
    """Links and servers lost and links slowed, as text that any network can be given."""

    links: tuple[str, ...] = ()
    """Links lost: ``0-16``, ``gpu0-leaf-1``."""
    servers: tuple[str, ...] = ()
    """Servers lost, by name or id."""
    slow: tuple[str, ...] = ()
    """Links slowed: ``0-16=0.5`` halves the bandwidth."""

    def __bool__(self) -> bool:
        return bool(self.links or self.servers or self.slow)

    def apply_to(self, topology: Topology) -> Topology:
        """The network after these faults.

        Args:
            topology: the network before.

        Raises:
            TopologyError: it has no such node or link, or becomes disconnected.
            SpecError: a slow link without a factor.

        >>> import gradweave as gw
        >>> Faults(links=("0-1",), slow=("1-2=0.5",)).apply_to(gw.topology.ring(8))
        Topology('ring:n=8 with 1 slow link without 1 link': 8 servers, 0 switches, 7 links)
        """
        factors: dict[tuple[Node, Node], str] = {}
        for text in self.slow:
            link, equals, factor = text.rpartition("=")
            if not equals:
                raise SpecError(
                    f"slow {text!r:.60}: expected a link and what is left of its bandwidth, as in "
                    "0-16=0.5"
                )
            ends = find_link(topology, link, "slow")
            if ends in factors:
                raise SpecError(f"slow {text!r:.60}: the link is given twice; give one factor")
            factors[ends] = factor.strip()
        return degraded(
            topology,
            links=[find_link(topology, link, "without_link") for link in self.links],
            servers=[find_node(topology, server, "without_server") for server in self.servers],
            slow=factors,
        ).topology
