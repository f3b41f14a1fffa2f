"""Lower bounds for demands of any kind, proved by link lengths."""

import dataclasses
import functools
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from gradweave.bounds.bound import Name
from gradweave.bounds.classes import (
    ROUTES_PASS_SERVERS,
    SUMS_MEET_ANYWHERE,
    SWITCHES_ADD,
    impossible_on,
)
from gradweave.bounds.demands.arborescence_kernel import least_arborescence
from gradweave.bounds.demands.link_lengths import (
    checked_integers,
    given_lengths,
    in_small_integers,
    strongest,
)
from gradweave.bounds.demands.link_windows import FEMTOSECONDS, NEVER, least_idle
from gradweave.bounds.demands.pipelines import pipeline_bound
from gradweave.bounds.distances import node_distances
from gradweave.bounds.seconds.latency import LatencyBound, message_times, reach_of
from gradweave.bounds.seconds_bound import WORTH_SAYING, Part, SecondsBound
from gradweave.bounds.steps import Step, far_message, reach_step, reached
from gradweave.errors import OptionError
from gradweave.schedules.demand import LET_RELAY, Demand
from gradweave.schedules.schedule import DEMAND
from gradweave.topology.topology import Floats, Integers, Topology
from gradweave.topology.units import format_bandwidth, format_seconds, format_size

FAR = 1 << 60
"""Length that stands for an unreachable target."""


@dataclasses.dataclass(frozen=True, eq=False)
class DemandLengths:
    """Link lengths that prove a lower bound on a demand's time.

    Every byte that crosses a link uses the link's length. Each block uses at least its bytes times
    the minimum length of whatever must carry it: a path for one contributor and one destination; a
    tree from the contributor to all destinations, or from all contributors to the destination; or
    one tree to some server and a second tree from there. Per second, all links offer their
    bandwidths times their lengths, less the time before bytes can have reached a link and the time
    they still need after it (`link_windows.least_idle`). Any lengths prove a valid bound, however
    they were found.

    The bound holds for schedules built from trees: if a block has several contributors and several
    destinations, all contributions are added somewhere before the sum is copied. Messages end at
    the first server of their route.
    """

    topology: Topology
    demand: Demand
    length: Integers
    """[L] of each link direction, at least 0, at most `link_lengths.MAX_LENGTH`."""

    def __post_init__(self) -> None:
        length = checked_integers(self.topology, self.length)
        self.demand.check_servers(self.topology)
        object.__setattr__(self, "length", length)

    @functools.cached_property
    def used_by_job(self) -> tuple[int, ...]:
        """[jobs] minimum sum over each job's blocks of bytes times length; exact."""
        there = set(self.demand.job.tolist())
        jobs = range(len(self.demand.jobs))
        return tuple(_used_by(self, job) if job in there else 0 for job in jobs)

    @functools.cached_property
    def holds_unless(self) -> frozenset[str]:
        """Liberties that void the bound if a schedule takes one; see `gradweave.bounds.classes`."""
        sets = self.demand.contributors.sizes, self.demand.destinations.sizes
        several = bool(((sets[0] > 1) & (sets[1] > 1)).any())
        unless = {SWITCHES_ADD, ROUTES_PASS_SERVERS, *[SUMS_MEET_ANYWHERE] * several}
        return frozenset(unless) - impossible_on(self.topology)

    @property
    def used(self) -> int:
        """The sum of `used_by_job` over all jobs."""
        return sum(self.used_by_job)

    @functools.cached_property
    def offered(self) -> Fraction:
        """Bandwidth times length of all link directions; exact."""
        return self._offered_by(np.flatnonzero(self.length))

    @functools.cached_property
    def seconds(self) -> Fraction:
        """Minimum duration of the demand in seconds; exact.

        It is the smallest T for which all links together offer what is used, each link for T less
        the time for which it must be idle.
        """
        idle = least_idle(self.topology, self.demand)
        links = np.flatnonzero((self.length > 0) & (idle != NEVER))
        order = links[np.argsort(idle[links], kind="stable")]
        offered, seconds, unused = Fraction(0), Fraction(0), Fraction(self.used)
        for alike in np.split(order, np.flatnonzero(np.diff(idle[order])) + 1):
            since = Fraction(int(idle[alike[0]]) if len(alike) else 0, FEMTOSECONDS)
            if offered and seconds <= since:
                break
            rate = self._offered_by(alike)
            offered, unused = offered + rate, unused + rate * since
            seconds = unused / offered if offered else seconds
        return seconds if self.used else Fraction(0)

    def _offered_by(self, links: NDArray[np.int64]) -> Fraction:
        """Bandwidth times length of some link directions."""
        values, kind = np.unique(self.topology.bandwidth_bytes_per_s[links], return_inverse=True)
        length = self.length[links].astype(object)
        pairs = ((value, length[kind == k].sum()) for k, value in enumerate(values.tolist()))
        return sum((Fraction(value) * int(total) for value, total in pairs), Fraction(0))

    def reason(self, name: Name = str) -> str:
        """The certificate in words.

        Args:
            name: (node id) -> display name.
        """
        besides = float(self.seconds - self.used / self.offered) if self.offered else 0.0
        if besides <= WORTH_SAYING * self.seconds:
            return self._of_bytes(name)
        return (
            f"{self._of_bytes(name)}, and messages take {format_seconds(besides)} on top of their "
            "bytes"
        )

    def _of_bytes(self, name: Name) -> str:
        topology, links = self.topology, np.flatnonzero(self.length)
        if self.length.max() == 1:
            amount, rate = format_size(self.used), format_bandwidth(float(self.offered))
            for ends, verb in ((topology.source, "leave"), (topology.target, "enter")):
                node = int(ends[links[0]])
                if topology.is_server[node] and np.array_equal(links, np.flatnonzero(ends == node)):
                    return f"{amount} must {verb} server {name(node)} at {rate}"
            return f"{amount} must cross {len(links)} link directions, which carry {rate} together"
        return (
            f"with lengths up to {self.length.max():,} on {len(links)} link directions, the bytes "
            f"use {float(self.used):.4g}, and the links offer {float(self.offered):.4g} per second"
        )

    def __str__(self) -> str:
        return self.reason()


