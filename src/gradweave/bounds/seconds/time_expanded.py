"""Minimum times for small networks where latency and bytes add up: a program over time slots."""

import dataclasses
import functools
import math
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradweave.bounds.bound import Certificate, Name
from gradweave.bounds.classes import (
    ROUTES_PASS_SERVERS,
    SUMS_MEET_ANYWHERE,
    SWITCHES_ADD,
    UNEQUAL_PARTS,
    impossible_on,
)
from gradweave.bounds.scale import in_units, units_of
from gradweave.bounds.seconds.least_seconds import (
    Shares,
    checked_shares,
    least_seconds,
)
from gradweave.bounds.seconds.time_expanded_program import Program, StateOrbits
from gradweave.bounds.seconds.time_slots import SlottedTime, arcs_of
from gradweave.common import clock
from gradweave.common.stop import Stop
from gradweave.common.wording import counted, listed
from gradweave.errors import OptionError
from gradweave.schedules.schedule import Collective
from gradweave.topology.spec import TopologyLike, as_topology
from gradweave.topology.symmetry import known_generators
from gradweave.topology.topology import Topology
from gradweave.topology.units import ROUNDING, as_size

MAX_SERVERS = 64
"""Servers up to which the bound is tried."""
FLOWS = 24_000
"""Most variables without a time limit; each solution takes a second or two."""
FLOWS_IN_TIME = 200_000
"""The same with a time limit, which usually ends the search before."""
FEWEST, MOST = 8, 128
"""Range of the number of slots that is chosen by default."""
MAX_SLOTS = 1000
"""Maximum number of slots that a caller may ask for."""
FINER = 1.5
"""Factor from one number of slots to the next."""
SLOWER = 2.0
"""Factor by which the next number of slots takes longer: measured values are 1.5 to 2.5."""
SOLUTIONS = 6
"""Most solutions for one number of slots, each with another slot length."""
NEAR = 2e-3
"""Relative distance between the bound and its possible maximum at which the search ends."""
HOPELESS = 0.85
"""Fraction of the known bound that slots must prove before more are tried: on unequal networks five
times as many slots proved 14 to 22 % more."""
BEYOND = 0.01
"""Relative distance above the best bound at which the search with more slots begins."""
SHOWN = 3
"""Number of links that a sentence names."""


@dataclasses.dataclass(frozen=True, eq=False)
class SlotPrices(Certificate):
    """The price of each link in each slot of time, which proves a lower bound for trees.

    Any non-negative prices prove some bound; these come from the linear program's dual solution.
    """

    collective: Collective
    gradient_bytes: float
    slots: SlottedTime
    prices: tuple[NDArray[np.float64], ...]
    """For each stage, [K, A, N]: price of an arc in a slot, per server whose bytes use it."""
    tolls: tuple[NDArray[np.float64], ...]
    """For each stage, [K, S]: price of entering a switch, refunded on leaving it."""

    @functools.cached_property
    def times(self) -> tuple[Fraction | None, Fraction | None]:
        """The two times of `SlottedTime.seconds`, recounted in integers and fractions."""
        return self.slots.seconds(self.prices, self.tolls, self.gradient_bytes)

    @property
    def exact(self) -> Fraction:
        """The bound that the prices prove: the smaller of the two times."""
        return min((one for one in self.times if one is not None), default=Fraction(0))

    @property
    def seconds(self) -> float:
        """The same in floats, rounded down."""
        return float(self.exact) * (1 - ROUNDING)

    @property
    def holds_unless(self) -> frozenset[str]:
        """Liberties that void the bound if a schedule takes one; see `gradweave.bounds.classes`."""
        unless = {SUMS_MEET_ANYWHERE, SWITCHES_ADD, ROUTES_PASS_SERVERS}
        unless |= {UNEQUAL_PARTS} if self.collective != "all_reduce" else set()
        return frozenset(unless) - impossible_on(self.slots.topology)

    def in_integers(self) -> tuple[list[NDArray[np.int64]], list[NDArray[np.int64]]]:
        """Prices [K, A, N] and tolls [K, S] of each stage, in the integers that are recounted."""
        return self.slots.in_integers(self.prices, self.tolls)

    def step(self) -> dict[str, Any]:
        """The prices as a step of a certificate.

        A link whose latency differs between a switch's uses has the smallest price.
        """
        slots = self.slots
        prices, tolls = self.in_integers()
        arcs, servers = slots.arcs, slots.topology.servers
        rows: list[list[int]] = []
        for number, each in enumerate(prices):
            of_link = np.full((slots.count, len(slots.topology.source), len(servers)), 1 << 62)
            for arc, link in enumerate(arcs.link.tolist()):
                np.minimum(of_link[:, link], each[:, arc], out=of_link[:, link])
            used = (part.tolist() for part in np.nonzero(of_link))
            for slot, link, rank in zip(*used, strict=True):
                price = int(of_link[slot, link, rank])
                rows.append([number, slot, link, int(servers[rank]), price])
        single = np.flatnonzero(arcs.level == 0)
        charges = [
            [number, int(slot), int(arcs.node[single[at]]), int(each[slot, single[at]])]
            for number, each in enumerate(tolls)
            for slot, at in zip(*np.nonzero(each[:, single]), strict=True)
        ]
        return {
            "kind": "slots",
            "stage": self.collective,
            "slots": slots.count,
            "length_s": str((slots.longest or Fraction(self.seconds)) * (1 - Fraction(1, 10**12))),
            "prices": rows,
            "tolls": charges,
        }

    def reason(self, name: Name = str) -> str:
        """The links with the highest charges, by their names in the network."""
        topology = self.slots.topology
        charged = self.slots.charged_by_link(self.prices, self.tolls)
        links = np.argsort(-charged, kind="stable")[:SHOWN]
        names = [topology.link_name(int(link)) for link in links if charged[link] > 0]
        slots = counted(self.slots.count, "slot")
        if not names:
            return f"messages do not arrive in {slots}"
        of_all = charged[links].sum() / charged.sum()
        return (
            f"sums and copies must wait for their inputs, and in {slots} of time links carry no "
            f"more; {of_all:.0%} of the charges are on {listed(names, SHOWN)}"
        )


