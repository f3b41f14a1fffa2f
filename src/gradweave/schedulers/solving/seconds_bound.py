"""A lower bound on the time of an all-reduce, and how a schedule's time compares."""

import dataclasses
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gradweave.bounds import Throughput, latency_bound, least_seconds, throughput
from gradweave.bounds.classes import (
    OTHER_ROOTS,
    SWITCHES_ADD,
    UNEQUAL_PARTS,
    class_of,
    impossible_on,
)
from gradweave.bounds.demands.demand_bound import WORTH_SAYING
from gradweave.bounds.scale import has_equal_links, has_equal_ports
from gradweave.bounds.seconds.latency import MAX_DISTANCES, Messages, slowest
from gradweave.bounds.seconds.least_seconds import latencies, measured
from gradweave.bounds.seconds.throughput import MAX_FLOW_NODES
from gradweave.schedules.ready import ReadyAt, planned_ready_times, ready_times
from gradweave.schedules.schedule import REDUCE, Collective, Schedule
from gradweave.simulator import seconds
from gradweave.topology.groups import nested_groups
from gradweave.topology.topology import Topology
from gradweave.topology.units import ROUNDING, format_bandwidth, format_seconds, format_size

MAX_TIMED = 512
"""Most nodes for which `solve` computes the time bound too: about a second of max-flows."""


@dataclasses.dataclass(frozen=True)
class SecondsBound:
    """A lower bound on time in every model of `gradweave.simulator.seconds`, and its reason.

    `holds_unless` names the liberties that a schedule must not take for the largest part to hold.
    """

    latency_s: float
    """Largest latency between two servers, counted from when the first is ready, plus one message's
    overhead: a contribution must travel that far."""
    bandwidth_s: float
    """Time that the gradient's bytes need to cross the tightest cut, or all servers' ports,
    including the overhead of their messages and the minimum latency after the last message."""
    reason: str
    """The bandwidth limit in words; empty if nothing is known."""
    messages_s: float = 0.0
    """Time of messages with negligible bytes: `gradweave.bounds.latency_bound`."""
    messages_reason: str = ""
    """The limit on those messages, in words."""
    last_byte_s: float = 0.0
    """Time at which the last byte of a server's gradient has left over all its links and reached
    the farthest other server, in an all-reduce."""
    last_byte_reason: str = ""
    """The server with that last byte, and its bandwidth."""
    last_byte_kind: Literal["latency", "bandwidth"] = "latency"
    """The longer of its two parts: the path's latency or the bytes' transmission."""
    bandwidth_kind: Literal["latency", "bandwidth"] = "bandwidth"
    """``bandwidth`` if the bytes take longer than the latencies and overheads of their messages."""
    bandwidth_unless: frozenset[str] = frozenset()
    """Liberties that a schedule must not take for `bandwidth_s` to hold."""
    messages_unless: frozenset[str] = frozenset()
    """Liberties that a schedule must not take for `messages_s` to hold."""
    latency_unless: frozenset[str] = frozenset()
    """Liberties that a schedule must not take for `latency_s` to hold."""

    @property
    def seconds(self) -> float:
        """The largest part. The sum would be no bound: bytes cross links while others travel."""
        return max(self.latency_s, self.last_byte_s, self.messages_s, self.bandwidth_s)

    def later(self, start_s: float) -> "SecondsBound":
        """The bound if nothing is sent before `start_s`."""
        if start_s == 0.0:
            return self
        later = {
            name: getattr(self, name) + start_s
            for name in ("latency_s", "last_byte_s", "bandwidth_s", "messages_s")
        }
        return dataclasses.replace(self, **later)

    @property
    def kind(self) -> str:
        """``latency``, ``messages`` or ``bandwidth``, depending on the largest part."""
        return self._largest[0]

    @property
    def holds_unless(self) -> frozenset[str]:
        """Liberties that a schedule must not take for the largest part to hold."""
        return self._largest[2]

    @property
    def why(self) -> str:
        """The limit in words."""
        return self._largest[1]

    @property
    def holds_for(self) -> str:
        """The schedules that the bound holds for, as a phrase; empty if it holds for all."""
        return class_of(self.holds_unless)

    @property
    def _largest(self) -> tuple[str, str, frozenset[str]]:
        """Kind, reason and forbidden liberties of the largest part; ties go to the widest class."""
        far = "a message needs that long to the farthest server"
        last_byte = self.last_byte_kind, self.last_byte_reason, frozenset[str]()
        parts = (
            (self.latency_s, "latency", far, self.latency_unless),
            (self.last_byte_s, *last_byte),
            (self.messages_s, "messages", self.messages_reason, self.messages_unless),
            (self.bandwidth_s, self.bandwidth_kind, self.reason, self.bandwidth_unless),
        )
        least = self.seconds * (1 - ROUNDING)
        near = [(len(unless), *rest, unless) for taken, *rest, unless in parts if taken >= least]
        _, kind, why, unless = min(near, key=lambda one: one[0])
        return kind, why, unless

    def __str__(self) -> str:
        least = f"at least {format_seconds(self.seconds)} ({self.kind})"
        return f"{least}{self.holds_for}, since {self.why}"