def demand_bound(
    topology: Topology, demand: Demand, *, lengths: Floats | None = None
) -> SecondsBound:
    """The minimum time of a demand, by the strongest of several certificates.

    The candidates are the ports of the servers that send or receive most, equal lengths, and the
    given lengths in small integers. `gradweave.schedulers.flows` finds lengths that are close to
    the best possible. If jobs become ready one after the other, the later jobs are also bounded
    separately.

    Args:
        topology: the network.
        demand: the blocks to sum and move.
        lengths: [L] of link directions, at least 0, in any unit.

    Raises:
        OptionError: for a server that the network lacks or cannot reach, or invalid lengths.

    >>> import gradweave as gw
    >>> whole = gw.schedules.collective("broadcast", range(4), 10**9, root=0)
    >>> round(demand_bound(gw.topology.ring(4), whole).seconds, 4)
    0.0403
    """
    demand.check_servers(topology)
    given = None if lengths is None else given_lengths(topology, lengths)
    found = []
    for since in np.unique(demand.ready_at_s).tolist():
        late = np.flatnonzero(demand.ready_at_s >= since)
        alone = demand if len(late) == len(demand.jobs) else demand.of_jobs(late.tolist())
        tried = [*_ports(topology, alone), _in_integers(topology, alone, _inverse(topology))]
        if given is not None and given.any():
            tried.append(_in_integers(topology, alone, given))
        near = strongest(tried, _seconds)
        parts = tuple(_parts(topology, demand, near, since))
        claim = {"unit": "seconds", "collective": DEMAND}
        found.append(SecondsBound(topology, demand, parts, claim, since, near))
    return max(found, key=lambda one: one.seconds)


def _parts(
    topology: Topology, demand: Demand, lengths: DemandLengths, since_s: float
) -> Iterator[Part]:
    """The arguments for the jobs of a demand that are ready from some time on.

    Args:
        topology: the network.
        demand: all jobs, to which the steps of certificates belong.
        lengths: the strongest lengths for these jobs.
        since_s: seconds before which none of these jobs is ready.
    """
    alone, never = lengths.demand, impossible_on(topology)
    when = f" from {format_seconds(since_s)} on" if since_s else ""
    far_s, (a, b) = _farthest(topology, alone)
    yield Part(
        "distance",
        far_s,
        "latency",
        lambda name: (
            f"from server {name(a)} to server {name(b)} it takes {format_seconds(far_s)}{when}"
        ),
        prove=lambda: _distance_steps(topology, demand, a, b),
    )
    rooted = _rooted(topology, alone)
    ports = (reach_of(topology, root, size, gathering=back) for root, size, back in rooted)
    messages = max(filter(None, ports), key=lambda one: one.seconds, default=None)
    if messages is not None:
        yield Part(
            "messages",
            messages.seconds,
            "messages",
            lambda name: f"{messages.reason(name)}{when}",
            messages.holds_unless - never,
            lambda: _message_steps(topology, demand, messages),
        )
    yield Part(
        "bytes",
        float(lengths.seconds),
        "bandwidth",
        lambda name: f"{lengths.reason(name)}{when}",
        lengths.holds_unless,
        lambda: [{"kind": "lengths", "stage": DEMAND, "lengths": lengths.length.tolist()}],
        {"since_s": str(Fraction(since_s))} if since_s else {},
    )
    pipes = (pipeline_bound(topology, size, root, towards=to) for root, size, to in rooted)
    pipeline = max(filter(None, pipes), key=lambda one: one.seconds, default=None)
    if pipeline is not None:
        yield Part(
            "pipeline",
            pipeline.seconds,
            "bandwidth",
            lambda name: f"{pipeline.reason(name)}{when}",
            frozenset({ROUTES_PASS_SERVERS, SWITCHES_ADD}) - never,
        )


