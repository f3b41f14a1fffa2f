"""Duals of cuts and links: a proof of a collective's minimum time, in exact fractions."""

import dataclasses
import functools
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from gradweave.bounds.bound import inside_named
from gradweave.bounds.distances import shortened
from gradweave.bounds.flows import nodes_inside
from gradweave.bounds.prices import Prices
from gradweave.common.wording import listed
from gradweave.schedules.schedule import Collective
from gradweave.topology.topology import Topology
from gradweave.topology.units import format_bandwidth, format_seconds

SHOWN = 4
"""Number of boundaries that are named in a sentence."""


_Nodes = tuple[tuple[int, ...], tuple[int, ...]]
"""Servers and switches."""


@dataclasses.dataclass(frozen=True)
class Crossing:
    """A set of nodes whose boundary must be crossed by at least the bytes that are rooted inside.

    In an all-gather, copies of those bytes leave the set, since a server is outside; in a
    reduce-scatter, contributions to them enter.
    """

    stage: Collective
    """``all_gather`` or ``reduce_scatter``."""
    servers: tuple[int, ...]
    """The servers inside."""
    switches: tuple[int, ...]
    """The switches inside."""
    dual: int
    """Shadow price of each byte of gradient that must cross, in any unit."""
    since_s: float = 0.0
    """Seconds before which the bytes cannot cross, since a server is not ready. Bytes that cross
    earlier are not charged."""


@dataclasses.dataclass(frozen=True)
class Toll:
    """A charge on a stage's bytes for leaving a switch, refunded when they enter it.

    A switch sends no more than it receives, so tolls add nothing to the total.
    """

    stage: Collective
    switch: int
    dual: int


