"""Lower bounds for messages from server to server, such as an all-to-all, by link lengths."""

import dataclasses
import functools
import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gradweave.bounds.bound import Name, named
from gradweave.bounds.demands.link_lengths import (
    checked_integers,
    given_lengths,
    in_small_integers,
    strongest,
)
from gradweave.bounds.distances import node_distances
from gradweave.bounds.seconds.duals import least_latency_over
from gradweave.errors import OptionError
from gradweave.schedules.demand import LET_RELAY
from gradweave.topology.topology import Floats, Integers, Topology
from gradweave.topology.units import format_bandwidth, format_seconds, format_size
from gradweave.wording import counted

Unit = Literal["seconds", "rounds"]


@dataclasses.dataclass(frozen=True, eq=False)
class Messages:
    """K messages on a network, each an amount from one server to another.

    Raises:
        OptionError: for ends that are not two different servers, or an amount that is not a
            positive integer.
    """

    topology: Topology
    source: Integers
    """[K] node ids of servers that send."""
    target: Integers
    """[K] node ids of servers that receive."""
    amount: Integers
    """[K] bytes, or pieces of equal size if rounds are counted."""
    relays: NDArray[np.bool_] | None = None
    """[V] servers that may relay messages of others; all, if not given."""

    def __post_init__(self) -> None:
        columns = {name: np.asarray(getattr(self, name)) for name in ("source", "target", "amount")}
        length = len(columns["source"])
        for name, column in columns.items():
            if column.shape != (length,) or column.dtype.kind not in "iu":
                raise OptionError(f"messages: {name}: expected {length} integers in a row")
        if not length:
            raise OptionError("messages: expected at least one, got none")
        for name in ("source", "target"):
            nodes = columns[name]
            known = (nodes >= 0) & (nodes < self.topology.num_nodes)
            known[known] = self.topology.is_server[nodes[known]]
            if not known.all():
                k = int(np.argmin(known))
                raise OptionError(f"messages: {name}[{k}]: expected a server, got node {nodes[k]}")
        same, empty = columns["source"] == columns["target"], columns["amount"] <= 0
        if same.any():
            raise OptionError(f"messages: number {np.argmax(same)} goes from a server to itself")
        if empty.any():
            k = int(np.argmax(empty))
            raise OptionError(f"messages: amount[{k}]: expected 1 at least, got {self.amount[k]}")
        if self.relays is not None and np.shape(self.relays) != (self.topology.num_nodes,):
            raise OptionError("messages: relays: expected a flag for each node")
        for name, column in columns.items():
            object.__setattr__(self, name, column.astype(np.int64))

    def __len__(self) -> int:
        """K, the number of messages."""
        return len(self.source)

    @functools.cached_property
    def passes(self) -> NDArray[np.bool_]:
        """[V] whether messages that arrive at a node may go on from there."""
        relays = True if self.relays is None else np.asarray(self.relays, bool)
        return ~self.topology.is_server | relays

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
            cost: [L] cost of each link direction; sums of integers below 2^53 are exact.
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

    def capacity(self, unit: Unit) -> NDArray[np.float64]:
        """[L] capacity of link directions in bytes per second, or in pieces per round."""
        topology = self.topology
        kept = topology.bandwidth_bytes_per_s if unit == "seconds" else topology.capacity
        return kept.astype(np.float64)


