"""Schedules for messages from server to server, such as an all-to-all, beside their bound."""

import dataclasses
import functools
import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from gradweave.bounds.unicast import Messages, UnicastCertificate, Unit
from gradweave.errors import OptionError
from gradweave.schedule.demand import Demand
from gradweave.schedule.schedule import COPY, DEMAND, Provenance, Schedule, take_rows
from gradweave.schedulers.demands.concurrent_flow import (
    ConcurrentFlow,
    concurrent_flow,
    leaves_as_they_are,
)
from gradweave.schedulers.demands.ejection_kernel import rounds_by_ejection
from gradweave.schedulers.demands.events import rounds_by_events
from gradweave.schedulers.demands.orbits import Quotient
from gradweave.schedulers.demands.parts import Parts, divided, parts_of, transfers_of
from gradweave.schedulers.demands.rounds_kernel import Transfers, rounds_of
from gradweave.simulate.seconds import event_seconds
from gradweave.stop import Stop
from gradweave.topology.spec import as_topology
from gradweave.topology.symmetry import FreeGroup, free_groups
from gradweave.topology.topology import Integers, Topology
from gradweave.verify import verify

ORDERS = ((4.0, 0.0), (1.0, 1.0), (0.0, 1.0))
"""How much farther transfers, and busy links farther on, count where transfers are put in order:
tried in turn until a link that carries most is never idle. The first is the best on tori, the last
on meshes."""
TRIES, MAX_HANDLED = 4, 60_000
"""Ways of cutting that are tried at most, and transfers in all their orders, about."""
PATIENCE, NEAR = 1, 0.01
"""Of rounds by ejection, where each part is one transfer; and how near the rounds that links need
are near enough to try no orders."""
SWEEPS = 10
"""Over links that a round leaves idle; with 100, no rounds were saved."""
CUTS = (1, 2, 4, 8, 16)
"""Parts of a message that are tried where seconds count and rounds are as good."""
HOLDS = (1.0, 0.01, 0.005, 0.0025)
"""For which share of the bound a part may hold a link at most, tried in turn elsewhere."""
HOLD_AGAIN = 0.01
"""The same where another plan is known: the first that is within some percent of the bound."""
TURNS, MAX_TURNED = 5, 5_000_000
"""Backwards and forwards, to find an order in time, and transfers in all turns but the first. Where
another plan is known, one, and only if the first order is not `CLOSE_AGAIN`."""
CLOSE_AGAIN = 0.045
"""How near the busiest link's load is near enough then."""
KNOWN_STARTS = 0.5
"""Share of the transfers that the known plan must have, for its order to be followed at first."""
DRAWS, MAX_DRAWN = 10, 50_000
"""Orders in time that are drawn at most, and transfers in all of them, about."""
CLOSE_IN_TIME = 1e-4
"""The same otherwise."""
MAX_LINKS, MAX_LINKS_IN_TIME = 60_000, 120_000
"""Links of all parts' paths together, beyond which messages are cut no finer: to make rounds, and
to put in order in time."""
MAX_APART = 20_000
"""Messages up to which each is cut for itself, too, where a group could cut all alike, and up to
which rounds are made where seconds count."""
TOLERANCE, MAX_PASSES = 1e-3, 250
"""Gap of the flow that parts follow, and passes after which it is followed as it is: of 512 servers
with links from 1 to 10 GB/s it is within a percent then, after half a minute."""
FLOW_TIME = 0.6
"""Share of a time limit that the flow may take."""
REMAINDERS = 1e-3
"""Share by which messages may differ that count as alike."""
CLOSE = 3e-3
"""Gap with which the search for seconds is content."""


