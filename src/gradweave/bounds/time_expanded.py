"""The least time for small networks where latency and bytes add up: a program over slots."""

import dataclasses
import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from gradweave.bounds.least_seconds import LeastSeconds, Shares, checked_shares, least_seconds
from gradweave.bounds.scale import in_units, units_of
from gradweave.bounds.time_expanded_program import Orbits, Program, Slots
from gradweave.bounds.time_slots import arcs_of
from gradweave.errors import OptionError
from gradweave.schedule.schedule import REDUCE, Collective, Schedule
from gradweave.stop import Stop
from gradweave.topology.symmetry import free_groups
from gradweave.topology.topology import Topology
from gradweave.topology.units import ROUNDING, format_seconds
from gradweave.wording import counted, listed

MAX_SERVERS = 32
"""Servers up to which it is tried."""
FLOWS = 24_000
"""About how many variables the number of slots is chosen for: a second or two for each solution."""
FEWEST, MOST = 8, 64
"""Slots that are chosen."""
MAX_SLOTS = 1000
"""Slots that are accepted."""
SOLUTIONS = 6
"""Times that the program is solved, each for slots of another length."""
NEAR = 2e-3
"""Relative distance of the bound from where it can still rise, at which that ends."""
SHOWN = 3
"""Links that are named in words."""


@dataclasses.dataclass(frozen=True, eq=False)
class SlotPrices:
    """The certificate: what the use of each link costs in each slot of time.

    Any numbers, 0 or more, prove some bound; these come from the linear program's dual solution.
    """

    slots: Slots
    prices: tuple[NDArray[np.float64], ...]
    """Of each stage [K, A, N]: of an arc in a slot, for what each server contributes or is sent."""
    tolls: tuple[NDArray[np.float64], ...]
    """Of each stage [K, S]: of entering a switch, given back on leaving it."""

    def seconds(self, gradient_bytes: float) -> Fraction:
        """What they prove, computed anew in integers and fractions.

        Args:
            gradient_bytes: M.
        """
        times = self.slots.seconds(self.prices, self.tolls, gradient_bytes)
        return min((one for one in times if one is not None), default=Fraction(0))

    def in_integers(self) -> tuple[list[NDArray[np.int64]], list[NDArray[np.int64]]]:
        """Prices [K, A, N] and tolls [K, S] of each stage, as they are recounted."""
        return self.slots.in_integers(self.prices, self.tolls)

    def reason(self) -> str:
        """The links that are charged most."""
        topology = self.slots.topology
        charged = self.slots.charged_by_link(self.prices, self.tolls)
        links = np.argsort(-charged, kind="stable")[:SHOWN]
        names = [topology.link_name(int(link)) for link in links if charged[link] > 0]
        slots = counted(self.slots.count, "slot")
        if not names:
            return f"messages do not arrive in {slots}"
        of_all = charged[links].sum() / charged.sum()
        return (
            f"in {slots} of time links carry no more while sums and copies wait for what they are "
            f"made of; {of_all:.0%} of what that costs is charged on {listed(names, SHOWN)}"
        )


@dataclasses.dataclass(frozen=True, eq=False)
class TimeExpandedBound:
    """No schedule built from trees takes less time, and why."""

    collective: Collective
    gradient_bytes: float
    plain: LeastSeconds
    """The bound without slots, of which this one is never less."""
    expanded_s: float
    """What the program over slots proves; 0 where none was solved."""
    certificate: SlotPrices | None
    """The proof of `expanded_s`."""

    @property
    def seconds(self) -> float:
        """The larger of the two."""
        return max(self.plain.seconds, self.expanded_s)

    @property
    def reason(self) -> str:
        """What limits."""
        if self.certificate is None or self.expanded_s <= self.plain.seconds:
            return str(self.plain).partition(", since ")[2]
        return self.certificate.reason()

    def covers(self, schedule: Schedule) -> bool:
        """Whether a schedule is of the kind that the bound holds for.

        Each part is summed at its root alone, and no route passes a server. `gradweave.solve` may
        choose others where messages are small: exchanges of sums, and trees whose messages pass
        servers, as those of ``postal``.

        Args:
            schedule: valid, of the same network and collective.
        """
        own = schedule.source == schedule.root[schedule.piece]
        ends = np.zeros(len(schedule.route_nodes), bool)
        ends[schedule.route_offsets[:-1]] = ends[schedule.route_offsets[1:] - 1] = True
        passed = schedule.topology.is_server[schedule.route_nodes] & ~ends
        return not ((own & (schedule.op == REDUCE)).any() or passed.any())

    def __str__(self) -> str:
        if self.expanded_s <= self.plain.seconds:
            return str(self.plain)
        time_s = format_seconds(self.seconds)
        return f"at least {time_s} (latency and bytes), since {self.reason}"


