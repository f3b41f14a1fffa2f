"""Lower bounds for demands of any kind, proved by link lengths."""

import dataclasses
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from gradweave.bounds.bound import Bound, Distance, best
from gradweave.bounds.classes import (
    ROUTES_PASS_SERVERS,
    SWITCHES_ADD,
    impossible_on,
)
from gradweave.bounds.demands.demand_lengths import DemandLengths, least_of_jobs
from gradweave.bounds.demands.link_windows import FEMTOSECONDS, least_idle
from gradweave.bounds.demands.pipelines import pipeline_bound
from gradweave.bounds.distances import node_distances
from gradweave.bounds.prices import Unit, capacity_in
from gradweave.bounds.seconds.latency import LatencyBound, message_times, reach_of
from gradweave.bounds.seconds_bound import Part, SecondsBound
from gradweave.bounds.steps import Step, far_message, reach_step, reached
from gradweave.errors import OptionError
from gradweave.schedules.demand import Demand
from gradweave.schedules.schedule import DEMAND
from gradweave.topology.spec import TopologyLike, as_topology
from gradweave.topology.topology import Floats, Integers, Topology
from gradweave.topology.units import format_seconds

DENOMINATORS = (1, 2, 3, 4, 6, 12, 60, 1_000, 1 << 14, 1 << 20, 1 << 30)
"""Lengths are rounded to multiples of the largest over one of these: the first that loses less
than `ROUNDING` is used, since small integers are easier to check."""
ROUNDING = 1e-6
"""Part of the bound that may be lost to small integers."""