def _distance_steps(topology: Topology, demand: Demand, source: int, target: int) -> list[Step]:
    """Steps for the last block to be ready of those from one server to another."""
    given, wanted = demand.contributors, demand.destinations
    blocks = [b for b in range(len(demand)) if source in given[b] and target in wanted[b]]
    block = max(blocks, key=lambda b: float(demand.ready_at_s[demand.job[b]]))
    far = far_message(topology, source, target)
    steps = [reach_step(DEMAND, source, block)]
    return steps + ([reach_step(DEMAND, source, block, **far)] if far else [])


def _message_steps(topology: Topology, demand: Demand, bound: LatencyBound) -> list[Step]:
    """Steps for the largest block from a server to all others, or from all others to it."""
    (server,), leaving = bound.servers, bound.kind == "reach"
    one, others = demand.contributors, demand.destinations
    if not leaving:
        one, others = others, one
    blocks = [
        b
        for b in np.flatnonzero(
            (one.sizes == 1) & (others.sizes >= topology.num_servers - 1)
        ).tolist()
        if one[b][0] == server and len(np.union1d(one[b], others[b])) == topology.num_servers
    ]
    found = reached(topology, int(topology.rank[server]), bound)
    return [
        reach_step(DEMAND, server, block, leaving=leaving, **found)
        for block in sorted(blocks, key=lambda b: int(demand.bytes[b]))[-1:]
    ]


def _inverse(topology: Topology) -> NDArray[np.float64]:
    return 1 / topology.bandwidth_bytes_per_s.astype(np.float64)


def _ports(topology: Topology, demand: Demand) -> list[DemandLengths]:
    """Lengths of 1 on the links of the busiest sender, and on those of the busiest receiver."""
    found, bandwidth = [], topology.bandwidth_bytes_per_s
    idle_s = np.maximum(least_idle(topology, demand), 0) / FEMTOSECONDS
    for ends, needs in ((topology.source, True), (topology.target, False)):
        moved = _must_pass(demand, leaving=needs, nodes=topology.num_nodes)
        order = np.lexsort((idle_s, ends))
        first = np.flatnonzero(np.diff(ends[order], prepend=-1))
        rate, unused = (
            _sums_within(each[order], first) for each in (bandwidth, bandwidth * idle_s)
        )
        since = (moved[ends[order]] + unused) / np.maximum(rate, 1e-300)
        nodes = ends[order][first]
        busiest = int(nodes[np.argmax(np.minimum.reduceat(since, first) * (moved[nodes] > 0))])
        found.append(DemandLengths(topology, demand, (ends == busiest).astype(np.int64)))
    return found


def _sums_within(values: Floats, first: Integers) -> NDArray[np.float64]:
    """Running sums of values within groups that begin at the given places."""
    total = np.cumsum(values.astype(np.float64))
    before = np.append(0.0, total)[first]
    return total - np.repeat(before, np.diff(np.append(first, len(values))))


def _must_pass(demand: Demand, *, leaving: bool, nodes: int) -> NDArray[np.float64]:
    """[V] bytes that must leave each server, or enter it, over the blocks that others want."""
    inner, outer = demand.contributors, demand.destinations
    if not leaving:
        inner, outer = outer, inner
    others = outer.sizes[inner.owner] > 1
    alone = ~others & (outer.servers[outer.offsets[inner.owner]] != inner.servers)
    counts = others | alone
    size = demand.bytes[inner.owner[counts]]
    return np.bincount(inner.servers[counts], size, nodes).astype(np.float64)


def _in_integers(topology: Topology, demand: Demand, length: Floats) -> DemandLengths:
    """Lengths in integers that are as small as possible without losing much of the bound."""
    servers, nodes = topology.servers, topology.num_nodes
    ends = topology.source.astype(np.int64), topology.target.astype(np.int64)
    apart = node_distances(servers, np.asarray(length, np.float64), ends, nodes)[servers]
    farthest = float(apart[np.isfinite(apart)].max())
    certificate = functools.partial(DemandLengths, topology, demand)
    return in_small_integers(length, farthest, certificate, _seconds)