def time_expanded(
    topology: Topology,
    gradient_bytes: float,
    *,
    collective: Collective = "all_reduce",
    slots: int | None = None,
    shares: Shares = "any",
    time_limit: float | None = None,
    upper_s: float | None = None,
) -> TimeExpandedBound:
    """The least time for a collective built from trees, where latency and bytes add up.

    `least_seconds` takes the larger of what latency and what bytes need; a schedule pays both. Here
    time is cut into K slots, and a linear program asks how long they must be:

    - who has summed how much, ready to be copied, in each slot (turns, which sum to one);
    - from each server, a flow of its contributions through time to the turns, and to each server a
      flow of copies from there. Servers may keep what they have, switches not;
    - of each stage, bytes on a link in a slot: at least those of each server's flow, and a switch
      sends what it receives; all together at most the bandwidth times a slot's length.

    *No schedule of trees takes less*, if each part of the gradient, of any size, is summed at one
    root, over routes through switches alone. Give each byte the moment at which a link sends it, a
    message's overhead after the message started at the earliest. In the models of
    `gradweave.simulate.seconds` all links of a route do so at once, and the message arrives the
    route's latencies later at the earliest. Set links' clocks back by the overhead. Then whoever
    sends a byte has it before, by that clock, and has sent it on not before latency and overhead
    have passed. So a byte sent in slot t arrives in slot t + ⌊(latency + overhead) K / T⌋ or later,
    where T is the time of all slots; what arrives in a slot may be sent on in it. A tree's messages
    carry one path from each server, each byte of them for all servers behind, which are the flows.

    With d slots for each link's delay, a schedule of T seconds is a solution as long as T ≤ delay ·
    K / d for every link. So the bound is the smaller of K times the least length of a slot and
    those times. It is found for several T, of which the best counts.

    The certificate is the dual solution: prices on links in slots. By weak duality each
    byte pays at least its contributions' cheapest paths to some root and slot, and its copies'
    from there, and links charge at most their bandwidths times their dearest prices. Any
    prices prove a bound; cheapest paths and charges are computed anew in integers and fractions, so
    that the solver's errors make it smaller, never larger.

    `TimeExpandedBound.covers` says of a schedule whether it is of that kind. The program leaves out
    that trees may not fit the flows, that a message arrives as a whole, that overheads hold links,
    and more than a few different latencies of what meets at a switch, which count as smaller ones.

    Args:
        topology: the network, of at most `MAX_SERVERS` servers.
        gradient_bytes: size of the whole gradient.
        collective: a stage, or both, which overlap.
        slots: K; more bound more and take longer. As many as take a few seconds if not given.
        shares: the part of the gradient that each server roots, as in `least_seconds`.
        time_limit: seconds after which no further length of slots is tried.
        upper_s: a schedule's time, if one is known: where to look for the bound.

    Returns:
        The bound with its certificate.

    Raises:
        OptionError: for too many servers, or numbers that make no sense.

    Source: Ford and Fulkerson, "Constructing maximal dynamic flows from static flows", 1958; Liu et
        al., "Rethinking machine learning collective communication as a multi-commodity flow
        problem" (TE-CCL), 2024, whose program finds schedules of chunks; docs/concepts/bounds.md.

    >>> import gradweave as gw
    >>> link = gw.topology.Link(bandwidth_bytes_per_s=1e9, latency_s=1e-3)
    >>> ring = gw.topology.ring(4, link=link)
    >>> bound = gw.bounds.time_expanded(ring, 4e6)
    >>> f"{1e3 * bound.plain.seconds:.1f} ms, {1e3 * bound.seconds:.1f} ms"
    '4.0 ms, 4.4 ms'
    """
    if topology.num_servers > MAX_SERVERS:
        raise OptionError(
            f"time_expanded: expected at most {MAX_SERVERS} servers, got {topology.num_servers}; "
            "bounds.least_seconds takes more"
        )
    if slots is not None and not 2 <= slots <= MAX_SLOTS:
        raise OptionError(f"slots: expected 2 to {MAX_SLOTS}, got {slots}")
    for name, value in (("time_limit", time_limit), ("upper_s", upper_s)):
        if value is not None and not value > 0:
            raise OptionError(f"{name}: expected more than 0, got {value}")
    stop = Stop.after(time_limit)
    plain = least_seconds(topology, gradient_bytes, collective, shares=shares)
    if not gradient_bytes or plain.seconds <= 0:
        return TimeExpandedBound(collective, gradient_bytes, plain, 0.0, None)
    given = checked_shares(shares, topology.num_servers)
    prices = _Programs(topology, collective, given, gradient_bytes, slots)
    best_s, best = _search(prices.solve, plain.seconds, upper_s, gradient_bytes, stop)
    return TimeExpandedBound(collective, gradient_bytes, plain, best_s * (1 - ROUNDING), best)