@dataclasses.dataclass(frozen=True)
class Timing:
    """A schedule's time for a gradient size, and the lower bound."""

    gradient_bytes: float
    seconds: float
    """Without barriers, as executors run: ``simulator.seconds(…, model="events")``."""
    barrier_seconds: float
    """With a barrier after each round: ``model="rounds"``."""
    bound: SecondsBound

    @property
    def gap(self) -> float:
        """How far the time may be from the optimum: seconds over the bound, minus one."""
        least = self.bound.seconds
        return max(0.0, self.seconds / least - 1) if least > 0 else 0.0

    @property
    def optimal(self) -> bool:
        """Whether the time equals the bound, up to rounding."""
        return self.gap < ROUNDING


def timing_of(
    schedule: Schedule, gradient_bytes: float, ready_at_s: ReadyAt | None = None
) -> Timing:
    """A schedule's time, and the lower bound on its network.

    Args:
        schedule: a valid schedule.
        gradient_bytes: size of the whole gradient.
        ready_at_s: [N] seconds at which each server is ready, in order of id; if not
            given, the times that the schedule was planned for.
    """
    topology = schedule.topology
    ready_at_s = planned_ready_times(schedule) if ready_at_s is None else ready_at_s
    rooted = np.bincount(topology.rank[schedule.root], schedule.share, topology.num_servers)
    own = schedule.source == schedule.root[schedule.piece]
    bound = seconds_bound(
        topology,
        schedule.collective,
        gradient_bytes,
        equal_roots=bool(np.ptp(rooted) < ROUNDING),
        roots=np.flatnonzero(rooted),
        trees=not (own & (schedule.op == REDUCE)).any(),
        aggregating_switches=bool(schedule.scheduler.options.get("aggregating_switches")),
        ready_at_s=ready_at_s,
    )
    events, barriers = (
        seconds(schedule, gradient_bytes, model, ready_at_s=ready_at_s)
        for model in ("events", "rounds")
    )
    return Timing(gradient_bytes, events, barriers, bound)