def _seconds(lengths: DemandLengths) -> Fraction:
    return lengths.seconds


def _used_by(lengths: DemandLengths, job: int) -> int:
    """Minimum use of length by a job's blocks."""
    demand, topology = lengths.demand, lengths.topology
    allowed = np.union1d(demand.servers_of(job), demand.relays).astype(np.int64)
    least = _Least(topology, allowed, lengths.length)
    place = np.full(topology.num_nodes, -1)
    place[allowed] = np.arange(len(allowed))
    known: dict[tuple[bytes, bytes], int] = {}
    total = 0
    for block in np.flatnonzero(demand.job == job).tolist():
        sets = demand.contributors[block], demand.destinations[block]
        key = sets[0].tobytes(), sets[1].tobytes()
        if key not in known:
            known[key] = least.length(place[sets[0]], place[sets[1]])
        total += int(demand.bytes[block]) * known[key]
    return total


class _Least:
    """Minimum lengths of paths and trees among servers that may relay.

    Args:
        topology: the network.
        servers: [R] node ids, ascending.
        length: [L] of link directions, integers.
    """

    def __init__(self, topology: Topology, servers: Integers, length: Integers) -> None:
        nodes, ends = topology.num_nodes, (topology.source, topology.target)
        self._servers, cost = servers, length.astype(np.float64)
        # Every hop that enters a server ends there, at a separate node: no hop passes a server.
        entered = np.where(topology.is_server, np.arange(nodes) + nodes, np.arange(nodes))
        over_switches = ends[0], entered[ends[1]]
        hop = node_distances(entered[servers], cost, over_switches, 2 * nodes)[servers]
        passes = ~topology.is_server
        passes[servers] = True
        cost = np.where(passes[ends[0]] & passes[ends[1]], cost, np.inf)
        path = node_distances(servers, cost, ends, nodes)[servers]
        self._hop, self._path = (
            np.where(np.isfinite(one), one, FAR).astype(np.int64) for one in (hop, path)
        )
        np.fill_diagonal(self._hop, FAR)

    def length(self, given: Integers, wanted: Integers) -> int:
        """The minimum length of a path or tree that carries a block.

        A tree that may leave servers out is at least as long as its longest shortest path.

        Args:
            given: indices of its contributors among `servers`.
            wanted: indices of its destinations.
        """
        everyone, found = len(self._hop), int(self._path[np.ix_(given, wanted)].max())
        if len(given) == 1 and len(np.union1d(given, wanted)) == everyone > 2:
            found = self.tree(int(given[0]), False)
        elif len(wanted) == 1 and len(np.union1d(given, wanted)) == everyone > 2:
            found = self.tree(int(wanted[0]), True)
        elif len(given) == len(wanted) == everyone:
            found = min(self.tree(r, True) + self.tree(r, False) for r in range(everyone))
        if found >= FAR:
            path = self._path[np.ix_(given, wanted)]
            a, b = divmod(int(path.argmax()), len(wanted))
            raise OptionError(
                f"demand: every path from server {self._servers[given[a]]} to server "
                f"{self._servers[wanted[b]]} passes servers that are not in the job; {LET_RELAY}"
            )
        return found

    @functools.cache  # noqa: B019 — one object per bound
    def tree(self, root: int, towards: bool) -> int:
        """Minimum length of a tree that spans all servers, from a root or to it."""
        hop = self._hop.T.copy() if towards else self._hop
        return int(least_arborescence(hop, root, FAR))


def _farthest(topology: Topology, demand: Demand) -> tuple[float, tuple[int, int]]:
    """Longest message time in seconds from a contributor to a destination of a block, and both."""
    away, rank = message_times(topology), topology.rank
    longest, pair = -1.0, (0, 0)
    for block in range(len(demand)):
        given, wanted = demand.contributors[block], demand.destinations[block]
        among = np.where(given[:, None] == wanted, -1.0, away[np.ix_(rank[given], rank[wanted])])
        if among.max() > longest:
            a, b = divmod(int(among.argmax()), len(wanted))
            longest, pair = float(among.max()), (int(given[a]), int(wanted[b]))
    return longest * (1 - 1e-12), pair


def _rooted(topology: Topology, demand: Demand) -> list[tuple[int, int, bool]]:
    """Blocks from one server to all or from all to it: server, bytes, whether they go to it."""
    given, wanted = demand.contributors, demand.destinations
    everyone = topology.num_servers
    return sorted(
        {
            (int(one[block][0]), int(demand.bytes[block]), gathering)
            for one, others, gathering in ((given, wanted, False), (wanted, given, True))
            for block in np.flatnonzero((one.sizes == 1) & (others.sizes >= everyone - 1)).tolist()
            if len(np.union1d(one[block], others[block])) == everyone
        }
    )
