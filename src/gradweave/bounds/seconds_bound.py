"""Lower bounds on time, assembled from arguments, and the arguments for a collective among all."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from gradweave.bounds.bound import WORTH_SAYING, Name
from gradweave.bounds.classes import OTHER_ROOTS, UNEQUAL_PARTS, class_of, impossible_on
from gradweave.bounds.scale import has_equal_links, has_equal_ports
from gradweave.bounds.seconds.latency import MAX_DISTANCES, MessageTimes, latency_bound, slowest
from gradweave.bounds.seconds.least_seconds import latencies, least_seconds, measured
from gradweave.bounds.seconds.throughput import MAX_FLOW_NODES, Throughput, throughput
from gradweave.bounds.steps import (
    Step,
    bottleneck_step,
    distance_steps,
    message_steps,
    priced_step,
)
from gradweave.schedules.demand import Demand
from gradweave.schedules.ready import ReadyAt, ready_times
from gradweave.schedules.schedule import Collective
from gradweave.topology.groups import nested_groups
from gradweave.topology.spec import TopologyLike, as_topology
from gradweave.topology.topology import Topology
from gradweave.topology.units import (
    ROUNDING,
    as_size,
    format_bandwidth,
    format_seconds,
    format_size,
)

if TYPE_CHECKING:
    from gradweave.bounds.demands.demand_lengths import DemandLengths

MAX_ROOTS = 64
"""Number of servers up to which the distances to and from every server are tried."""

Kind = Literal["latency", "messages", "bandwidth", "latency and bytes"]
EVERY = frozenset[str]()


@dataclasses.dataclass(frozen=True, eq=False)
class Part:
    """One argument for a bound, which proves a time by itself."""

    name: Literal["distance", "last byte", "messages", "bytes", "root", "slots", "pipeline"]
    """``distance``: a contribution must travel to its destination. ``last byte``: it must first
    leave its server. ``messages``: with negligible bytes, messages hold links for their overhead.
    ``bytes``: links carry their bandwidth. ``root``: to some root and from there to all; the
    checker alone counts its time. ``slots``: latency and bytes add up, slot by slot.
    ``pipeline``: a block crosses several cuts, each piece whole."""
    seconds: float
    """The time that it proves, counted from `SecondsBound.since_s`."""
    kind: Kind
    """The quantity that takes most of the time."""
    reason: Callable[[Name], str] = dataclasses.field(repr=False)
    """The argument in words, from the nodes' display names."""
    holds_unless: frozenset[str] = EVERY
    """Liberties that void the argument if a schedule takes one; see `gradweave.bounds.classes`."""
    prove: Callable[[], Sequence[Step]] = dataclasses.field(default=list, repr=False)
    """Makes steps of certificates, each of which may prove about this time alone."""
    claim: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Entries that these certificates claim in addition to `SecondsBound.claim`."""


@dataclasses.dataclass(frozen=True, eq=False)
class SecondsBound:
    """A lower bound on time in every model of `gradweave.simulator.seconds`, and its arguments."""

    topology: Topology
    demand: Demand | None
    """The blocks to sum and move; None for a collective among all servers."""
    parts: tuple[Part, ...]
    claim: Mapping[str, Any]
    """The claim of certificates, except for the time."""
    since_s: float = 0.0
    """Seconds before which nothing is sent."""
    priced: "DemandLengths | None" = None
    """For a demand, `lengths`."""
    besides: "tuple[DemandLengths, ...]" = ()
    """Other lengths that a search has found and that prove more about some of the jobs."""

    @functools.cached_property
    def seconds(self) -> float:
        """The largest part. The sum would be no bound: bytes cross links while others travel."""
        return self.since_s + max(part.seconds for part in self.parts)

    @functools.cached_property
    def seconds_of_parts(self) -> float:
        """The same bound for pieces of any size, however small."""
        return self.since_s + max(part.seconds for part in self.parts if part.name != "pipeline")

    def seconds_by(self, name: str) -> float:
        """The largest time by arguments of one name, counted from `since_s`; 0 without any."""
        return max((part.seconds for part in self.parts if part.name == name), default=0.0)

    @property
    def lengths(self) -> "DemandLengths":
        """For a demand, the certificate for the bytes.

        If jobs start at different times, it may be that of the jobs that start late.
        """
        assert self.priced is not None, "a collective among all servers has no link lengths"
        return self.priced

    @functools.cached_property
    def largest(self) -> Part:
        """The part that decides; among equal parts, one that holds for the widest class."""
        least = max(part.seconds for part in self.parts) * (1 - ROUNDING)
        near = (part for part in self.parts if part.seconds >= least)
        return min(near, key=lambda part: len(part.holds_unless))

    @property
    def kind(self) -> Kind:
        """The quantity that limits the time most."""
        return self.largest.kind

    @property
    def holds_unless(self) -> frozenset[str]:
        """Liberties that void the bound if a schedule takes one; see `gradweave.bounds.classes`."""
        return self.largest.holds_unless

    @property
    def holds_for(self) -> str:
        """The schedules that the bound holds for, as a phrase; empty if it holds for all."""
        return class_of(self.holds_unless)

    def reason(self, name: Name = str) -> str:
        """The limit in words.

        Args:
            name: (node id) -> display name, such as `Topology.id_name`; ids if not given.
        """
        return self.largest.reason(name)

    def later(self, start_s: float) -> "SecondsBound":
        """The bound if nothing is sent before `start_s`."""
        return dataclasses.replace(self, since_s=self.since_s + start_s)

    def with_slots(
        self,
        slots: int | None,
        upper_s: float | None = None,
        *,
        time_limit: float | None = None,
    ) -> "SecondsBound":
        """The bound of a collective among all, with a part in which latency and bytes add up.

        The added part holds for trees whose routes pass no server. If servers are late, the bound
        stays as it is.

        Args:
            slots: number of slots of time; if None, as `gradweave.bounds.time_expanded` chooses.
            upper_s: the time of a known schedule, if any, which narrows the search.
            time_limit: seconds for the search.
        """
        from gradweave.bounds.seconds.time_expanded import MAX_SERVERS, time_expanded

        if "ready_at_s" in self.claim or self.topology.num_servers > MAX_SERVERS:
            return self
        prices = time_expanded(
            self.topology,
            float(Fraction(self.claim["bytes"])),
            collective=self.claim["collective"],
            slots=slots,
            time_limit=time_limit,
            upper_s=upper_s,
            lower_s=self.seconds - self.since_s,
        )
        if prices is None:
            return self
        part = Part(
            "slots",
            prices.seconds,
            "latency and bytes",
            prices.reason,
            prices.holds_unless,
            lambda: [prices.step()],
        )
        return dataclasses.replace(self, parts=(*self.parts, part))

    def __str__(self) -> str:
        least = f"at least {format_seconds(self.seconds)} ({self.kind})"
        return f"{least}{self.holds_for}, since {self.reason(self.topology.id_name)}"


def seconds_bound(
    topology: TopologyLike,
    collective: Collective,
    gradient_bytes: float | str,
    *,
    equal_roots: bool = True,
    roots: NDArray[np.int64] | None = None,
    trees: bool = True,
    aggregating_switches: bool = False,
    ready_at_s: ReadyAt | None = None,
) -> SecondsBound:
    """A lower bound on a collective's time, whatever its trees, pieces and overlap.

    It is the largest of several parts. Latency: the contribution of each server must reach every
    other (in a single stage: every root), and no path is shorter than the shortest. Last byte: in
    an all-reduce, all of a server's bytes must have left it before the last of them travels that
    path. Messages: what one server knows reaches others in messages that hold links for their
    overhead, as in the LogP model, and a sum is sent on only once it is complete, or exchanged with
    few servers at a time (`gradweave.bounds.latency_bound`). Bandwidth: the whole gradient leaves
    every set of servers, and each byte enters servers 2(N−1) times in an all-reduce
    (`gradweave.bounds.throughput`). If links are unequal, the best that trees for parts of any size
    can do counts as well (`gradweave.bounds.least_seconds`).

    Args:
        topology: the network; bandwidths count, capacities do not.
        collective: a stage, or both.
        gradient_bytes: size of the whole gradient.
        equal_roots: whether each server is the root of an equal part; if not, a single stage has a
            bound from latency alone.
        roots: ranks of the servers that are roots, if their parts differ; if not given, the set of
            roots with the smallest bound.
        trees: whether each part is summed at its root alone. If not, partners may exchange sums, as
            in recursive doubling, and the bounds for trees do not apply.
        aggregating_switches: whether switches add; then only latency bounds the time.
        ready_at_s: [N] seconds at which each server's gradient is ready, in order of id; 0 if not
            given. The server sends its contribution afterwards.
    """
    topology = as_topology(topology)
    gradient_bytes = as_size(gradient_bytes)
    ready = ready_times(topology, ready_at_s)
    claim: dict[str, Any] = {"unit": "seconds", "collective": collective}
    claim["bytes"] = str(Fraction(gradient_bytes))
    if ready.any() and collective == "all_reduce":
        claim["ready_at_s"] = [str(Fraction(time)) for time in ready.tolist()]
    every_root = equal_roots or collective == "all_reduce"
    unequal = frozenset({UNEQUAL_PARTS} if every_root and collective != "all_reduce" else ())
    parts = [
        Part(
            "distance",
            _farthest(topology, collective, ready, every_root, roots),
            "latency",
            lambda _: "a message needs that long to the farthest server",
            unequal if every_root or roots is None else frozenset({OTHER_ROOTS}),
            functools.partial(distance_steps, topology, collective, ready),
        )
    ]
    if not aggregating_switches:
        if collective == "all_reduce" and topology.num_servers <= MAX_DISTANCES:
            parts.append(_last_byte(topology, ready, gradient_bytes))
        parts.append(_of_messages(topology, collective, every_root, unequal))
        if every_root:
            parts += _of_bytes(topology, collective, gradient_bytes, ready, trees)
            parts += _over_a_root(topology, collective, trees)
    return SecondsBound(topology, None, tuple(parts), claim)


def _of_messages(
    topology: Topology, collective: Collective, every_root: bool, unequal: frozenset[str]
) -> Part:
    """The part for messages without bytes."""
    found = latency_bound(topology, collective, every_root=every_root)
    few = topology.num_servers <= MAX_DISTANCES
    steps = functools.partial(message_steps, topology, collective, found) if few else list
    forbidden = found.holds_unless - impossible_on(topology)
    return Part(
        "messages",
        found.seconds,
        "messages",
        found.reason,
        forbidden | unequal,
        steps,
    )


def _of_bytes(
    topology: Topology,
    collective: Collective,
    gradient_bytes: float,
    ready: NDArray[np.float64],
    trees: bool,
) -> Iterator[Part]:
    """Parts for bytes: cuts and ports, what the last server adds, and the linear program."""
    whole, never = collective == "all_reduce", impossible_on(topology)
    best = throughput(topology, collective, overlap=whole)
    overhead, latency = float(topology.overhead_s.min()), _least_latency(topology)
    held = overhead if whole else max(overhead, overhead * _messages_in_sequence(topology, best))
    bytes_s, besides_s = best.seconds(gradient_bytes), held + latency
    alike = has_equal_links(topology) and has_equal_ports(topology)

    def reason(name: Name) -> str:
        text = best.reason(name)
        if bytes_s > besides_s:
            return text
        return f"{text}, and messages take {format_seconds(besides_s)} on top of their bytes"

    yield Part(
        "bytes",
        bytes_s + besides_s,
        "bandwidth" if bytes_s > besides_s else "latency",
        reason,
        best.holds_unless - never,
        lambda: [bottleneck_step(topology, collective, one) for one in best.bottlenecks],
    )
    if whole and ready.any():
        yield _after_the_last(topology, ready, gradient_bytes, overhead + latency)
    # If servers and links are alike, the cuts and ports give nearly the same bound in less time.
    # On very large networks, so do the cuts around groups.
    alike |= topology.num_nodes > MAX_FLOW_NODES and bool(nested_groups(topology))
    if whole and trees and (ready.any() or not alike):
        least = least_seconds(topology, gradient_bytes, ready_at_s=ready)
        yield Part(
            "bytes",
            least.bandwidth_s,
            "bandwidth",
            lambda _: str(least.duals),
            least.holds_unless - never,
            lambda: [priced_step(least.duals)],
        )


def _over_a_root(topology: Topology, collective: Collective, trees: bool) -> Iterator[Part]:
    """Sums to a root and copies from there, if each part is summed at one server.

    Its time is 0 here: a search that took it for its target would stop at trees, although partners
    that exchange sums may be faster.
    """
    if (trees or collective != "all_reduce") and topology.num_servers <= MAX_ROOTS:
        steps = [{"kind": "root", "stage": collective}]
        yield Part("root", 0.0, "latency", lambda _: "", prove=lambda: steps)


def _farthest(
    topology: Topology,
    collective: Collective,
    ready: NDArray[np.float64],
    every_root: bool,
    roots: NDArray[np.int64] | None,
) -> float:
    """[s] until each contribution has reached every server, or a stage's roots.

    Args:
        topology: the network.
        collective: a stage, or both.
        ready: [N] when each server is ready.
        every_root: whether each server is a root.
        roots: ranks of the roots, if not; None for the root with the smallest bound.
    """
    overhead, last = float(topology.overhead_s.min()), float(ready.max(initial=0.0))
    gathering = collective == "all_gather" and not every_root
    least = latencies(topology, topology.opposite if gathering else None)
    if gathering:  # from each root to the measured servers
        farthest = least.max(axis=0) + ready
    else:
        farthest = np.maximum((least + ready[measured(topology), None]).max(axis=0), last)
    if every_root:
        return overhead + float(farthest.max())
    return overhead + float(farthest.min() if roots is None else farthest[roots].max())


def _last_byte(topology: Topology, ready: NDArray[np.float64], gradient_bytes: float) -> Part:
    """When a server's last byte has left it and reached all other servers.

    The steps of the distance prove it as well.
    """
    model, out = MessageTimes.of(topology), topology.bandwidth_bytes_per_s
    rate = np.bincount(topology.source, out, topology.num_nodes)[topology.servers]
    left = ready + model.overhead[0] + gradient_bytes / rate
    there = left[:, None] + model.distance
    server = int(there.max(axis=1).argmax())
    bytes_s = gradient_bytes / float(rate[server])
    way_s = float(there[server].max()) - bytes_s
    text = (
        f"{format_size(gradient_bytes)} must leave "
        f"{topology.node_name(int(topology.servers[server]))} at "
        f"{format_bandwidth(float(rate[server]))}"
    )
    if way_s > WORTH_SAYING * bytes_s:
        text += f", and the last byte needs {format_seconds(way_s)} more to the farthest server"
    kind = "bandwidth" if bytes_s > way_s else "latency"
    return Part("last byte", float(there.max()) * (1 - ROUNDING), kind, lambda _: text)


def _after_the_last(
    topology: Topology, ready: NDArray[np.float64], gradient_bytes: float, besides_s: float
) -> Part:
    """The bytes that must cross links after the last server has become ready.

    As many bytes as the gradient has must leave that server and enter every other server after it
    is ready, because every result depends on its contribution, in whatever order sums are formed.
    """
    ends = (topology.source, topology.target)
    out, into = (np.bincount(end, topology.bandwidth_bytes_per_s)[topology.servers] for end in ends)
    last = int(np.argmax(ready))
    rate = np.where(np.arange(len(into)) == last, out, into)
    narrowest = int(np.argmin(rate))
    into[last] = np.inf
    steps: list[Step] = [
        {
            "kind": "cut",
            "stage": "all_reduce",
            "servers": [int(topology.servers[rank])],
            "switches": [],
            "leaving": rank == last,
        }
        for rank in (last, int(np.argmin(into)))
    ]
    name = topology.node_name(int(topology.servers[narrowest]))
    way = "out of" if narrowest == last else "into"
    text = f"once all servers are ready, the whole gradient crosses the links {way} {name}"
    after_s = float(ready[last] + gradient_bytes / rate[narrowest]) + besides_s
    return Part("bytes", after_s, "bandwidth", lambda _: text, prove=lambda: steps)


def _least_latency(topology: Topology) -> float:
    """Minimum latency of a message: the smallest among the links that leave servers."""
    return float(topology.latency_s[topology.is_server[topology.source]].min())


def _messages_in_sequence(topology: Topology, stage: Throughput) -> float:
    """How many messages follow each other over a link of the bottleneck, evenly divided.

    Each piece of the bottleneck is a separate message, since each has its own root. While a message
    holds a link, it takes at least the bandwidth of the network's slowest transfer.
    """
    (bottleneck,) = stage.bottlenecks
    at_once = float(bottleneck.bandwidth_bytes_per_s) / slowest(topology)
    return bottleneck.pieces / at_once