@dataclasses.dataclass(frozen=True, eq=False)
class Duals:
    """Shadow prices: every byte of gradient pays at least `paid`, and links charge `charged`.

    The dual of a link direction is the largest over the stages. A stage's dual is the sum over the
    sets whose boundaries the link crosses, plus the tolls of its ends. So all transfers of a
    gradient of M bytes together pay at least M·`paid`, and per second all links charge at most the
    sum of their bandwidths times their duals. Any feasible duals prove a bound, and every number
    here is exact.

    If servers are late, duals rise as the servers become ready. A server's contribution cannot
    enter a set that excludes the server before the server is ready, and no copy is sent before all
    are ready. So a boundary may be charged only for what crosses from then on: a byte that avoids
    the charge by crossing earlier has not carried that contribution (`_paying`).
    """

    topology: Topology
    stages: tuple[Collective, ...]
    """One stage or both."""
    apart: bool
    """Whether a barrier separates the stages, so that each has the links to itself for its time."""
    shares: tuple[Fraction, ...] | None
    """[N] the part of the gradient that each server roots, or None if any split is allowed."""
    crossings: tuple[Crossing, ...]
    tolls: tuple[Toll, ...]
    ready_at_s: tuple[float, ...] = ()
    """[N] seconds at which each server's gradient is ready; empty if all are ready at 0."""

    @functools.cached_property
    def link_duals(self) -> NDArray:
        """[stages, L] the dual of each link direction per byte of each stage; integers.

        These are the duals once all servers are ready.
        """
        return self.link_duals_at(max(self.ready_at_s, default=0.0))

    def link_duals_at(self, time_s: float) -> NDArray:
        """The duals for a byte sent at a given time, when some servers may not be ready.

        They rise with time, since crossings are added and tolls stay the same.
        """
        topology = self.topology
        duals = np.zeros((len(self.stages), len(topology.source)), object)
        for k, stage in enumerate(self.stages):
            if self._cannot_be_sent(stage, time_s):
                continue
            toll = np.zeros(topology.num_nodes, object)
            for one in self.tolls:
                toll[one.switch] += one.dual if one.stage == stage else 0
            duals[k] = toll[topology.source] - toll[topology.target]
            for one in self.crossings:
                if one.stage == stage and one.since_s <= time_s:
                    duals[k, self._crossed(one)] += one.dual
        return np.maximum(duals, 0)

    def _cannot_be_sent(self, stage: Collective, time_s: float) -> bool:
        """Whether a stage cannot have begun: copies of sums that still lack contributions."""
        late = max(self.ready_at_s, default=0.0)
        return stage == "all_gather" and len(self.stages) == 2 and time_s < late

    def _crossed(self, crossing: Crossing) -> NDArray[np.bool_]:
        """[L] the link directions that the crossing's bytes must use."""
        inside = np.zeros(self.topology.num_nodes, bool)
        inside[[*crossing.servers, *crossing.switches]] = True
        start, end = inside[self.topology.source], inside[self.topology.target]
        return start & ~end if crossing.stage == "all_gather" else end & ~start

    @functools.cached_property
    def paid(self) -> Fraction:
        """The minimum payment of a byte of the gradient, wherever it is rooted."""
        paid = np.zeros(self.topology.num_servers, object)
        for crossing in self.crossings:
            paid[self._paying(crossing)] += crossing.dual
        if self.shares is None:
            return Fraction(int(paid.min()))
        return sum((a * int(b) for a, b in zip(self.shares, paid, strict=True)), Fraction(0))

    def _paying(self, crossing: Crossing) -> NDArray[np.int64]:
        """Ranks of the roots inside a crossing's set whose bytes must cross after its start time.

        Sums to a root inside must still cross once a server outside is ready, however late it is;
        copies of sums, once all servers are ready; copies of a root's piece, once the root is.
        """
        inside = self.topology.rank[list(crossing.servers)].astype(np.int64)
        if not crossing.since_s:
            return inside
        ready = np.array(self.ready_at_s)
        if crossing.stage == "reduce_scatter":
            latest = np.delete(ready, inside).max(initial=0.0)
        elif len(self.stages) == 2:
            latest = ready.max()
        else:
            return inside[ready[inside] >= crossing.since_s]
        return inside if latest >= crossing.since_s else inside[:0]

    @functools.cached_property
    def prices(self) -> Prices:
        """The largest dual of each link over the stages, in the windows that release times make."""
        starts = sorted({0.0, *self.ready_at_s})
        duals = [self.link_duals_at(since).max(axis=0) for since in starts]
        return Prices(self.topology, np.array(duals, object), tuple(starts))

    @functools.cached_property
    def charged(self) -> Fraction:
        """The maximum charge of all link directions per second, over duals times bytes.

        This is the rate once all servers are ready.
        """
        if not self.apart:
            return self.prices.offered
        return max(Prices(self.topology, duals[None]).offered for duals in self.link_duals)

    @property
    def seconds_per_byte(self) -> Fraction:
        """Minimum seconds per byte of gradient without latency, if no server is late."""
        return self.paid / self.charged if self.charged else Fraction(0)

    def seconds(self, gradient_bytes: float) -> Fraction:
        """The minimum time for a gradient, including the latency that bytes must wait for.

        A link direction is idle for at least the latency of the shortest route over it: before the
        first byte can have reached it, or while the last byte is still on its way. So in T seconds
        it carries at most its bandwidth times (T less that latency), and the bound is the smallest
        T for which all links can charge what the gradient pays. If duals rise over time, the idle
        time is taken from the start, when they are low.

        Args:
            gradient_bytes: M.
        """
        waits, due = least_latency_over(self.topology), self.paid * Fraction(gradient_bytes)
        if self.apart:
            waiting = Fraction(float(waits.min())) * len(self.stages)
            return due / self.charged + waiting if self.charged and due else Fraction(0)
        return self.prices.time(due, waits)

    def seconds_without_latency(self, gradient_bytes: float) -> Fraction:
        """The minimum time on links without latency; not for late servers with stages apart.

        Args:
            gradient_bytes: M.
        """
        due = self.paid * Fraction(gradient_bytes)
        if self.apart:
            return due / self.charged if self.charged else Fraction(0)
        return self.prices.time(due, np.zeros(len(self.topology.source)))

    def __str__(self) -> str:
        """The boundaries that are charged most, by their smaller sides, and their bandwidth."""
        duals: Counter[_Nodes] = Counter()
        for crossing in self.crossings:
            duals[self._smaller_side(crossing)] += crossing.dual
        if not duals:
            return "links take any speed of gradient"
        rate = format_bandwidth(float(self.charged / self.paid)) if self.paid else "any speed"
        around = self._named([nodes for nodes, _ in duals.most_common()])
        late = max(crossing.since_s for crossing in self.crossings)
        since = f", part of it after {format_seconds(late)}, when late servers are ready"
        text = f"the links around {around} let at most {rate} of gradient past"
        return text + since * bool(late)

    def _smaller_side(self, crossing: Crossing) -> _Nodes:
        """Servers and switches on the smaller side of a boundary."""
        many = 2 * (len(crossing.servers) + len(crossing.switches)) > self.topology.num_nodes
        inside = np.zeros(self.topology.num_nodes, bool)
        inside[[*crossing.servers, *crossing.switches]] = True
        return nodes_inside(self.topology, ~inside if many else inside)

    def _named(self, sets: Sequence[_Nodes]) -> str:
        """Sets of nodes in words."""
        name = self.topology.id_name
        if len(sets) == 1:
            return inside_named(*sets[0], name)
        if all(len(servers) == 1 and not switches for servers, switches in sets):
            servers = listed([name(servers[0]) for servers, _ in sets], SHOWN)
            return f"servers {servers} together"
        return f"{listed([inside_named(*nodes, name) for nodes in sets], SHOWN)} together"


def duals_of_sets(
    topology: Topology,
    stages: tuple[Collective, ...],
    apart: bool,
    shares: tuple[Fraction, ...] | None,
    sets: Sequence[tuple[Collective, NDArray[np.bool_], int, float]],
    tolls: Sequence[tuple[Collective, int, int]] = (),
    ready_at_s: tuple[float, ...] = (),
) -> Duals:
    """Duals from sets of nodes [V], each with its stage, its dual and the start of its charge.

    Sets whose dual is zero are dropped.
    """
    crossings = tuple(
        Crossing(stage, *nodes_inside(topology, inside), dual, since)
        for stage, inside, dual, since in sets
        if dual
    )
    charges = tuple(Toll(*toll) for toll in tolls if toll[2])
    return Duals(topology, stages, apart, shares, crossings, charges, ready_at_s)


@functools.lru_cache(maxsize=4)
def least_latency_over(topology: Topology) -> NDArray[np.float64]:
    """[L] the minimum latency of a route between servers, through switches, over each link.

    No transfer over the link takes less, and none holds the link while its last byte travels.
    """
    source, target, latency = topology.source, topology.target, topology.latency_s
    at_servers = np.where(topology.is_server, 0.0, np.inf)[:, None]
    before = shortened(at_servers.copy(), latency, (target, source))[:, 0]
    after = shortened(at_servers, latency, (source, target))[:, 0]
    return before[source] + latency + after[target]