def demand_bound(
    topology: TopologyLike, demand: Demand, *, lengths: Floats | None = None
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
    topology = as_topology(topology)
    demand.check_servers(topology)
    found = []
    for since in np.unique(demand.ready_at_s).tolist():
        late = np.flatnonzero(demand.ready_at_s >= since)
        alone = demand if len(late) == len(demand.jobs) else demand.of_jobs(late.tolist())
        near = _strongest(topology, alone, "seconds", lengths)
        parts = tuple(_parts(topology, demand, near, since))
        claim = {"unit": "seconds", "collective": DEMAND}
        found.append(SecondsBound(topology, demand, parts, claim, since, near))
    return max(found, key=lambda one: one.seconds)


def demand_rounds(
    topology: TopologyLike, demand: Demand, *, lengths: Floats | None = None
) -> Bound:
    """The minimum number of rounds of a demand whose bytes count as pieces of equal size.

    The candidates are those of `demand_bound`, with capacities for bandwidths, and the largest
    number of transfers from a contributor to a destination. Ready times are left out.

    Args:
        topology: the network.
        demand: the pieces to sum and move.
        lengths: [L] of link directions, at least 0, in any unit.

    Raises:
        OptionError: as for `demand_bound`.

    Source: Shahrokhi and Matula, "The maximum concurrent flow problem", 1990 (the dual);
        docs/concepts/bounds.md.

    >>> import gradweave as gw
    >>> pieces = gw.schedules.sends((s, t, 1) for s in range(4) for t in range(4) if s != t)
    >>> print(demand_rounds(gw.topology.ring(4), pieces))
    at least 2 rounds (lengths) for schedules that route through no other server, since 3 pieces
    must leave server 0 at 2 per round
    """
    topology = as_topology(topology)
    demand.check_servers(topology)
    near = _strongest(topology, demand, "rounds", lengths)
    far = _most_transfers(topology, demand)
    found = best(Bound(int(near.time), "lengths", (near,)), Bound(far.transfers, "depth", (far,)))
    return dataclasses.replace(found, holds_unless=near.holds_unless)


def _strongest(
    topology: Topology, demand: Demand, unit: Unit, lengths: Floats | None
) -> DemandLengths:
    """The strongest certificate by lengths: of ports, even lengths, or given lengths."""
    given = [] if lengths is None else [_given(topology, lengths)]
    tried = _ports(topology, demand, unit)
    for length in (1 / capacity_in(topology, unit), *given):
        tried += [_in_small_integers(topology, demand, unit, length)] if length.any() else []
    most = max(one.time for one in tried)  # of those that prove about as much, the first is simple
    return next(one for one in tried if one.time >= most * (1 - Fraction(ROUNDING)))


def _given(topology: Topology, lengths: Floats) -> NDArray[np.float64]:
    """[L] lengths given by a caller: one of at least 0 for each link direction."""
    given = np.asarray(lengths, np.float64)
    sound = given.shape == (len(topology.source),) and np.isfinite(given).all()
    if not (sound and (given >= 0).all()):
        raise OptionError("lengths: expected one of at least 0 for each link direction")
    return given


def _most_transfers(topology: Topology, demand: Demand) -> Distance:
    """The contributor and the destination of a block with the most transfers between them."""
    found = []
    arrives = topology.is_server[topology.target].astype(np.int64)
    for blocks, least in least_of_jobs(topology, demand, arrives):
        given, wanted = demand.contributors.take(blocks), demand.destinations.take(blocks)
        if demand.unicast:  # all blocks at once, as there may be very many
            away = least.of_blocks(demand, blocks)
            k = int(np.argmax(away))
            found.append(Distance(int(given.servers[k]), int(wanted.servers[k]), away[k]))
            continue
        for block in range(len(blocks)):
            away = least.between(given[block], wanted[block])
            a, b = divmod(int(away.argmax()), len(wanted[block]))
            found.append(Distance(int(given[block][a]), int(wanted[block][b]), int(away[a, b])))
    return max(found, key=lambda one: one.transfers)


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
        float(lengths.time),
        "bandwidth",
        lambda name: f"{lengths.reason(name)}{when}",
        lengths.holds_unless,
        lambda: [lengths.prices.step(DEMAND)],
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


def _ports(topology: Topology, demand: Demand, unit: Unit) -> list[DemandLengths]:
    """Lengths of 1 on the links of the busiest sender, and on those of the busiest receiver."""
    found, capacity = [], capacity_in(topology, unit)
    idle_s = np.maximum(least_idle(topology, demand), 0) / FEMTOSECONDS
    idle_s *= unit == "seconds"
    for ends, needs in ((topology.source, True), (topology.target, False)):
        moved = _must_pass(demand, leaving=needs, nodes=topology.num_nodes)
        order = np.lexsort((idle_s, ends))
        first = np.flatnonzero(np.diff(ends[order], prepend=-1))
        rate, unused = (_sums_within(each[order], first) for each in (capacity, capacity * idle_s))
        # A server's first k links, the soonest to carry bytes, need T with Σ rate · (T − idle) =
        # bytes; T is smallest when exactly the links that are of use by then are counted.
        since = (moved[ends[order]] + unused) / np.maximum(rate, 1e-300)
        nodes = ends[order][first]
        busiest = int(nodes[np.argmax(np.minimum.reduceat(since, first) * (moved[nodes] > 0))])
        found.append(DemandLengths(topology, demand, (ends == busiest).astype(np.int64), unit))
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
    of_set = np.bincount(inner.stored, demand.bytes, len(inner.starts) - 1)
    moved = np.bincount(inner.members, np.repeat(of_set, np.diff(inner.starts)), nodes)
    own = outer.first()
    stays = (outer.sizes == 1) & inner.has(np.arange(len(demand)), own)
    return (moved - np.bincount(own[stays], demand.bytes[stays], nodes)).astype(np.float64)


def _in_small_integers(
    topology: Topology, demand: Demand, unit: Unit, length: Floats
) -> DemandLengths:
    """Lengths in integers that are as small as possible without losing much of the bound.

    Links longer than the longest of the shortest paths are cut to this length, so that a link of
    tiny bandwidth, whose length is huge, does not round the others to 0.

    Args:
        topology: the network.
        demand: the blocks.
        unit: of the bound.
        length: [L] at least 0, not all 0.
    """
    ends = topology.source.astype(np.int64), topology.target.astype(np.int64)
    apart = node_distances(topology.servers, length, ends, topology.num_nodes)[topology.servers]
    farthest = float(apart[np.isfinite(apart)].max())
    length = np.minimum(length, farthest) if farthest > 0 else length

    def rounded(denominator: int) -> DemandLengths:
        scaled = np.rint(length / length.max() * denominator).astype(np.int64)
        return DemandLengths(topology, demand, scaled // (np.gcd.reduce(scaled) or 1), unit)

    finest = rounded(DENOMINATORS[-1])
    least = finest.time * (1 - Fraction(ROUNDING))
    return next((one for one in map(rounded, DENOMINATORS[:-1]) if one.time >= least), finest)


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