@dataclasses.dataclass(frozen=True, eq=False)
class UnicastPlan:
    """A schedule, how long it takes, and how long any takes at least."""

    schedule: Schedule
    unit: Unit
    time: float
    """Rounds, or seconds in the event model."""
    flow: ConcurrentFlow
    """What the schedule's paths follow, from which another plan can start."""
    start_s: NDArray[np.float64] | None = None
    """[T] seconds at which the schedule's transfers start in the event model; None in rounds."""

    @property
    def bound(self) -> UnicastCertificate:
        """Why no schedule takes less."""
        return self.flow.certificate

    @property
    def gap(self) -> float:
        """How far `time` is above the bound, as a share of it."""
        return self.time / float(self.bound.time) - 1

    @functools.cached_property
    def _starts(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Pairs of servers and links, as one number ascending, and when such transfers start."""
        assert self.start_s is not None and self.schedule.block is not None
        links, transfer = self.schedule.route_links
        first = np.flatnonzero(np.diff(transfer, prepend=-1))
        block = self.schedule.block[self.schedule.piece]
        number = _numbers(self.flow.messages, block, links[first])
        numbers, place, count = np.unique(number, return_inverse=True, return_counts=True)
        return numbers, np.bincount(place, self.start_s) / count

    def starts_of(
        self, messages: Messages, message: Integers, link: Integers
    ) -> NDArray[np.float64] | None:
        """[X] when other messages' transfers would start as here; None where few are alike.

        Args:
            messages: on the same network.
            message: [X] which of them each transfer is of.
            link: [X] the first that it takes.
        """
        numbers, start = self._starts
        number = _numbers(messages, message, link)
        place = np.minimum(np.searchsorted(numbers, number), len(numbers) - 1)
        alike = numbers[place] == number
        if alike.mean() < KNOWN_STARTS:
            return None
        links = len(messages.topology.source)
        count = np.bincount(numbers % links, minlength=links)
        mean = np.bincount(numbers % links, start, links) / np.maximum(count, 1)
        return np.where(alike, start[place], mean[link])


def plan_unicast(
    topology: Topology | str,
    demand: Demand,
    unit: Unit = "seconds",
    *,
    pieces: int | None = None,
    known: UnicastPlan | None = None,
    seed: int = 0,
    time_limit: float | None = None,
) -> UnicastPlan:
    """Plans messages from server to server: paths by concurrent flow, then an order.

    Messages are cut into parts, each on one path, stored by servers on the way and passed through
    switches as a circuit. In each round transfers that busy links need are taken first; parts that
    pass no server go to the rounds where least is in their way. In seconds that is so where there
    are switches, and all parts take equally long on all links; otherwise links take what waits for
    them by when it must be there. Where a known group moves every server and leaves messages as
    they are, as in an all-to-all on BCube, one message of each orbit is put in order for all.

    Args:
        topology: the network, or its specification or file.
        demand: blocks of one contributor and one destination each; of several jobs, only servers
            that may pass on the blocks of all do.
        unit: what is made small: seconds of the event model, or rounds.
        pieces: parts of the largest message; others have fewer in proportion. Where it is not
            given, one in rounds, and in seconds what takes the least time of a few. Where parts
            are put in order in time, more where the flow divides a message.
        known: the plan of other messages on this network, to start from; in seconds a plan is then
            made once, which takes tens of milliseconds for 64 servers.
        seed: every random choice depends on it alone.
        time_limit: seconds after which the best so far is returned.

    Raises:
        OptionError: a demand that adds or copies, or servers that it cannot reach.
        InvalidScheduleError: where it has a fault: what it made does not verify.

    >>> import gradweave as gw
    >>> demand = gw.schedule.collective("all_to_all", range(8), 8)
    >>> plan = plan_unicast("ring:8", demand, "rounds")
    >>> plan.schedule.rounds, int(plan.bound.time)
    (8, 8)
    """
    network, stop = as_topology(topology), Stop.after(time_limit)
    if pieces is not None and pieces < 1:
        raise OptionError(f"pieces: expected 1 at least, got {pieces}")
    messages = messages_of(network, demand)
    alike = not np.ptp(demand.ready_at_s)
    group = _group(messages, stop) if alike and known is None else None
    if unit == "rounds":
        count = _counts(messages.amount, pieces or 1)
        counted = dataclasses.replace(messages, amount=count)
        flow = _flow(counted, unit, group, known, stop)
        ways = _ways(flow, group, stop)
        schedule = _ordered(ways, demand, count, seed, stop)
        return UnicastPlan(schedule, unit, float(schedule.rounds), flow)
    best: UnicastPlan | None = None
    for schedule, flow in _in_seconds(messages, demand, group, pieces, known, seed, stop):
        start, end = event_seconds(schedule)
        if best is None or end.max() < best.time:
            best = UnicastPlan(schedule, unit, float(end.max()), flow, start)
        if best.time < flow.bound * (1 + CLOSE) or stop.reached():
            break
    assert best is not None
    return best


def _numbers(messages: Messages, message: Integers, link: Integers) -> NDArray[np.int64]:
    """[X] one number for each message's pair of servers and a link."""
    topology = messages.topology
    pair = messages.source[message].astype(np.int64) * topology.num_nodes + messages.target[message]
    return pair * len(topology.source) + link


def messages_of(topology: Topology, demand: Demand) -> Messages:
    """A demand's blocks as messages.

    Args:
        topology: the network.
        demand: blocks of one contributor and one destination each.

    Raises:
        OptionError: other blocks, or servers that the network does not have.
    """
    if not demand.unicast:
        sizes = demand.contributors.sizes * demand.destinations.sizes
        raise OptionError(
            f"demand: block {int(np.argmax(sizes > 1))}: expected one contributor and one "
            "destination; what is added or copied is not for this strategy"
        )
    demand.check_servers(topology)
    relays = np.ones(topology.num_nodes, bool)
    for job in range(len(demand.jobs)):
        allowed = np.zeros(topology.num_nodes, bool)
        allowed[demand.servers_of(job)] = allowed[demand.relays] = True
        relays &= allowed
    return Messages(
        topology, demand.contributors.servers, demand.destinations.servers, demand.bytes, relays
    )


def _counts(amount: Integers, pieces: int) -> NDArray[np.int64]:
    """[K] parts of each message: so many of the largest, the others in proportion."""
    return np.maximum(np.rint(amount * (pieces / amount.max())), 1).astype(np.int64)


def _group(messages: Messages, stop: Stop) -> FreeGroup | None:
    """The largest known group of automorphisms that moves all servers, and no message."""
    messages = _evened(messages)
    pairs = messages.source * messages.topology.num_nodes + messages.target
    if len(np.unique(pairs)) < len(pairs) or not leaves_as_they_are(
        messages, np.arange(messages.topology.num_nodes, dtype=np.int32)
    ):
        return None
    for group in free_groups(messages.topology, stop=stop):
        if all(leaves_as_they_are(messages, moved) for moved in group.permutations):
            return group
    return None


def _flow(
    messages: Messages, unit: Unit, group: FreeGroup | None, known: UnicastPlan | None, stop: Stop
) -> ConcurrentFlow:
    before = known.flow if known else None
    even = _evened(messages) if group else messages
    flow = concurrent_flow(
        even,
        unit,
        symmetric=group or False,
        tolerance=TOLERANCE,
        known=before,
        max_passes=MAX_PASSES,
        stop=stop.part(FLOW_TIME),
    )
    return dataclasses.replace(flow, messages=messages)  # whose bound is exact


def _hops(flow: ConcurrentFlow) -> float:
    """Links of a part, on average."""
    return float(np.diff(flow.paths.first[: flow.paths.length[0] + 1]).mean())


def _ways(
    flow: ConcurrentFlow, group: FreeGroup | None, stop: Stop
) -> list[tuple[ConcurrentFlow, FreeGroup | None]]:
    """Flows by which messages may be cut: under a group all images alike, or each for itself."""
    if group is None or len(flow.messages) > MAX_APART:
        return [(flow, group)]
    return [(flow, group), (_flow(flow.messages, flow.unit, None, None, stop), None)]


def _alike(messages: Messages) -> bool:
    """Whether all parts take equally long on all links, so that rounds are as good as seconds."""
    bandwidth = messages.topology.bandwidth_bytes_per_s / messages.topology.capacity
    return len(np.unique(bandwidth)) == 1 and _evened(messages) is not messages


def _evened(messages: Messages) -> Messages:
    """The same with one amount for all, where they differ by what division leaves over."""
    amount = messages.amount
    if np.ptp(amount) > REMAINDERS * amount.max():
        return messages
    return dataclasses.replace(messages, amount=np.full(len(amount), amount.max()))


def _in_seconds(
    messages: Messages,
    demand: Demand,
    group: FreeGroup | None,
    pieces: int | None,
    known: UnicastPlan | None,
    seed: int,
    stop: Stop,
) -> Iterator[tuple[Schedule, ConcurrentFlow]]:
    """Schedules of ever finer parts, and the flows that they follow."""
    large = len(messages) > MAX_APART
    rounds = _alike(messages) and messages.topology.switches.size and not demand.ready_at_s.any()
    flow = _flow(messages, "seconds", group, known, stop)
    if (large and (group is None or group.order < messages.topology.num_servers)) or not rounds:
        quotient = Quotient.of(flow, group)
        for parts in _parts_in_time(flow, quotient, pieces, known, seed):
            yield _ordered_in_time(parts, quotient, flow, demand, known, seed, stop), flow
        return
    ways = _ways(flow, group, stop)
    for cut in CUTS if pieces is None else (pieces,):
        count = _counts(messages.amount, cut)
        if cut > CUTS[0] and pieces is None and count.sum() * _hops(flow) > MAX_LINKS:
            return
        yield _ordered(ways, demand, count, seed, stop), flow


def _parts_in_time(
    flow: ConcurrentFlow,
    quotient: Quotient,
    pieces: int | None,
    known: UnicastPlan | None,
    seed: int,
) -> Iterator[Parts]:
    """Ever finer parts of messages."""
    messages, before, images = flow.messages, 0, quotient.order
    slowest = messages.capacity("seconds").min()
    most = math.inf if pieces is None else math.ceil(messages.amount.max() / pieces)
    for hold in (HOLD_AGAIN,) if known else HOLDS if pieces is None else (1.0,):
        longest_s = hold * flow.bound
        if images == 1 or len(messages) > images * MAX_APART:
            parts = divided(flow, most=most, longest_s=longest_s, images=images, seed=seed)
        else:
            count = np.ceil(_evened(messages).amount / min(most, longest_s * slowest) - TOLERANCE)
            parts = parts_of(flow, np.maximum(count, 1).astype(np.int64), images=images, seed=seed)
        if before and len(parts.links) * images > MAX_LINKS_IN_TIME:
            return
        if len(parts.message) > before:
            yield parts
        before = len(parts.message)


def _ordered_in_time(
    parts: Parts,
    quotient: Quotient,
    flow: ConcurrentFlow,
    demand: Demand,
    known: UnicastPlan | None,
    seed: int,
    stop: Stop,
) -> Schedule:
    """Parts as they start in an event simulation."""
    topology = flow.messages.topology
    transfers = transfers_of(topology, parts)
    if not quotient.carries(transfers):
        parts, _ = quotient.spread(flow.messages, parts)
        quotient, transfers = Quotient.trivial(topology), transfers_of(topology, parts)
    draws = min(max(MAX_DRAWN // len(transfers.route), 1), DRAWS)
    turns = min(1 + MAX_TURNED // len(transfers.route), TURNS)
    wires, known_s = quotient.wires(transfers), None
    if known is not None:
        message = np.repeat(parts.message, np.diff(transfers.first))
        link = wires.links[wires.first[transfers.route]]
        known_s = known.starts_of(flow.messages, message, link)
    rounds, _ = rounds_by_events(
        wires,
        transfers,
        parts.sizes(flow.messages.amount),
        ready_s=demand.ready_at_s[demand.job][parts.message],
        known_s=known_s,
        turns=1 if known else turns,
        draws=1 if known else draws,
        close=CLOSE_AGAIN if known else CLOSE_IN_TIME,
        seed=seed,
        stop=stop,
    )
    return _schedule(flow.messages, demand, quotient, parts, rounds)


def _ordered(
    ways: list[tuple[ConcurrentFlow, FreeGroup | None]],
    demand: Demand,
    count: NDArray[np.int64],
    seed: int,
    stop: Stop,
) -> Schedule:
    """The parts of a flow in the best of some orders."""
    messages = ways[0][0].messages
    topology = messages.topology
    per_amount = count.sum() / messages.amount.sum()
    unit = messages.capacity(ways[0][0].unit).min() / topology.capacity.min()
    goal = math.ceil(ways[0][0].bound * unit * per_amount - TOLERANCE)
    best, handled, made = math.inf, 0, None
    for tried in range(TRIES):
        flow, group = ways[tried % len(ways)]
        quotient = Quotient.of(flow, group)
        parts = parts_of(flow, count, images=quotient.order, seed=seed + tried)
        transfers = transfers_of(topology, parts, flow.length, quotient.orbit)
        if not quotient.carries(transfers):
            parts, _ = quotient.spread(messages, parts)
            quotient = Quotient.trivial(topology)
            transfers = transfers_of(topology, parts, flow.length)
        capacity = quotient.capacity
        over = transfers._replace(links=quotient.orbit[transfers.links])
        load = np.bincount(quotient.orbit[parts.links], minlength=len(capacity))
        used = load > 0  # others may have no capacity left for a transfer and its images
        least = math.ceil((load[used] / capacity[used]).max())
        for found in _orders(over, capacity, least, seed + tried) if least < best else ():
            handled += len(found[0])
            if found[2] < best:
                best = found[2]
                links, first = take_rows(transfers.links, transfers.first_link, found[1])
                taken = dataclasses.replace(parts, links=links, first=first[transfers.first])
                made = quotient, taken, found[0]
            if best <= least or stop.reached():
                break
        if best <= goal or handled > MAX_HANDLED or stop.reached():
            break
    assert made is not None
    return _schedule(messages, demand, *made)


def _orders(
    transfers: Transfers, capacity: NDArray[np.int64], least: int, seed: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], int]]:
    """Rounds and routes of transfers, and how many rounds there are, by one order or another.

    Args:
        transfers: to be put in order.
        capacity: [L] of links.
        least: rounds that links need.
        seed: of all draws.
    """
    if len(transfers.route) == len(transfers.first) - 1:  # one each: none waits for another
        found = rounds_by_ejection(transfers, capacity, least, PATIENCE, seed)
        if found[2]:
            yield found
            if found[2] <= least * (1 + NEAR):
                return
    for farther, ahead in ORDERS:
        yield rounds_of(transfers, capacity, farther, ahead, SWEEPS, seed)


def _schedule(
    messages: Messages,
    demand: Demand,
    quotient: Quotient,
    parts: Parts,
    rounds: NDArray[np.int64],
) -> Schedule:
    """All images of parts whose transfers are sent in the given rounds, verified."""
    topology = messages.topology
    first = transfers_of(topology, parts).first
    parts, of = quotient.spread(messages, parts)
    rounds, _ = take_rows(rounds, first, of)
    part = np.repeat(np.arange(len(parts.message)), np.diff(first)[of])
    ends = np.flatnonzero(topology.is_server[topology.target[parts.links]]) + 1
    begins = np.append(0, ends[:-1])
    nodes = np.insert(topology.target[parts.links], begins, topology.source[parts.links[begins]])
    offsets = np.append(0, ends) + np.arange(len(ends) + 1)
    schedule = Schedule(
        topology=topology,
        collective=DEMAND,
        root=demand.destinations.servers[parts.message],
        round=rounds,
        piece=part,
        source=topology.source[parts.links[begins]],
        target=topology.target[parts.links[ends - 1]],
        op=np.full(len(rounds), COPY),
        route_nodes=nodes,
        route_offsets=offsets,
        scheduler=Provenance("unicast"),
        demand=demand,
        block=parts.message,
        shares=parts.share,
    )
    verify(schedule).raise_if_invalid()
    return schedule