@dataclasses.dataclass(frozen=True, eq=False)
class LinkLengths:
    """Link lengths that prove a lower bound on the messages' time.

    Everything that crosses a link uses the link's length. All messages together use at least their
    amounts times their distances, over any paths. Per second, or per round, all links offer their
    capacities times their lengths. The bound holds for whole or divided messages in any order. Any
    lengths prove a bound, however they were found.
    """

    messages: Messages
    unit: Unit
    length: Integers
    """[L] of each link direction, at least 0, at most `link_lengths.MAX_LENGTH`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", checked_integers(self.messages.topology, self.length))

    @functools.cached_property
    def used(self) -> int:
        """Minimum total of amount times path length over all messages; exact."""
        distance = self.messages.distances(self.length.astype(np.float64)).astype(np.int64)
        return _total(self.messages.amount.astype(object) * distance)

    @functools.cached_property
    def offered(self) -> Fraction:
        """Total capacity times length of all link directions, per second or round; exact."""
        values, kind = np.unique(self.messages.capacity(self.unit), return_inverse=True)
        return sum(
            (Fraction(v) * _total(self.length[kind == k]) for k, v in enumerate(values.tolist())),
            Fraction(0),
        )

    @functools.cached_property
    def time(self) -> Fraction:
        """Minimum time of the messages in seconds or rounds; exact.

        The first byte over a link must come from a server, and the last byte must go on to a
        server, so in seconds the link is idle for the latency of the shortest route over it. The
        minimum over all links is added.
        """
        if not self.offered or not self.used:
            return Fraction(0)
        if self.unit == "rounds":
            return Fraction(math.ceil(self.used / self.offered))
        waits = least_latency_over(self.messages.topology)[self.length > 0]
        return self.used / self.offered + Fraction(float(waits.min()))

    def reason(self, name: Name = str) -> str:
        """The certificate in words.

        Args:
            name: (node id) -> display name.
        """
        server = self._port()
        if server is not None:
            node, leaving = server
            verb = "leave" if leaving else "enter"
            end = self.messages.source if leaving else self.messages.target
            moved = self._amount(_total(self.messages.amount[end == node]))
            return f"{moved} must {verb} {named('server', (node,), name)} {self._rate()}"
        count = int((self.length > 0).sum())
        links = f"{counted(count, 'link direction')}"
        if self.length.max() == 1:
            return (
                f"the shortest paths over {links} carry {self._amount(self.used)} together, which "
                f"offer {self._rate()[3:]}"
            )
        return (
            f"with lengths up to {self.length.max():,} on {links}, amounts times distances are "
            f"{self.used:.4g}, and the links offer {float(self.offered):.4g} per {self.unit[:-1]}"
        )

    def __str__(self) -> str:
        return self.reason()

    def _port(self) -> tuple[int, bool] | None:
        """The server whose links out, or in, have length 1 while all others have 0, if any."""
        topology, links = self.messages.topology, np.flatnonzero(self.length)
        if self.length.max() != 1:
            return None
        for ends in (topology.source, topology.target):
            node = int(ends[links[0]])
            if topology.is_server[node] and np.array_equal(links, np.flatnonzero(ends == node)):
                return node, ends is topology.source
        return None

    def _amount(self, amount: int) -> str:
        return format_size(amount) if self.unit == "seconds" else counted(amount, "piece")

    def _rate(self) -> str:
        if self.unit == "seconds":
            return f"at {format_bandwidth(float(self.offered))}"
        return f"at {int(self.offered):,} per round"


@dataclasses.dataclass(frozen=True)
class Farthest:
    """Two servers with the largest number of transfers, or the largest latency, between them."""

    source: int
    target: int
    unit: Unit
    time: Fraction
    """Seconds or rounds."""

    def reason(self, name: Name = str) -> str:
        """The certificate in words.

        Args:
            name: (node id) -> display name.
        """
        ends = f"from server {name(self.source)} to server {name(self.target)}"
        if self.unit == "rounds":
            return f"a message needs {counted(int(self.time), 'transfer')} {ends}"
        return f"a message needs {format_seconds(float(self.time))} {ends}"

    def __str__(self) -> str:
        return self.reason()


UnicastCertificate = LinkLengths | Farthest


def unicast(
    messages: Messages,
    unit: Unit = "seconds",
    *,
    lengths: Floats | None = None,
) -> UnicastCertificate:
    """The minimum time of the messages, by the strongest of several certificates.

    The candidates are the ports of each server; lengths inverse to the links' capacities; the two
    servers that are farthest apart; and given lengths in small integers.
    `gradweave.schedulers.flows` finds lengths that are close to the best possible. Bytes may be
    divided and take any paths, including paths through servers that may relay. Message overheads
    are left out.

    Args:
        messages: what moves.
        unit: whether bytes move in seconds or pieces in rounds.
        lengths: [L] of link directions, at least 0, in any unit.

    Returns:
        The certificate; its `time` is the bound.

    Raises:
        OptionError: for lengths that are not non-negative and finite.

    Source: Shahrokhi and Matula, "The maximum concurrent flow problem", 1990 (the dual);
        docs/concepts/bounds.md.

    >>> import gradweave as gw
    >>> ring = gw.topology.ring(4)
    >>> pairs = [(s, t) for s in range(4) for t in range(4) if s != t]
    >>> source, target = np.array(pairs).T
    >>> bound = unicast(Messages(ring, source, target, np.ones(12, int)), "rounds")
    >>> bound.time, str(bound)
    (Fraction(2, 1), '3 pieces must leave server 0 at 2 per round')
    """
    found = [*_ports(messages, unit), _even(messages, unit)]
    if lengths is not None and (given := given_lengths(messages.topology, lengths)).any():
        found.append(_rounded(messages, unit, given))
    near = strongest(found, _time)
    return max(near, farthest(messages, unit), key=lambda one: one.time)


def farthest(messages: Messages, unit: Unit) -> Farthest:
    """The message with the most transfers, or the largest latency.

    Args:
        messages: what moves.
        unit: which of the two to measure.
    """
    topology = messages.topology
    arrives = topology.is_server[topology.target].astype(np.float64)
    distance = messages.distances(arrives if unit == "rounds" else topology.latency_s)
    k = int(np.argmax(distance))
    ends = int(messages.source[k]), int(messages.target[k])
    return Farthest(*ends, unit, Fraction(float(distance[k]) * (1 - (unit == "seconds") * 1e-12)))


def _ports(messages: Messages, unit: Unit) -> Iterator[LinkLengths]:
    """The servers that must send and receive most relative to their links' capacity."""
    topology, capacity = messages.topology, messages.capacity(unit)
    for ends, nodes in (
        (topology.source, messages.source),
        (topology.target, messages.target),
    ):
        moved = np.bincount(nodes, messages.amount, topology.num_nodes)
        rate = np.bincount(ends, capacity, topology.num_nodes)
        busiest = int(np.argmax(moved / rate))
        yield LinkLengths(messages, unit, (ends == busiest).astype(np.int64))


def _even(messages: Messages, unit: Unit) -> LinkLengths:
    return _rounded(messages, unit, 1 / messages.capacity(unit))


def _rounded(messages: Messages, unit: Unit, length: Floats) -> LinkLengths:
    """Lengths in integers that are as small as possible without losing much of the bound."""
    farthest = float(messages.distances(length).max())
    return in_small_integers(
        length, farthest, functools.partial(LinkLengths, messages, unit), _time
    )


def _time(lengths: LinkLengths) -> Fraction:
    return lengths.time


def _total(values: NDArray) -> int:
    """The exact sum of integers, however large."""
    return int(values.astype(object).sum())
