"""A network in time slots: where bytes can be in each slot, and what they pay on the way."""

import dataclasses
import functools
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from gradweave.bounds.distances import node_distances
from gradweave.bounds.prices import Prices
from gradweave.schedules.schedule import Collective
from gradweave.topology.topology import Topology

MAX_CLASSES = 4
"""Number of latencies that are distinguished among bytes that a switch forwards. The others are
rounded down to one of these, so the bound stays valid."""
COST_BITS = 36
"""Bits of the highest price of an arc in a slot: finer than a solver's tolerance, and sums fit."""
NEVER = 1 << 55
"""Marks an unreachable place; it exceeds the cost of any path."""


@dataclasses.dataclass(frozen=True, eq=False)
class Arcs:
    """Link directions, one copy for each latency that their bytes can have accumulated.

    A message holds all links of its route at once and arrives after their latencies. So bytes cross
    switches in no time; the states record the latency so far, and all of it passes on the last
    link. A state is a node: a server, or a switch with one of its distinguished latencies.
    """

    link: NDArray[np.int64]
    """[A] the link direction."""
    tail: NDArray[np.int64]
    """[A] the state where it begins."""
    head: NDArray[np.int64]
    """[A] the state where it ends."""
    delay_s: NDArray[np.float64]
    """[A] time from the use of the arc until its bytes have arrived: 0 at switches; at servers the
    route's latency and overhead, or less."""
    node: NDArray[np.int64]
    """[S] the node of each state."""
    level: NDArray[np.int64]
    """[S] the index of its latency."""
    servers: NDArray[np.int64]
    """[N] the state of each server. Its number differs from the node's behind a switch of several
    states."""

    def turned(self) -> "Arcs":
        """The arcs in reversed time, each from its head to its tail."""
        return dataclasses.replace(self, tail=self.head, head=self.tail)

    def moved(self, permutation: NDArray, topology: Topology) -> tuple[NDArray, NDArray]:
        """[S] and [A]: the images of states and arcs under an automorphism.

        Args:
            permutation: [V] the images of the nodes.
            topology: the network.
        """
        levels = int(self.level.max()) + 1
        state = np.full(topology.num_nodes * levels, -1)
        state[self.node * levels + self.level] = np.arange(len(self.node))
        states = state[permutation[self.node] * levels + self.level]
        ends = permutation[topology.source[self.link]], permutation[topology.target[self.link]]
        key = topology.find_links(*ends) * len(self.node) + states[self.tail]
        own = self.link * len(self.node) + self.tail
        order = np.argsort(own)
        return states, order[np.searchsorted(own[order], key)]


def arcs_of(topology: Topology) -> Arcs:
    """The arcs of a network.

    Args:
        topology: the network.
    """
    levels = _levels(topology)
    node = np.concatenate([np.full(len(known), v) for v, known in enumerate(levels)])
    first = np.concatenate([[0], np.cumsum([len(known) for known in levels])])
    level = np.arange(len(node)) - first[node]
    entering = topology.is_server[topology.source] & ~topology.is_server[topology.target]
    least_overhead = float(topology.overhead_s[entering].min(initial=np.inf))
    link = np.repeat(np.arange(len(topology.source)), np.diff(first)[topology.source])
    counted = np.arange(len(link))
    begins = np.searchsorted(link, np.arange(len(topology.source)))
    tail = first[topology.source[link]] + counted - begins[link]
    behind = np.concatenate(levels)[tail] + topology.latency_s[link]
    target = topology.target[link]
    # The highest distinguished latency that is not above what has accumulated.
    head = np.array(
        [
            first[v] + max(int(np.searchsorted(levels[v], after * (1 + 1e-12), "right")) - 1, 0)
            for v, after in zip(target.tolist(), behind.tolist(), strict=True)
        ]
    )
    direct = topology.is_server[topology.source[link]]
    overhead = np.where(direct, topology.overhead_s[link], least_overhead)
    arrives = topology.is_server[target]
    head = np.where(arrives, first[target], head)
    delay = np.where(arrives, behind + overhead, 0.0)
    return Arcs(link, tail, head, delay, node, level, first[topology.servers])


def _levels(topology: Topology) -> list[NDArray[np.float64]]:
    """For each node, the distinguished latencies of bytes that pass it, in ascending order."""
    inside = ~topology.is_server[topology.source] | ~topology.is_server[topology.target]
    cost = np.where(inside, topology.latency_s, np.inf)
    # Routes end at servers, so no path leads through a server: each has separate links.
    out = topology.is_server[topology.source]
    levels: list[NDArray[np.float64]] = [np.zeros(1)] * topology.num_nodes
    if not len(topology.switches):
        return levels
    through = np.where(out, np.inf, cost)
    distances = [
        node_distances(
            np.array([switch]), through, (topology.source, topology.target), topology.num_nodes
        )[:, 0]
        for switch in topology.switches.tolist()
    ]
    for switch, distance in zip(topology.switches.tolist(), distances, strict=True):
        known = np.unique((cost + distance[topology.target])[out])
        known = known[np.isfinite(known)]
        known = known[np.concatenate([[True], np.diff(known) > 1e-12 * known[1:]])]
        chosen = np.unique(np.linspace(0, len(known) - 1, min(len(known), MAX_CLASSES)).astype(int))
        levels[switch] = known[chosen]
    return levels


