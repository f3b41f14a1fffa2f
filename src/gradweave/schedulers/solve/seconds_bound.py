"""How little time an all-reduce can take, and how a schedule's time compares."""

import dataclasses

import numpy as np
from numpy.typing import NDArray

from gradweave.bounds import LatencyBound, Throughput, latency_bound, least_seconds, throughput
from gradweave.bounds.latency import MAX_DISTANCES, Messages, slowest
from gradweave.bounds.least_seconds import latencies, measured
from gradweave.bounds.scale import has_equal_links, has_equal_ports
from gradweave.bounds.throughput import MAX_FLOW_NODES
from gradweave.schedule.ready import ReadyAt, ready_times
from gradweave.schedule.schedule import REDUCE, Collective, Schedule
from gradweave.simulate import seconds
from gradweave.topology.groups import nested_groups
from gradweave.topology.topology import Topology
from gradweave.topology.units import ROUNDING, format_seconds

MAX_TIMED = 512
"""Nodes up to which a schedule's least time is found along with it: a second or so of flows."""


@dataclasses.dataclass(frozen=True)
class SecondsBound:
    """No schedule takes less time, in any model of `gradweave.simulate.seconds`, and why."""

    latency_s: float
    """Largest latency from a server to another one, since it is ready, and one message's overhead:
    a contribution must travel that far. Of an all-reduce with the time that the gradient's bytes
    need to leave the server."""
    bandwidth_s: float
    """Time that the gradient's bytes need to cross the tightest cut, or all servers' ports, with
    the overhead of the messages that it takes, and the least latency after the last of them."""
    reason: str
    """What limits the bandwidth; empty where nothing is known of it."""
    messages_s: float = 0.0
    """What messages take that have hardly any bytes: `gradweave.bounds.latency_bound`."""
    messages_reason: str = ""
    """What limits those."""

    @property
    def seconds(self) -> float:
        """The largest. Their sum would be no bound: bytes cross while others travel."""
        return max(self.latency_s, self.messages_s, self.bandwidth_s)

    def later(self, start_s: float) -> "SecondsBound":
        """The bound where nothing is sent before some time has passed."""
        if start_s == 0.0:
            return self
        later = {
            name: getattr(self, name) + start_s
            for name in ("latency_s", "bandwidth_s", "messages_s")
        }
        return dataclasses.replace(self, **later)

    @property
    def kind(self) -> str:
        """``latency``, ``messages`` or ``bandwidth``, whichever is largest."""
        if self.latency_s >= self.seconds:
            return "latency"
        return "messages" if self.messages_s >= self.seconds else "bandwidth"

    def __str__(self) -> str:
        why = {
            "latency": "a message needs that long to the farthest server",
            "messages": self.messages_reason,
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
    """The least time for a collective, whatever its trees, pieces and overlap.

    Latency: the contribution of each server must reach every other (of a stage, every root), and no
    path is shorter than the shortest; of an all-reduce all of its bytes must have left it by then.
    Messages: what one server knows reaches others in messages that hold links for their overhead,
    as in the LogP model, and a sum is sent on only once it is complete, or exchanged with few at a
    time (`gradweave.bounds.latency_bound`). Bandwidth: the whole gradient leaves every set of
    servers, and each byte enters servers 2(N−1) times in an all-reduce
    (`gradweave.bounds.throughput`); where links are unequal, also what trees for parts of any size
    can do at best (`gradweave.bounds.least_seconds`).

    Args:
        topology: the network; bandwidths count, capacities do not.
        collective: a stage, or both.
        gradient_bytes: size of the whole gradient.
        equal_roots: whether each server is the root of an equal part; if not, a stage has a bound
            from latency alone.
        roots: ranks of the servers that are the root of something, where not each is of as much;
            whichever one takes least if not given.
        trees: whether each part is summed at its root alone. If not, partners may exchange sums, as
            in recursive doubling, and what holds for trees is left out.
        aggregating_switches: whether switches add; then latency alone bounds the time.
        ready_at_s: [N] seconds at which each server's own gradient is ready, in order of id; 0 if
            not given. What it contributes is sent afterwards.

    """
    overhead = float(topology.overhead_s.min())
    ready = ready_times(topology, ready_at_s)
    last_ready = ready.max(initial=0.0)
    every_root = equal_roots or collective == "all_reduce"
    latency = _farthest(topology, collective, ready, every_root, roots)
    if aggregating_switches:
        return SecondsBound(latency, 0.0, "")
    if collective == "all_reduce":
        latency = max(latency, _last_byte(topology, ready, gradient_bytes))
    messages = latency_bound(topology, collective, every_root=every_root)
    if not every_root:
        return _joined(topology, latency, 0.0, "", messages)
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
    # So do, on very large networks, those of groups.
    alike = has_equal_links(topology) and has_equal_ports(topology)
    alike |= topology.num_nodes > MAX_FLOW_NODES and bool(nested_groups(topology))
    if collective == "all_reduce" and trees and (last_ready or not alike):
        least = least_seconds(topology, gradient_bytes, ready_at_s=ready)
        if least.bandwidth_s > crossing:
            crossing, reason = least.bandwidth_s, str(least.duals)
    return _joined(topology, latency, crossing, reason, messages)


def _joined(
    topology: Topology, latency: float, crossing: float, reason: str, messages: LatencyBound
) -> SecondsBound:
    why = messages.reason(topology.id_name)
    return SecondsBound(latency, crossing, reason, messages.seconds, why)


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
        ready: [N] when each server is.
        every_root: whether each server is a root.
        roots: ranks of the roots, if not; None for whichever takes least.
    """
    overhead, last = float(topology.overhead_s.min()), float(ready.max(initial=0.0))
    gathering = collective == "all_gather" and not every_root
    least = latencies(topology, topology.opposite if gathering else None)
    if gathering:  # from each root to those that are measured
        farthest = least.max(axis=0) + ready
    else:
        farthest = np.maximum((least + ready[measured(topology), None]).max(axis=0), last)
    if every_root:
        return overhead + float(farthest.max())
    return overhead + float(farthest.min() if roots is None else farthest[roots].max())


def _last_byte(topology: Topology, ready: NDArray[np.float64], gradient_bytes: float) -> float:
    """[s] until the last byte that a server contributes has left it and reached all others."""
    if topology.num_servers > MAX_DISTANCES:
        return 0.0
    model, out = Messages.of(topology), topology.bandwidth_bytes_per_s
    rate = np.bincount(topology.source, out, topology.num_nodes)[topology.servers]
    left = ready + model.overhead[0] + gradient_bytes / rate
    return float((left[:, None] + model.distance).max()) * (1 - ROUNDING)


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


def _messages_in_sequence(topology: Topology, stage: Throughput) -> float:
    """How many messages follow each other over a link of the bottleneck, evenly divided.

    Each piece of the bottleneck is a message of its own, since each has its own root; and while a
    message holds a link, it takes at least the slowest transfer's bandwidth of it.
    """
    (bottleneck,) = stage.bottlenecks
    at_once = float(bottleneck.bandwidth_bytes_per_s) / slowest(topology)
    return bottleneck.pieces / at_once