def seconds_bound(
    topology: Topology,
    collective: Collective,
    gradient_bytes: float,
    *,
    equal_roots: bool = True,
    roots: NDArray[np.int64] | None = None,
    trees: bool = True,
    aggregating_switches: bool = False,
    ready_at_s: ReadyAt | None = None,
) -> SecondsBound:
    """A lower bound on a collective's time, whatever its trees, pieces and overlap.

    It is the largest of four parts. Latency: the contribution of each server must reach every other
    (in a single stage: every root), and no path is shorter than the shortest. Last byte: in an
    all-reduce, all of a server's bytes must have left it before the last of them travels that path.
    Messages: what one server knows reaches others in messages that hold links for their overhead,
    as in the LogP model, and a sum is sent on only once it is complete, or exchanged with few
    servers at a time (`gradweave.bounds.latency_bound`). Bandwidth: the whole gradient leaves every
    set of servers, and each byte enters servers 2(N−1) times in an all-reduce
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
    overhead = float(topology.overhead_s.min())
    ready = ready_times(topology, ready_at_s)
    last_ready = ready.max(initial=0.0)
    every_root = equal_roots or collective == "all_reduce"
    unequal = {UNEQUAL_PARTS} if collective != "all_reduce" else set()
    known = {OTHER_ROOTS} if roots is not None and not every_root else set()
    parts: dict[str, Any] = {
        "latency_s": _farthest(topology, collective, ready, every_root, roots),
        "latency_unless": frozenset(unequal if every_root else known),
    }
    if aggregating_switches:
        return SecondsBound(bandwidth_s=0.0, reason="", **parts)
    if collective == "all_reduce":
        parts |= _last_byte(topology, ready, gradient_bytes)
    messages = latency_bound(topology, collective, every_root=every_root)
    never = impossible_on(topology)
    forbidden = {SWITCHES_ADD} - never if messages.kind != "distance" else set()
    parts |= {
        "messages_s": messages.seconds,
        "messages_reason": messages.reason(topology.id_name),
        "messages_unless": frozenset(forbidden | (unequal if every_root else set())),
    }
    if not every_root:
        return SecondsBound(bandwidth_s=0.0, reason="", **parts)
    best = throughput(topology, collective, overlap=collective == "all_reduce")
    held = overhead
    if collective != "all_reduce":
        held = max(held, overhead * _messages_in_sequence(topology, best))
    bytes_s, besides_s = best.seconds(gradient_bytes), held + _least_latency(topology)
    crossing, kind = bytes_s + besides_s, "bandwidth" if bytes_s > besides_s else "latency"
    reason, forbidden = best.reason(topology.id_name), best.holds_unless
    if kind == "latency":
        reason += f", and messages take {format_seconds(besides_s)} on top of their bytes"
    if collective == "all_reduce" and last_ready:
        after, said = _after_the_last(topology, ready, gradient_bytes)
        after += overhead + _least_latency(topology)
        if after >= crossing:
            crossing, kind, reason, forbidden = after, "bandwidth", said, frozenset()
    # # If servers and links are alike, the cuts and ports give nearly the same bound in less time.
    # # On very large networks, so do the cuts around groups.
    alike = has_equal_links(topology) and has_equal_ports(topology)
    alike |= topology.num_nodes > MAX_FLOW_NODES and bool(nested_groups(topology))
    if collective == "all_reduce" and trees and (last_ready or not alike):
        least = least_seconds(topology, gradient_bytes, ready_at_s=ready)
        if least.bandwidth_s > crossing:
            crossing, kind, reason = least.bandwidth_s, "bandwidth", str(least.duals)
            forbidden = least.holds_unless
    forbidden = frozenset(forbidden) - never
    parts |= {"bandwidth_kind": kind, "bandwidth_unless": forbidden}
    return SecondsBound(bandwidth_s=crossing, reason=reason, **parts)


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


def _last_byte(
    topology: Topology, ready: NDArray[np.float64], gradient_bytes: float
) -> dict[str, Any]:
    """When a server's last byte has left it and reached all other servers, and the reason."""
    if topology.num_servers > MAX_DISTANCES:
        return {}
    model, out = Messages.of(topology), topology.bandwidth_bytes_per_s
    rate = np.bincount(topology.source, out, topology.num_nodes)[topology.servers]
    left = ready + model.overhead[0] + gradient_bytes / rate
    there = left[:, None] + model.distance
    server = int(there.max(axis=1).argmax())
    bytes_s = gradient_bytes / float(rate[server])
    way_s = float(there[server].max()) - bytes_s
    reason = (
        f"{format_size(gradient_bytes)} must leave "
        f"{topology.node_name(int(topology.servers[server]))} at "
        f"{format_bandwidth(float(rate[server]))}"
    )
    if way_s > WORTH_SAYING * bytes_s:
        reason += f", and the last byte needs {format_seconds(way_s)} more to the farthest server"
    return {
        "last_byte_s": float(there.max()) * (1 - ROUNDING),
        "last_byte_reason": reason,
        "last_byte_kind": "bandwidth" if bytes_s > way_s else "latency",
    }


def _after_the_last(
    topology: Topology, ready: NDArray[np.float64], gradient_bytes: float
) -> tuple[float, str]:
    """A lower bound in seconds by the last server to become ready, and its reason.

    As many bytes as the gradient has must leave that server and enter every other server after it
    is ready, because every result depends on its contribution, in whatever order sums are formed.
    """
    ends = (topology.source, topology.target)
    out, into = (np.bincount(end, topology.bandwidth_bytes_per_s)[topology.servers] for end in ends)
    last = int(np.argmax(ready))
    into[last] = out[last]
    narrowest = int(np.argmin(into))
    name = topology.node_name(int(topology.servers[narrowest]))
    way = "out of" if narrowest == last else "into"
    seconds = float(ready[last] + gradient_bytes / into[narrowest])
    return seconds, f"once all servers are ready, the whole gradient crosses the links {way} {name}"


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
