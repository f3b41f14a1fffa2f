"""How little time an all-reduce can take, and how a schedule's time compares."""

import dataclasses
import heapq

import numpy as np
from numpy.typing import NDArray

from gradweave.bounds import Throughput, least_seconds, throughput
from gradweave.bounds.least_seconds import latencies, measured
from gradweave.schedule.ready import ReadyAt, ready_times
from gradweave.schedule.schedule import REDUCE, Collective, Schedule
from gradweave.simulate import seconds
from gradweave.topology.topology import Topology
from gradweave.topology.units import ROUNDING, format_seconds

MAX_TIMED = 512
"""Nodes up to which a schedule's least time is found along with it: a second or so of flows."""


@dataclasses.dataclass(frozen=True)
class SecondsBound:
    """No schedule takes less time, in any model of `gradweave.simulate.seconds`, and why."""

    latency_s: float
    """Largest latency from a server to another one, since it is ready, and one message's overhead:
    a contribution must travel that far."""
    bandwidth_s: float
    """Time that the gradient's bytes need to cross the tightest cut, or all servers' ports, with
    the overhead of the messages that it takes, and the least latency after the last of them."""
    reason: str
    """What limits the bandwidth; empty where nothing is known of it."""
    messages_s: float = 0.0
    """Time in which messages without bytes can reach all servers from one, or one from all, where
    each holds its sender's and its receiver's links for its overhead."""

    @property
    def seconds(self) -> float:
        """The largest. Their sum would be no bound: bytes cross while others travel."""
        return max(self.latency_s, self.messages_s, self.bandwidth_s)

    @property
    def kind(self) -> str:
        """``latency``, ``messages`` or ``bandwidth``, whichever is largest."""
        if self.latency_s >= self.seconds:
            return "latency"
        return "messages" if self.messages_s >= self.seconds else "bandwidth"

    def __str__(self) -> str:
        why = {
            "latency": "a message needs that long to the farthest server",
            "messages": "messages need that long from one server to all, or back",
            "bandwidth": self.reason,
        }[self.kind]
        return f"at least {format_seconds(self.seconds)} ({self.kind}), since {why}"


@dataclasses.dataclass(frozen=True)
class Timing:
    """A schedule's time for a gradient's size, beside the least possible."""

    gradient_bytes: float
    seconds: float
    """Without barriers, as executors run: ``simulate.seconds(…, model="events")``."""
    barrier_seconds: float
    """With a barrier after each round: ``model="rounds"``."""
    bound: SecondsBound

    @property
    def gap(self) -> float:
        """How far the time may be from the least possible: seconds over the bound, less one."""
        least = self.bound.seconds
        return max(0.0, self.seconds / least - 1) if least > 0 else 0.0

    @property
    def optimal(self) -> bool:
        """Whether the time is the least possible, but for rounding."""
        return self.gap < ROUNDING


def timing_of(
    schedule: Schedule, gradient_bytes: float, ready_at_s: ReadyAt | None = None
) -> Timing:
    """A schedule's time beside the least possible on its network.

    Args:
        schedule: a valid schedule.
        gradient_bytes: size of the whole gradient.
        ready_at_s: [N] seconds at which each server is ready, in order of id; 0 if not given.
    """
    topology = schedule.topology
    rooted = np.bincount(topology.rank[schedule.root], schedule.share, topology.num_servers)
    own = schedule.source == schedule.root[schedule.piece]
    bound = seconds_bound(
        topology,
        schedule.collective,
        gradient_bytes,
        equal_roots=bool(np.ptp(rooted) < ROUNDING),
        trees=not (own & (schedule.op == REDUCE)).any(),
        aggregating_switches=bool(schedule.scheduler.options.get("aggregating_switches")),
        ready_at_s=ready_at_s,
    )
    events, barriers = (
        seconds(schedule, gradient_bytes, model, ready_at_s=ready_at_s)
        for model in ("events", "rounds")
    )
    return Timing(gradient_bytes, events, barriers, bound)


def has_equal_links(topology: Topology) -> bool:
    """Whether all link directions have one bandwidth, so that rounds tell the time."""
    return float(np.ptp(topology.bandwidth_bytes_per_s)) == 0.0


def has_equal_ports(topology: Topology) -> bool:
    """Whether all servers send and receive as many bytes a second, all their links together."""
    ends = (topology.source, topology.target)
    ports = [np.bincount(end, topology.bandwidth_bytes_per_s, topology.num_nodes) for end in ends]
    return all(float(np.ptp(port[topology.servers])) == 0.0 for port in ports)