def time_expanded(
    topology: TopologyLike,
    gradient_bytes: float | str,
    *,
    collective: Collective = "all_reduce",
    slots: int | None = None,
    shares: Shares = "any",
    time_limit: float | None = None,
    upper_s: float | None = None,
    lower_s: float = 0.0,
) -> SlotPrices | None:
    """The minimum time for a collective built from trees, where latency and bytes add up.

    `least_seconds` is the larger of the times that latency and bytes need; a schedule pays both.
    `seconds_bound` takes the largest of all if it is given a number of slots.
    Here time is cut into K slots, and a linear program finds the minimum slot length, with these
    variables:

    - turns: how much each server has fully summed, and can start to copy, in each slot. They sum to
      one.
    - flows: the contributions of each server move through time to the turns, and copies move from
      there to each server. Servers may keep bytes, switches may not.
    - loads: for each stage, the bytes on a link in a slot, at least those of each server's flow. A
      switch sends what it receives. The total is at most the bandwidth times the slot length.

    *The bound holds for all schedules of trees* in which each part of the gradient, of any size, is
    summed at one root, over routes through switches only. Stamp each byte with the moment at which
    a link sends it, which is at least the message's overhead after the message starts. In the
    models of `gradweave.simulator.seconds` all links of a route send together, and the message
    arrives at least the latencies of the route later. Set the links' clocks back by the overhead.
    By that clock a server has each byte before it sends it, and the byte is received no sooner than
    latency plus overhead after it was sent. So a byte sent in slot t arrives in slot
    t + ⌊(latency + overhead) K / T⌋ or later, where T is the time of all slots, and may be sent on
    in the slot in which it arrives. The flows are the paths of each server in the trees of
    messages; a message carries each of its bytes for all servers behind it.

    With d slots for each link's delay, a schedule of T seconds is a solution as long as
    T ≤ delay · K / d for every link. So the bound is the smaller of two times: K times the minimum
    slot length, and the smallest of those limits. It is computed for several T, and the best is
    used.

    The certificate is the dual solution: prices on links in slots. By weak duality each byte pays
    at least its contributions' cheapest paths to some root and slot plus its copies' cheapest paths
    from there, and links charge at most their bandwidths times their highest prices. Any prices
    prove a bound. Cheapest paths and charges are recomputed in integers and fractions, so solver
    errors can only lower the bound.

    `SlotPrices.holds_unless` states that kind. The program ignores that trees may not fit the
    flows, that a message arrives as a whole and that overheads hold links. Among bytes that meet at
    a switch it distinguishes only a few latencies; others are rounded down to one of these.

    Args:
        topology: the network, of at most `MAX_SERVERS` servers.
        gradient_bytes: size of the whole gradient.
        collective: a stage, or both, which overlap.
        slots: K; more slots prove more and take longer. By default ever more, for a few seconds or
            as long as the time limit allows.
        shares: the part of the gradient that each server roots, as in `least_seconds`.
        time_limit: seconds after which the solver ends and no further slot length is tried.
        upper_s: the time of a known schedule, if any, which narrows the search.
        lower_s: a known bound; the search is for larger ones.

    Returns:
        The certificate of the largest bound found, or None without bytes, or if the time is too
        short for the network.

    Raises:
        OptionError: for too many servers, or invalid numbers.

    Source: Ford and Fulkerson, "Constructing maximal dynamic flows from static flows", 1958; Liu et
        al., "Rethinking machine learning collective communication as a multi-commodity flow
        problem" (TE-CCL), 2024, whose program finds schedules of chunks; docs/concepts/bounds.md.

    >>> import gradweave as gw
    >>> link = gw.topology.Link(bandwidth_bytes_per_s=1e9, latency_s=1e-3)
    >>> ring = gw.topology.ring(4, link=link)
    >>> plain, bound = gw.bounds.least_seconds(ring, 4e6), gw.bounds.time_expanded(ring, 4e6)
    >>> f"{1e3 * plain.seconds:.1f} ms, {1e3 * bound.seconds:.1f} ms"
    '4.0 ms, 4.5 ms'
    """
    topology = as_topology(topology)
    gradient_bytes = as_size(gradient_bytes)
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
    least_s = least_seconds(topology, gradient_bytes, collective, shares=shares).seconds
    if not gradient_bytes or least_s <= 0:
        return None
    given = checked_shares(shares, topology.num_servers)
    programs = _Programs(topology, collective, given, gradient_bytes)
    least_s = max(least_s, lower_s)
    # The optimum is between the two, at a ratio that is not known: the geometric mean is the
    # middle.
    length_s = math.sqrt(least_s * upper_s) if upper_s and upper_s > least_s else least_s
    if slots:
        return _search(programs, slots, least_s, length_s, upper_s, stop)
    best, count = None, programs.fewest(length_s)
    most = FLOWS if time_limit is None else FLOWS_IN_TIME
    if time_limit is not None and count * programs.flows > most:
        return None
    while True:
        begun = clock.now()
        found = _search(programs, count, least_s, length_s, upper_s, stop)
        if best is None or (found is not None and found.exact > best.exact):
            best = found
        length_s = (1 + BEYOND) * max(least_s, 0.0 if best is None else best.seconds)
        count = programs.fitting(math.ceil(FINER * count), length_s)
        next_s = SLOWER * (clock.now() - begun)
        if found is None or count > MOST or count * programs.flows > most:
            return best
        if found.seconds < HOPELESS * lower_s:
            return best
        if next_s > stop.seconds_left or (upper_s and length_s >= upper_s):
            return best