def cheapest(arcs: Arcs, delay: NDArray[np.int64], cost: NDArray[np.int64]) -> NDArray[np.int64]:
    """[K, S, N] minimum cost of being in a state by a slot, from each server at the start.

    Bytes may wait at servers but not at switches. Unreachable states cost `NEVER` or more.

    Args:
        arcs: the network's arcs.
        delay: [A] slots from the use of an arc until its bytes have arrived.
        cost: [K, A, N] cost of using an arc in a slot, for each server's contribution.
    """
    slots, servers, count = len(cost), arcs.servers, len(arcs.servers)
    waits = np.isin(np.arange(len(arcs.node)), servers)
    least = np.full((slots, len(arcs.node), count), NEVER)
    least[0, servers, np.arange(count)] = 0
    at_once, later = np.flatnonzero(delay == 0), np.flatnonzero(delay > 0)
    for slot in range(slots):
        here = least[slot]
        if slot:
            here[waits] = np.minimum(here[waits], least[slot - 1][waits])
        while True:
            before = here.copy()
            np.minimum.at(here, arcs.head[at_once], here[arcs.tail[at_once]] + cost[slot, at_once])
            if np.array_equal(here, before):
                break
        on_time = later[slot + delay[later] < slots]
        if len(on_time):
            np.minimum.at(
                least,
                (slot + delay[on_time], arcs.head[on_time]),
                here[arcs.tail[on_time]] + cost[slot, on_time],
            )
    return least


def longest_valid(arcs: Arcs, delay: NDArray[np.int64], slots: int) -> Fraction | None:
    """The largest total length of all slots for which no arc's slots exceed its delay.

    Args:
        arcs: the network's arcs.
        delay: [A] slots that each arc takes.
        slots: K.

    Returns:
        Seconds, or None if no arc takes any slots, so that any length is valid.
    """
    late = np.flatnonzero(delay)
    if not len(late):
        return None
    # Floats find the few arcs that may decide, fractions the exact minimum among them.
    least = (arcs.delay_s[late] / delay[late]).argsort()[:8]
    return min(Fraction(float(arcs.delay_s[a])) * slots / int(delay[a]) for a in late[least])


