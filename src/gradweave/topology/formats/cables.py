"""Hosts and switches with the cables between them, as a fabric's file lists them."""

import warnings
from typing import Any, NamedTuple

from gradweave.common.wording import counted, listed
from gradweave.errors import AssumedWarning, FileError, InputWarning, TopologyError
from gradweave.topology.formats.graph import from_networkx
from gradweave.topology.formats.host_tree import HostLinks
from gradweave.topology.topology import MAX_NODES, Link, Topology
from gradweave.topology.units import format_bandwidth


class Cable(NamedTuple):
    """A cable between two nodes, with the same properties in both directions."""

    ends: tuple[str, str]
    ports: tuple[str, str] = ("", "")
    """Names of the ports or adapters at its ends, if the file has them."""
    bytes_per_s: float | None = None
    """None if the file does not state it."""
    latency_s: float | None = None


class Cables:
    """A fabric while its file is read, and its network."""

    def __init__(self) -> None:
        self.hosts: dict[str, None] = {}
        """Names of the hosts, in their order."""
        self.switches: dict[str, None] = {}
        self.cables: list[Cable] = []
        self.assumed: list[str] = []
        """Assumptions about what the file does not state, other than speeds."""

    def add(self, cable: Cable) -> None:
        """Adds a cable; one with both ends at the same node is ignored.

        Raises:
            FileError: there are too many.
        """
        if cable.ends[0] != cable.ends[1]:
            self.cables.append(cable)
        if len(self.cables) > 100 * MAX_NODES or len(self.hosts) + len(self.switches) > MAX_NODES:
            raise FileError(f"more than {MAX_NODES:,} nodes, the most supported")

    def topology(self, name: str, links: HostLinks | None = None) -> Topology:
        """The network: hosts are servers, and cables between the same two nodes add up.

        Nodes without a cable are left out with a warning.

        Args:
            name: the network's name.
            links: bandwidth of cables without a speed; that of `HostLinks`, with a warning, if not
                given.

        Raises:
            FileError: `links` was given, and every cable has a speed, or there is no tree.
            TopologyError: such a network cannot exist.
        """
        import networkx as nx

        default = Link()
        graph: Any = nx.MultiGraph()
        graph.add_nodes_from(self.hosts, kind="server")
        graph.add_nodes_from(self.switches, kind="switch")
        for cable in self.with_speeds(name, links):
            latency = default.latency_s if cable.latency_s is None else cable.latency_s
            graph.add_edge(*cable.ends, bandwidth_bytes_per_s=cable.bytes_per_s, latency_s=latency)
        alone = [node for node, degree in graph.degree() if not degree] if self.cables else []
        if alone:
            graph.remove_nodes_from(alone)
            warnings.warn(
                f"{name}: {counted(len(alone), 'node')} without a cable left out: "
                f"{listed([each[:60] for each in alone], 4)}",
                InputWarning,
                stacklevel=2,
            )
        parts = sorted(nx.connected_components(graph), key=len, reverse=True)
        if len(parts) > 1:
            first = [next(node for node in graph if node in part) for part in parts[:3]]
            shown = [
                f"{node!s:.60} with {len(part) - 1:,} other nodes"
                for node, part in zip(first, parts, strict=False)
            ]
            more = f" and {len(parts) - 3:,} more" * (len(parts) > 3)
            raise TopologyError(f"no cable joins its {len(parts):,} parts: {listed(shown)}{more}")
        return from_networkx(graph, name)

    def with_speeds(self, name: str, links: HostLinks | None = None) -> list[Cable]:
        """The cables, all with speeds; what was assumed is a warning.

        Args:
            name: of the network, for the warning.
            links: as for `topology`.

        Raises:
            FileError: as `topology`.
        """
        unknown = sum(cable.bytes_per_s is None for cable in self.cables)
        default = (links or HostLinks()).link
        if links is not None and (not unknown or links.oversubscription != 1):
            what = "oversubscription is" if unknown else "bandwidth and oversubscription are"
            raise FileError(f"{what} for lists of hosts; these links have their own")
        assumed = [*self.assumed]
        if unknown and links is None:
            speed = format_bandwidth(default.bandwidth_bytes_per_s)
            assumed.append(
                f"it states no speed of {unknown:,} of {counted(len(self.cables), 'cable')}: "
                f"assumed {speed} (gradweave topology show --bandwidth says otherwise)"
            )
        if assumed:
            warnings.warn(f"{name}: {'; '.join(assumed)}", AssumedWarning, stacklevel=3)
        return [
            cable
            if cable.bytes_per_s is not None
            else cable._replace(bytes_per_s=default.bandwidth_bytes_per_s)
            for cable in self.cables
        ]