def _search(
    programs: "_Programs",
    count: int,
    least_s: float,
    length_s: float,
    upper_s: float | None,
    stop: Stop,
) -> SlotPrices | None:
    """The best bound over several slot lengths.

    Slots of any length prove a bound. The longer they are, the fewer slots a message's delay takes
    and the less they prove. Once they prove less than their total length, no longer slots can help:
    the best length is where both are equal.
    """
    best = None
    low, high = least_s, upper_s or math.inf
    tried = set[bytes]()
    for _ in range(SOLUTIONS):
        slots = programs.slots(count, length_s)
        if (delays := slots.delay.tobytes()) in tried or (
            found := programs.solve(slots, stop)
        ) is None:
            break
        tried.add(delays)
        if found.exact > (best.exact if best else 0):
            best = found
        low = max(low, float(found.exact))
        need, _ = found.times
        high = min(high, max(length_s, math.inf if need is None else float(need)))
        if high <= low * (1 + NEAR) or stop.reached():
            break
        length_s = min((low + high) / 2, 2 * low)
    return best


class _Programs:
    """The linear programs of a network for slots of any length."""

    def __init__(
        self,
        topology: Topology,
        collective: Collective,
        shares: tuple[Fraction, ...] | None,
        gradient_bytes: float,
    ) -> None:
        self.topology, self.shares, self.gradient_bytes = topology, shares, gradient_bytes
        self.collective: Collective = collective
        self.stages: tuple[Collective, ...] = (collective,)
        if collective == "all_reduce":
            self.stages = ("reduce_scatter", "all_gather")
        self.arcs = arcs_of(topology)
        alike = shares is None or len(set(shares)) == 1
        generators = known_generators(topology) if alike else []
        self.orbits = StateOrbits.of(topology, self.arcs, generators)
        self.flows = len(self.stages) * (int(self.orbits.arc_server.max()) + 1)
        """Variables per slot."""
        self._delays = np.unique(self.arcs.delay_s[self.arcs.delay_s > 0])

    def fewest(self, length_s: float) -> int:
        """The number of slots to begin with, with which some delay takes a slot.

        Args:
            length_s: total length of all slots.
        """
        longest = float(self._delays.max(initial=0.0))
        if longest * MOST < length_s:
            return FEWEST  # no number would be enough
        return self.fitting(max(FEWEST, math.ceil(length_s / longest)), length_s)

    def fitting(self, count: int, length_s: float) -> int:
        """A number of slots that rounds delays down least, from `count` to a quarter more.

        Args:
            count: slots.
            length_s: total length of all slots.
        """

        def kept(count: int) -> float:
            return float(np.floor(self._delays * (count / length_s)).sum()) / count

        return max(range(count, count + count // 4 + 1), key=kept)

    def slots(self, count: int, length_s: float) -> SlottedTime:
        """Slots with some total length.

        Args:
            count: number of slots.
            length_s: their total length.
        """
        return SlottedTime.of(self.topology, self.arcs, self.stages, self.shares, count, length_s)

    def solve(self, slots: SlottedTime, stop: Stop) -> SlotPrices | None:
        """Prices for some slots, or None if time ran out.

        Args:
            slots: the slots.
            stop: ends the solver.
        """
        (unit,) = units_of(self.topology, self.stages, False, self.shares)
        # In units of bytes: a gradient is one unit, and the given time is the unit of time.
        (rates,) = in_units(self.topology, (unit,))
        found = Program(slots, self.orbits, rates).solve(stop)
        if found is None:
            return None
        return SlotPrices(self.collective, self.gradient_bytes, slots, *map(tuple, found))