def _search(
    prices_at: Callable[[float, Stop], SlotPrices | None],
    least_s: float,
    upper_s: float | None,
    gradient_bytes: float,
    stop: Stop,
) -> tuple[float, SlotPrices | None]:
    """The best bound of slots of several lengths.

    Slots of any length prove a bound. The longer they are, the fewer a message's delay takes and
    the less they prove, until they prove less than their own length, beyond which nothing is to be
    found: the best is where both are equal.
    """
    best_s, best = 0.0, None
    low, high = least_s, upper_s or math.inf
    length_s, tried = low, set[bytes]()
    for _ in range(SOLUTIONS):
        found = prices_at(length_s, stop)
        if found is None or (delays := found.slots.delay.tobytes()) in tried:
            break
        tried.add(delays)
        proved = float(found.seconds(gradient_bytes))
        if proved > best_s:
            best_s, best = proved, found
        low = max(low, proved)
        need, _ = found.slots.seconds(found.prices, found.tolls, gradient_bytes)
        high = min(high, max(length_s, math.inf if need is None else float(need)))
        if high <= low * (1 + NEAR) or stop.reached():
            break
        length_s = min((low + high) / 2, 2 * low)
    return best_s, best


class _Programs:
    """The linear programs of a network for slots of any length."""

    def __init__(
        self,
        topology: Topology,
        collective: Collective,
        shares: tuple[Fraction, ...] | None,
        gradient_bytes: float,
        slots: int | None,
    ) -> None:
        self.topology, self.shares, self.gradient_bytes = topology, shares, gradient_bytes
        self.stages: tuple[Collective, ...] = (collective,)
        if collective == "all_reduce":
            self.stages = ("reduce_scatter", "all_gather")
        self.arcs = arcs_of(topology)
        group = np.arange(topology.num_nodes, dtype=np.int32)[None]
        if shares is None or len(set(shares)) == 1:
            free = next(free_groups(topology), None)
            group = group if free is None else free.permutations
        self.orbits = Orbits.of(topology, self.arcs, group)
        flows = len(self.stages) * len(self.arcs.link) * topology.num_servers // len(group)
        self.slots = slots or int(np.clip(FLOWS // flows, FEWEST, MOST))

    def solve(self, length_s: float, stop: Stop) -> SlotPrices | None:
        """Prices for slots that take some time together; None where time ran out."""
        slots = Slots.of(self.topology, self.arcs, self.stages, self.shares, self.slots, length_s)
        (unit,) = units_of(self.topology, self.stages, False, self.shares)
        # In units of bytes: a gradient is one, and the time asked about is the unit of time.
        (rates,) = in_units(self.topology, (unit,))
        found = Program(slots, self.orbits, rates).solve(stop)
        return None if found is None else SlotPrices(slots, *map(tuple, found))
