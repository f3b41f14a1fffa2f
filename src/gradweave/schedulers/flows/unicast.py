"""Schedules and bounds for point-to-point messages, such as an all-to-all."""

import dataclasses
import functools
import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from gradweave.bounds.bound import Bound
from gradweave.bounds.prices import Unit
from gradweave.bounds.seconds_bound import SecondsBound
from gradweave.common.stop import Stop
from gradweave.errors import OptionError
from gradweave.schedulers.flows.concurrent_flow import (
    ConcurrentFlow,
    concurrent_flow,
    leaves_as_they_are,
)
from gradweave.schedulers.flows.ejection_kernel import rounds_by_ejection
from gradweave.schedulers.flows.messages import Messages
from gradweave.schedulers.flows.orbits import Quotient
from gradweave.schedulers.flows.parts import MessageParts, divided, parts_of, transfers_of
from gradweave.schedulers.flows.rounds_in_time import rounds_by_events
from gradweave.schedulers.flows.rounds_kernel import Transfers, rounds_of
from gradweave.schedulers.ordering.lower import lower
from gradweave.schedules.demand import Demand
from gradweave.schedules.schedule import COPY, DEMAND, Provenance, Schedule, take_rows
from gradweave.simulator.seconds import event_seconds
from gradweave.topology.spec import TopologyLike, as_topology
from gradweave.topology.symmetry import FreeGroup, free_groups
from gradweave.topology.topology import Integers
from gradweave.verifier import verify

ORDERS = ((4.0, 0.0), (1.0, 1.0), (0.0, 1.0))
"""(farther, ahead): the weights of remaining hops and of busy later links when ordering transfers,
tried in turn until a busiest link is never idle. The first is best on tori, the last on meshes."""
TRIES, MAX_HANDLED = 4, 60_000
"""Most ways of cutting to try, and approximate limit on transfers over all their orders."""
PATIENCE, NEAR = 1, 0.01
"""Patience of rounds by ejection, used if each part is one transfer; and the relative gap to the
rounds that links need at which no orders are tried."""
SWEEPS = 10
"""Passes over links that a round leaves idle; 100 passes saved no rounds."""
CUTS = (1, 2, 4, 8, 16)
"""Parts per message to try for seconds if rounds are equivalent to seconds."""
HOLDS = (1.0, 0.01, 0.005, 0.0025)
"""Otherwise: largest share of the bound for which a part may hold a link, tried in turn."""
HOLD_AGAIN = 0.01
"""The same if another plan is known: the first that gets within some percent of the bound."""
TURNS, MAX_TURNED = 5, 5_000_000
"""Most backward and forward turns to find an order in time, and limit on transfers over all turns
except the first. If another plan is known there is one turn, and only if the first order is not
within `CLOSE_AGAIN`."""
CLOSE_AGAIN = 0.045
"""Relative gap to the busiest link's load that is close enough in that case."""
KNOWN_STARTS = 0.5
"""Share of the transfers that the known plan must have for its order to be followed at first."""
DRAWS, MAX_DRAWN = 10, 50_000
"""Most random orders in time, and approximate limit on transfers over all of them."""
CLOSE_IN_TIME = 1e-4
"""Relative gap that is close enough otherwise."""
MAX_LINKS, MAX_LINKS_IN_TIME = 60_000, 120_000
"""Links over all parts' paths above which messages are cut no finer: for rounds, and for orders in
time."""
MAX_APART = 20_000
"""With at most this many messages, each is also cut individually even if a group could cut all
alike, and schedules in rounds are also used to minimise seconds."""
TOLERANCE, MAX_PASSES = 1e-3, 250
"""The flow that parts follow is improved until its gap is at most `TOLERANCE`, or for `MAX_PASSES`
passes. With 512 servers and links from 1 to 10 GB/s, that many passes take half a minute and reach
a gap of a percent."""
FLOW_TIME = 0.6
"""Share of a time limit that the flow may take."""
REMAINDERS = 1e-3
"""Relative difference up to which messages count as equal in size."""
CLOSE = 3e-3
"""Gap at which the search for seconds stops."""