def seconds_bound(
    topology: Topology,
    collective: Collective,
    gradient_bytes: float,
    *,
    equal_roots: bool = True,
    trees: bool = True,
    aggregating_switches: bool = False,
    ready_at_s: ReadyAt | None = None,
) -> SecondsBound:
    """The least time for a collective, whatever its trees, pieces and overlap.

    Latency: the contribution of each server must reach every other (of a stage, every root), and no
    path is shorter than the shortest. Messages: what one server knows reaches others in messages
    that hold links for their overhead, so that those who know it grow no faster than in the LogP
    model; without overhead a server could receive from all others within one latency, so that no
    number of doublings is needed. Bandwidth: the whole gradient leaves every set of servers, and
    each byte enters servers 2(N−1) times in an all-reduce (`gradweave.bounds.throughput`); where
    links are unequal, also what trees for parts of any size can do at best
    (`gradweave.bounds.least_seconds`).

    Args:
        topology: the network; bandwidths count, capacities do not.
        collective: a stage, or both.
        gradient_bytes: size of the whole gradient.
        equal_roots: whether each server is the root of an equal part; if not, a stage has a bound
            from latency alone.
        trees: whether each part is summed at its root alone. If not, partners may exchange sums, as
            in recursive doubling, and what holds for trees is left out.
        aggregating_switches: whether switches add; then latency alone bounds the time.
        ready_at_s: [N] seconds at which each server's own gradient is ready, in order of id; 0 if
            not given. What it contributes is sent afterwards.

    Source: Karp, Sahay, Santos and Schauser, "Optimal broadcast and summation in the LogP model",
        1993, for the messages.
    """
    overhead = float(topology.overhead_s.min())
    ready = ready_times(topology, ready_at_s)
    last_ready = ready.max(initial=0.0)
    latency = overhead + float(
        max((latencies(topology) + ready[measured(topology), None]).max(), last_ready)
    )
    if aggregating_switches:
        return SecondsBound(latency, 0.0, "")
    messages = _spreading(topology, overhead)
    if collective != "all_reduce" and not equal_roots:
        return SecondsBound(latency, 0.0, "", messages)
    best = throughput(topology, collective, overlap=collective == "all_reduce")
    held = overhead
    if collective != "all_reduce":
        held = max(held, overhead * _messages_in_sequence(topology, best))
    crossing = best.seconds(gradient_bytes) + held + _least_latency(topology)
    reason = best.reason(topology.id_name)
    if collective == "all_reduce" and last_ready:
        after, said = _after_the_last(topology, ready, gradient_bytes)
        after += overhead + _least_latency(topology)
        crossing, reason = max((crossing, reason), (after, said))
    # Where servers and links are alike the cuts and ports say nearly the same, in less time.
    alike = has_equal_links(topology) and has_equal_ports(topology)
    if collective == "all_reduce" and trees and (last_ready or not alike):
        least = least_seconds(topology, gradient_bytes, ready_at_s=ready)
        if least.bandwidth_s > crossing:
            crossing, reason = least.bandwidth_s, str(least.duals)
    return SecondsBound(latency, crossing, reason, messages)


def _after_the_last(
    topology: Topology, ready: NDArray[np.float64], gradient_bytes: float
) -> tuple[float, str]:
    """[s] until the last server's gradient has left it, and reached each other one; and why.

    Whoever adds it to what: results of as many bytes depend on it everywhere.
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
    """Of a message: that of some server's link."""
    return float(topology.latency_s[topology.is_server[topology.source]].min())


def _slowest(topology: Topology) -> float:
    """Bytes per second that a transfer has at least: a share of some link."""
    return float((topology.bandwidth_bytes_per_s / topology.capacity).min())


def _messages_in_sequence(topology: Topology, stage: Throughput) -> float:
    """How many messages follow each other over a link of the bottleneck, evenly divided.

    Each piece of the bottleneck is a message of its own, since each has its own root; and while a
    message holds a link, it takes at least the slowest transfer's bandwidth of it.
    """
    (bottleneck,) = stage.bottlenecks
    at_once = float(bottleneck.bandwidth_bytes_per_s) / _slowest(topology)
    return bottleneck.pieces / at_once


def _spreading(topology: Topology, overhead: float) -> float:
    """[s] until messages can have reached all servers from one, every server sending all the time.

    The k-th message of a server that knows since t arrives at t + latency + overhead · max(1, k/p),
    where p is the number of transfers that the links of a server carry at once, at most. The
    earliest N−1 arrivals are the fastest broadcast. O(N log N).
    """
    latency, count = _least_latency(topology), topology.num_servers
    carried = topology.bandwidth_bytes_per_s / _slowest(topology)
    ports = max(
        float(np.bincount(ends, carried, topology.num_nodes)[topology.servers].max())
        for ends in (topology.source, topology.target)
    )
    time, arrivals = 0.0, [(latency + overhead, 0.0, 1)]
    for _ in range(count - 1):
        time, since, k = heapq.heappop(arrivals)
        follows = since + latency + overhead * max(1.0, (k + 1) / ports)
        heapq.heappush(arrivals, (follows, since, k + 1))
        heapq.heappush(arrivals, (time + latency + overhead, time, 1))
    return time * (1 - ROUNDING)
