"""Hosts under switches, as cluster managers list them, made a network with assumed bandwidths."""

import dataclasses
import math
import warnings
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from gradweave.errors import FileError, InputWarning, OptionError
from gradweave.topology.topology import MAX_NODES, Link, Topology
from gradweave.topology.units import format_bandwidth

MAX_LEVELS = 16
"""Most switches above each other."""
ROOT = "core"
"""Default name of the switch above several topmost switches."""


@dataclasses.dataclass(frozen=True)
class HostLinks:
    """Link properties that a list of hosts does not give.

    Raises:
        OptionError: for an oversubscription below 1.
    """

    link: Link = dataclasses.field(default_factory=Link)
    """Link of each host."""
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
    top_has_no_name: bool = False
    """Whether the format cannot name a switch above the uppermost ones."""
    note: str = ""
    """Assumption about the network that the file does not state, for a warning."""

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

    def topology(self, name: str, links: HostLinks | None = None) -> Topology:
        """The network: hosts are servers, in the file's order, then come the switches.

        A switch's uplink is one link; its bandwidth is the sum of the links below, divided by the
        oversubscription. Switches without hosts below are left out. If the file has several
        uppermost switches, one more switch is added that joins them. A warning reports it, unless
        the format has no name for such a switch and the caller gave `links`.

        Args:
            name: the network's name.
            links: the properties of links that the file lacks; those of `HostLinks` if not given.

        Raises:
            TopologyError: there are fewer than two hosts.
        """
        given, links = links is not None, links or HostLinks()
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
            root = unused(ROOT, {*self.hosts, *switches})
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
        note = self.note
        if len(tops) > 1 and not (self.top_has_no_name and given):
            joined = _joined(tops, up, self.top_has_no_name)
            note = f"{note}; {joined}" if note else joined
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
        if note:
            warnings.warn(note, InputWarning, stacklevel=2)
        return dataclasses.replace(made, labels=tuple(nodes))


def _joined(tops: Sequence[str], up: Mapping[str, float], nameless: bool) -> str:
    """The assumption made if no switch of the file joins all hosts."""
    shown = ", ".join(tops[:3]) + f" and {len(tops) - 3} more" * (len(tops) > 3)
    rates = sorted({up[top] for top in tops})
    each = " to ".join(dict.fromkeys(map(format_bandwidth, (rates[0], rates[-1]))))
    remedy = (
        "--bandwidth and --oversubscription of gradweave ranks say otherwise"
        if nameless
        else "name it in the file if there is one, else keep the hosts of one of them"
    )
    return f"no switch joins {shown}: one above them is assumed, with {each} to each; {remedy}"


def _depth(switch: str, above: Mapping[str, str]) -> int:
    depth = 0
    while (upper := above.get(switch)) is not None:
        switch, depth = upper, depth + 1
    return depth


def unused(name: str, used: Collection[str]) -> str:
    """A name, or a similar one that is not used yet."""
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

    def tree(self, *, top_has_no_name: bool = False, note: str = "") -> HostTree:
        """The tree.

        Args:
            top_has_no_name: as in `HostTree`.
            note: likewise.

        Raises:
            FileError: as `HostTree`.
        """
        return HostTree(self.hosts, self.above, top_has_no_name, note)