@dataclasses.dataclass(frozen=True, eq=False)
class UnicastPlan:
    """A schedule, its duration, and a lower bound."""

    schedule: Schedule
    unit: Unit
    time: float
    """Rounds, or seconds in the event model."""
    flow: ConcurrentFlow
    """The flow that the schedule's paths follow; another plan can start from it."""
    start_s: NDArray[np.float64] | None = None
    """[T] seconds at which the schedule's transfers start in the event model, or None in rounds."""

    @property
    def bound(self) -> SecondsBound | Bound:
        """The proof that no schedule takes less, in seconds or in rounds."""
        return self.flow.proof

    @property
    def least(self) -> float:
        """The bound's seconds, or rounds."""
        bound = self.bound
        return float(bound.rounds) if isinstance(bound, Bound) else bound.seconds

    @property
    def gap(self) -> float:
        """How far `time` is above the bound, as a share of it."""
        return self.time / self.least - 1

    @functools.cached_property
    def _starts(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Pairs of servers and links, as one ascending number, and when such transfers start."""
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
        """[X] starts of other messages' transfers, as in this plan, or None if few are in it.

        Args:
            messages: other messages on the same network.
            message: [X] the message of each transfer.
            link: [X] the first link of each transfer.
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
    topology: TopologyLike,
    demand: Demand,
    unit: Unit = "seconds",
    *,
    pieces: int | None = None,
    known: UnicastPlan | None = None,
    seed: int = 0,
    time_limit: float | None = None,
) -> UnicastPlan:
    """Plans point-to-point messages: paths by concurrent flow, then an order of transfers.

    Messages are cut into parts. Each part takes one path, stored by servers on the way and passed
    through switches as a circuit. In each round, transfers that busy links need are taken first;
    parts that pass no server are placed in rounds by ejection search. This is also used for seconds
    if there are switches and all parts take equally long on all links; otherwise an event
    simulation sends parts by latest possible start. If a known group moves every server and leaves
    the messages unchanged, as in an all-to-all on BCube, one message per orbit is ordered for all
    its images.

    Args:
        topology: the network, or its specification or file.
        demand: blocks of one contributor and one destination each; with several jobs, only servers
            that may relay all blocks do so.
        unit: the quantity to minimise: seconds in the event model, or rounds.
        pieces: parts of the largest message; others have proportionally fewer. If not given: one
            for rounds, and for seconds the fastest of a few numbers. If parts are ordered in time
            and the flow divides a message, there are more.
        known: the plan of other messages on this network, to start from; for seconds only one plan
            is then made, which takes tens of milliseconds for 64 servers.
        seed: the only source of every random choice.
        time_limit: seconds after which to return the best plan so far.

    Raises:
        OptionError: if the demand adds or copies, or has servers that cannot be reached.
        InvalidScheduleError: if the planner has a bug: its schedule does not verify.

    >>> import gradweave as gw
    >>> demand = gw.schedules.collective("all_to_all", range(8), 8)
    >>> plan = plan_unicast("ring:8", demand, "rounds")
    >>> plan.schedule.rounds, plan.bound.rounds
    (8, 8)
    """
    network, stop = as_topology(topology), Stop.after(time_limit)
    if pieces is not None and pieces < 1:
        raise OptionError(f"pieces: expected at least 1, got {pieces}")
    messages = Messages(network, demand)
    alike = not np.ptp(demand.ready_at_s)
    group = _group(messages, stop) if alike and known is None else None
    if unit == "rounds":
        count = _counts(messages.amount, pieces or 1)
        counted = messages.of_amounts(count)
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
    """[X] a number that identifies a message's pair of servers and a link."""
    topology = messages.topology
    pair = messages.source[message].astype(np.int64) * topology.num_nodes + messages.target[message]
    return pair * len(topology.source) + link


