"""How little time an all-reduce can take, and how a schedule's time compares."""

import dataclasses

import numpy as np
from numpy.typing import NDArray

from gradweave.bounds import throughput
from gradweave.schedule.schedule import Collective, Schedule
from gradweave.simulate import seconds
from gradweave.topology.topology import Topology

MAX_TIMED = 512
"""Nodes up to which a schedule's least time is found along with it: a second or so of flows."""

_ROUNDING = 1e-9

MAX_STARTS = 64
"""Servers from which distances are measured; fewer than all give a bound that holds all the
same."""


@dataclasses.dataclass(frozen=True)
class SecondsBound:
    """No schedule takes less time, in either model of `gradweave.simulate.seconds`, and why."""

    latency_s: float
    """Largest latency from a server to another one: a contribution must travel that far."""
    bandwidth_s: float
    """Time that the gradient's bytes need to cross the tightest cut, or all servers' ports, and the
    least latency after the last of them."""
    reason: str
    """What limits the bandwidth; empty where nothing is known of it."""

    @property
    def seconds(self) -> float:
        """The larger of the two. Their sum would be no bound: bytes cross while others travel."""
        return max(self.latency_s, self.bandwidth_s)

    @property
    def kind(self) -> str:
        """``latency`` or ``bandwidth``, whichever is larger."""
        return "latency" if self.latency_s >= self.bandwidth_s else "bandwidth"

    def __str__(self) -> str:
        why = self.reason if self.kind == "bandwidth" else "to the farthest server and no byte more"
        return f"at least {1e3 * self.seconds:.4g} ms ({self.kind}): {why}"


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
        return self.gap < _ROUNDING


def timing_of(schedule: Schedule, gradient_bytes: float) -> Timing:
    """A schedule's time beside the least possible on its network.

    Args:
        schedule: a valid schedule.
        gradient_bytes: size of the whole gradient.
    """
    roots = np.unique(schedule.root, return_counts=True)[1]
    bound = seconds_bound(
        schedule.topology,
        schedule.collective,
        gradient_bytes,
        equal_roots=len(roots) == schedule.topology.num_servers and np.ptp(roots) == 0,
        aggregating_switches=bool(schedule.scheduler.options.get("aggregating_switches")),
    )
    events, barriers = (seconds(schedule, gradient_bytes, model) for model in ("events", "rounds"))
    return Timing(gradient_bytes, events, barriers, bound)


def has_equal_links(topology: Topology) -> bool:
    """Whether all link directions have one bandwidth, so that rounds tell the time."""
    return float(np.ptp(topology.bandwidth_bytes_per_s)) == 0.0


def seconds_bound(
    topology: Topology,
    collective: Collective,
    gradient_bytes: float,
    *,
    equal_roots: bool = True,
    aggregating_switches: bool = False,
) -> SecondsBound:
    """The least time for a collective, whatever its trees, pieces and overlap.

    Latency: the contribution of each server must reach every other (of a stage, every root), and no
    way is shorter than the shortest. Bandwidth: the whole gradient leaves every set of servers, and
    each byte enters servers 2(N−1) times in an all-reduce (`gradweave.bounds.throughput`). A term
    in log2 N rounds is left out on purpose: in the event model a server can receive from all others
    within one latency, so that no number of doublings is needed.

    Args:
        topology: the network; bandwidths count, capacities do not.
        collective: a stage, or both.
        gradient_bytes: size of the whole gradient.
        equal_roots: whether each server is the root of an equal part; if not, a stage has a bound
            from latency alone.
        aggregating_switches: whether switches add; then latency alone bounds the time.
    """
    latency = float(_latencies(topology).max())
    if aggregating_switches or (collective != "all_reduce" and not equal_roots):
        return SecondsBound(latency, 0.0, "")
    best = throughput(topology, collective, overlap=collective == "all_reduce")
    least = float(topology.latency_s[topology.is_server[topology.source]].min())
    return SecondsBound(latency, best.seconds(gradient_bytes) + least, str(best))


def _latencies(topology: Topology) -> NDArray[np.float64]:
    """[S, N] least latency from some servers to each server, by any way."""
    count = topology.num_servers
    chosen = topology.servers[np.linspace(0, count - 1, min(count, MAX_STARTS)).astype(np.int64)]
    least = np.full((topology.num_nodes, len(chosen)), np.inf)
    least[chosen, np.arange(len(chosen))] = 0.0
    while True:
        shorter = least.copy()
        np.minimum.at(
            shorter, topology.target, least[topology.source] + topology.latency_s[:, None]
        )
        if (shorter == least).all():
            return least[topology.servers].T
        least = shorter