@dataclasses.dataclass(frozen=True, eq=False)
class SlottedTime:
    """A network's time in slots of equal length, and the number of slots that each arc takes."""

    topology: Topology
    arcs: Arcs
    stages: tuple[Collective, ...]
    shares: tuple[Fraction, ...] | None
    """[N] the part of the gradient that each server roots, or None if any split is allowed."""
    count: int
    """K."""
    delay: NDArray[np.int64]
    """[A] slots."""

    @classmethod
    def of(
        cls,
        topology: Topology,
        arcs: Arcs,
        stages: tuple[Collective, ...],
        shares: tuple[Fraction, ...] | None,
        count: int,
        length_s: float,
    ) -> "SlottedTime":
        """Slots for a collective that takes a given time.

        Args:
            topology: the network.
            arcs: its arcs.
            stages: one stage or both.
            shares: [N] of the roots; any split if not given.
            count: K.
            length_s: total length of all slots.
        """
        delay = np.minimum(np.floor(arcs.delay_s * (count / length_s)), count).astype(np.int64)
        return cls(topology, arcs, stages, shares, count, delay)

    @functools.cached_property
    def longest(self) -> Fraction | None:
        """Total seconds up to which the arcs take this many slots, or None for any length."""
        return longest_valid(self.arcs, self.delay, self.count)

    @functools.cached_property
    def mirrored(self) -> bool:
        """Whether copies behave like contributions with time and all links reversed.

        Through switches they do not: a message's latency passes on its last link.
        """
        topology = self.topology
        both = len(self.stages) == 2 and not len(topology.switches)
        return both and all(
            np.array_equal(each, each[topology.opposite])
            for each in (topology.bandwidth_bytes_per_s, topology.latency_s, topology.overhead_s)
        )

    def arcs_in(self, stage: Collective) -> Arcs:
        """Arcs from the contributions' viewpoint: copies move backward in time and space."""
        return self.arcs if stage == "reduce_scatter" else self.arcs.turned()

    def used_at(self, stage: Collective, slots: NDArray, arcs: NDArray) -> NDArray:
        """The slot in which an arc is used, given the slot in the stage's direction of time."""
        return slots if stage == "reduce_scatter" else self.count - 1 - self.delay[arcs] - slots

    def seconds(
        self, prices: Sequence[NDArray], tolls: Sequence[NDArray], gradient_bytes: float
    ) -> tuple[Fraction | None, Fraction | None]:
        """The bound from dual values, in exact arithmetic: the smaller of two times.

        Every contribution pays for each use of an arc on a cheapest path to the root, and every
        copy on its path from there; all links together charge at most their bandwidths times the
        highest price in each slot. See `time_expanded`.

        Args:
            prices: for each stage, [K, A, N]: price of leaving an arc's tail in a slot, in the
                stage's direction of time, for each server's contributions or copies; 0 or more.
            tolls: for each stage, [K, S]: price of entering a state, refunded on leaving it;
                nonzero only at switches.
            gradient_bytes: M.

        Returns:
            The minimum total time of all slots, None if infinite; and the time up to which arcs
            take this many slots, None for any.
        """
        whole, charges = self.in_integers(prices, tolls)
        most = self.longest
        paid = self._paid(whole)
        if paid is None:
            return None, most
        highest = self._highest_charges(whole, charges).sum(axis=0)
        charged = Prices(self.topology, highest[None]).offered
        if not charged:
            return Fraction(0), most
        return Fraction(gradient_bytes) * paid * self.count / charged, most

    def charged_by_link(
        self, prices: Sequence[NDArray], tolls: Sequence[NDArray]
    ) -> NDArray[np.float64]:
        """[L] total charge of each link direction over all slots, in any unit."""
        highest = self._highest_charges(*self.in_integers(prices, tolls)).sum(axis=0)
        return highest * self.topology.bandwidth_bytes_per_s

    def in_integers(
        self, prices: Sequence[NDArray], tolls: Sequence[NDArray]
    ) -> tuple[list[NDArray[np.int64]], list[NDArray[np.int64]]]:
        """A solver's prices and tolls as integers in one unit.

        Args:
            prices: as in `seconds`.
            tolls: as in `seconds`.
        """
        most = max(one.sum(axis=2).max(initial=0.0) for one in prices)
        scale = 2.0**COST_BITS / (most or 1.0)
        limit = 2.0**COST_BITS  # caps tolls, which may be huge if the solver diverged
        charges = [np.clip(np.rint(one * scale), -limit, limit).astype(np.int64) for one in tolls]
        for toll in charges:
            toll[:, self.arcs.servers] = 0  # servers may keep bytes
        return [np.floor(np.maximum(one, 0) * scale).astype(np.int64) for one in prices], charges

    def _paid(self, prices: Sequence[NDArray[np.int64]]) -> Fraction | None:
        """Minimum payment of a byte of the gradient, or None if no byte reaches all in time."""
        servers = self.arcs.servers
        paid = np.zeros((self.count, len(servers)), np.int64)
        for stage, cost in zip(self.stages, prices, strict=True):
            cost = np.where(self.possible[:, :, None], cost, NEVER)
            least = cheapest(self.arcs_in(stage), self.delay, cost)[:, servers]
            to_root = np.minimum(least, NEVER).sum(axis=2)
            paid += to_root if stage == "reduce_scatter" else to_root[::-1]
        cheapest_turn = paid.min(axis=0)
        if self.shares is None:
            least = int(cheapest_turn.min())
            return None if least >= NEVER else Fraction(least)
        rooted = [(a, int(b)) for a, b in zip(self.shares, cheapest_turn, strict=True) if a]
        if max(b for _, b in rooted) >= NEVER:
            return None
        return sum((a * b for a, b in rooted), Fraction(0))

    @functools.cached_property
    def possible(self) -> NDArray[np.bool_]:
        """[K, A] whether bytes that leave an arc's tail in a slot arrive before the end."""
        return np.arange(self.count)[:, None] + self.delay < self.count

    def _highest_charges(
        self, prices: Sequence[NDArray[np.int64]], tolls: Sequence[NDArray[np.int64]]
    ) -> NDArray[np.int64]:
        """[K, L] maximum charge of a byte for a link direction in a slot."""
        highest = np.zeros((self.count, len(self.topology.source)), np.int64)
        for stage, cost, toll in zip(self.stages, prices, tolls, strict=True):
            arcs = self.arcs_in(stage)
            slots, arc = np.nonzero(self.possible)
            price = cost.sum(axis=2)[slots, arc]
            price += toll[slots + self.delay[arc], arcs.head[arc]] - toll[slots, arcs.tail[arc]]
            np.maximum.at(highest, (self.used_at(stage, slots, arc), arcs.link[arc]), price)
        return highest