def _counts(amount: Integers, pieces: int) -> NDArray[np.int64]:
    """[K] parts of each message: `pieces` of the largest, the others in proportion."""
    return np.maximum(np.rint(amount * (pieces / amount.max())), 1).astype(np.int64)


def _group(messages: Messages, stop: Stop) -> FreeGroup | None:
    """The largest known group of automorphisms that moves all servers and keeps the messages."""
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
    return dataclasses.replace(flow, messages=messages)  # for an exact bound


def _hops(flow: ConcurrentFlow) -> float:
    """Average number of links per part."""
    return float(np.diff(flow.paths.first[: flow.paths.length[0] + 1]).mean())


def _ways(
    flow: ConcurrentFlow, group: FreeGroup | None, stop: Stop
) -> list[tuple[ConcurrentFlow, FreeGroup | None]]:
    """Flows by which messages may be cut: all images alike under a group, or individually."""
    if group is None or len(flow.messages) > MAX_APART:
        return [(flow, group)]
    return [(flow, group), (_flow(flow.messages, flow.unit, None, None, stop), None)]


def _alike(messages: Messages) -> bool:
    """Whether all parts take equally long on all links, so that rounds determine seconds."""
    bandwidth = messages.topology.bandwidth_bytes_per_s / messages.topology.capacity
    return len(np.unique(bandwidth)) == 1 and _evened(messages) is not messages


def _evened(messages: Messages) -> Messages:
    """The messages with equal amounts, if they differ only by remainders of a division."""
    amount = messages.amount
    if np.ptp(amount) > REMAINDERS * amount.max():
        return messages
    return messages.of_amounts(np.full(len(amount), amount.max()))


def _in_seconds(
    messages: Messages,
    demand: Demand,
    group: FreeGroup | None,
    pieces: int | None,
    known: UnicastPlan | None,
    seed: int,
    stop: Stop,
) -> Iterator[tuple[Schedule, ConcurrentFlow]]:
    """Schedules of increasingly fine parts, and the flows that they follow."""
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
) -> Iterator[MessageParts]:
    """Increasingly fine parts of messages."""
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
    parts: MessageParts,
    quotient: Quotient,
    flow: ConcurrentFlow,
    demand: Demand,
    known: UnicastPlan | None,
    seed: int,
    stop: Stop,
) -> Schedule:
    """The schedule of parts as they start in an event simulation."""
    topology = flow.messages.topology
    transfers = transfers_of(topology, parts)
    # Images of one transfer meet on a link that cannot carry them: an order of the quotient is none
    # of the network, and every image is ordered by itself.
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
    """The schedule of a flow's parts in the best of several orders."""
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
        used = load > 0  # others may lack capacity for a transfer and its images
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
    """Rounds and routes of transfers, and how many rounds there are, by several orders.

    Args:
        transfers: the transfers to order.
        capacity: [L] capacity of each link.
        least: number of rounds that links need.
        seed: the seed of all draws.
    """
    if len(transfers.route) == len(transfers.first) - 1:  # one transfer per part: no dependencies
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
    parts: MessageParts,
    rounds: NDArray[np.int64],
) -> Schedule:
    """The verified schedule of all images of parts, in the given rounds."""
    topology = messages.topology
    first = transfers_of(topology, parts).first
    parts, of = quotient.spread(messages, parts)
    rounds, _ = take_rows(rounds, first, of)
    part = np.repeat(np.arange(len(parts.message)), np.diff(first)[of])
    ends = np.flatnonzero(topology.is_server[topology.target[parts.links]]) + 1
    schedule = lower(
        topology,
        parts.links,
        np.append(0, ends),
        np.arange(len(ends)),
        piece=part,
        op=np.full(len(ends), COPY),
        root=topology.rank[demand.destinations.servers[parts.message]].astype(np.int64),
        rounds=rounds,
        collective=DEMAND,
        scheduler=Provenance("unicast"),
        demand=demand,
        block=parts.message,
        shares=parts.share,
    )
    verify(schedule).raise_if_invalid()
    return schedule
