"""Hosts under switches, as cluster managers list them, made a network with assumed bandwidths."""

import dataclasses
import math
from collections.abc import Mapping

import numpy as np

from gradweave.errors import FileError, OptionError
from gradweave.topology.topology import MAX_NODES, Link, Topology

MAX_LEVELS = 16
"""Most switches above each other."""
ROOT = "core"
"""What the switch above several uppermost ones is called, unless something else is."""


@dataclasses.dataclass(frozen=True)
class HostLinks:
    """Links that a list of hosts does not tell.

    Raises:
        OptionError: for an oversubscription below 1.
    """

    link: Link = dataclasses.field(default_factory=Link)
    """Of each host."""
    oversubscription: float = 1.0
    """How many times the bandwidth of all links below a switch is that of its link upward: 1 is
    non-blocking."""

    def __post_init__(self) -> None:
        if not 1 <= self.oversubscription < math.inf:
            raise OptionError(
                "oversubscription: expected a number of at least 1, such as 4 for 4:1, got "
                f"{self.oversubscription:g}"
            )


@dataclasses.dataclass(frozen=True)
class HostTree:
    """Hosts, each on a switch, and switches under others.

    Raises:
        FileError: a host is named as a switch is, or switches are above each other in a circle.
    """

    hosts: Mapping[str, str]
    """The switch of each host, in the file's order."""
    above: Mapping[str, str]
    """The switch above each, but for the uppermost ones."""

    def __post_init__(self) -> None:
        for switch in self.above:
            seen = [switch]
            while (upper := self.above.get(seen[-1])) is not None:
                if upper in seen:
                    raise FileError(
                        f"switch {upper!r:.60} is above itself; expected a tree of switches"
                    )
                if len(seen) == MAX_LEVELS:
                    raise FileError(
                        f"switch {switch!r:.60} has {MAX_LEVELS} above it; expected fewer levels"
                    )
                seen.append(upper)
        switches = {*self.hosts.values(), *self.above, *self.above.values()}
        for name in self.hosts:
            if name in switches:
                raise FileError(f"{name!r:.60} is a host and a switch; expected different names")
        if len(self.hosts) + len(switches) >= MAX_NODES:
            raise FileError(
                f"{len(self.hosts) + len(switches):,} hosts and switches; at most {MAX_NODES:,} "
                "are supported"
            )

    def topology(self, name: str, links: HostLinks) -> Topology:
        """The network: hosts are servers, in the file's order, then come the switches.

        Each link upward has the bandwidth of all links below it over the oversubscription, in one
        link. Several uppermost switches are joined by one more. Switches without hosts below are
        left out.

        Args:
            name: the network's name.
            links: what the file does not tell.

        Raises:
            TopologyError: there are fewer than two hosts.
        """
        above = dict(self.above)
        switches: dict[str, float] = {}  # those with hosts below, with the bandwidth of these
        ways: dict[str, list[str]] = {}
        for host, switch in self.hosts.items():
            ways[host] = [switch]
            while (upper := above.get(ways[host][-1])) is not None:
                ways[host].append(upper)
        for way in ways.values():
            switches |= dict.fromkeys(way, 0.0)
        tops = [switch for switch in switches if switch not in above]
        if len(tops) > 1:
            root = _unused(ROOT, {*self.hosts, *switches})
            above |= dict.fromkeys(tops, root)
            switches[root] = 0.0
        up: dict[str, float] = {}
        deepest_first = sorted(switches, key=lambda switch: -_depth(switch, above))
        host_rate = links.link.bandwidth_bytes_per_s
        for switch in self.hosts.values():
            switches[switch] += host_rate
        for switch in deepest_first:
            if switch in above:
                up[switch] = switches[switch] / links.oversubscription
                switches[above[switch]] += up[switch]
        nodes = {node: number for number, node in enumerate([*self.hosts, *switches])}
        pairs = [(nodes[host], nodes[switch]) for host, switch in self.hosts.items()]
        pairs += [(nodes[switch], nodes[above[switch]]) for switch in up]
        rates = np.array([host_rate] * len(self.hosts) + [*up.values()])
        made = Topology.from_links(
            name,
            servers=len(self.hosts),
            switches=len(switches),
            links=pairs,
            link=links.link,
            capacity=np.maximum((rates / host_rate * (1 + 1e-9)).astype(np.int64), 1),
            bandwidth_bytes_per_s=rates,
        )
        return dataclasses.replace(made, labels=tuple(nodes))


def _depth(switch: str, above: Mapping[str, str]) -> int:
    depth = 0
    while (upper := above.get(switch)) is not None:
        switch, depth = upper, depth + 1
    return depth


def _unused(name: str, used: set[str]) -> str:
    while name in used:
        name += "'"
    return name


class HostTreeBuilder:
    """A tree of hosts while its file is read, which refuses what is named twice."""

    def __init__(self) -> None:
        self.hosts: dict[str, str] = {}
        self.above: dict[str, str] = {}

    def add_host(self, where: str, host: str, switch: str) -> None:
        """Puts a host on a switch.

        Args:
            where: of the file, for messages.
            host: its name.
            switch: its switch's.

        Raises:
            FileError: it is on another switch already, or listed twice.
        """
        if (other := self.hosts.setdefault(host, switch)) != switch:
            raise FileError(
                f"{where}: host {host!r:.60} is on {other!r:.60} and {switch!r:.60}; expected one "
                "switch a host"
            )
        if len(self.hosts) > MAX_NODES:
            raise FileError(f"{where}: more than {MAX_NODES:,} hosts")

    def add_switch(self, where: str, switch: str, upper: str) -> None:
        """Puts a switch under another.

        Args:
            where: of the file, for messages.
            switch: the lower one's name.
            upper: the upper one's.

        Raises:
            FileError: it is under another already.
        """
        if (other := self.above.setdefault(switch, upper)) != upper:
            raise FileError(
                f"{where}: switch {switch!r:.60} is under {other!r:.60} and {upper!r:.60}; "
                "expected a tree, with one switch above each"
            )

    def tree(self) -> HostTree:
        """The tree.

        Raises:
            FileError: as `HostTree`.
        """
        return HostTree(self.hosts, self.above)
