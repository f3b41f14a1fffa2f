"""Prices of crossing cuts and links: why a collective takes so many seconds, in exact fractions."""

import dataclasses
import functools
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from gradweave.bounds.bound import named
from gradweave.bounds.flows import nodes_inside
from gradweave.schedule.schedule import Collective
from gradweave.topology.topology import Topology
from gradweave.topology.units import format_bandwidth

SHOWN = 4
"""Crossings that are named in words."""


@dataclasses.dataclass(frozen=True)
class Crossing:
    """A set of nodes whose boundary a stage must cross with at least what is rooted inside.

    Copies of it leave the set, since a server is outside; in a reduce-scatter contributions to it
    enter.
    """

    stage: Collective
    """``all_gather`` or ``reduce_scatter``."""
    servers: tuple[int, ...]
    """The servers inside."""
    switches: tuple[int, ...]
    """The switches inside."""
    price: int
    """What each byte of gradient that must cross is charged, in any unit."""


@dataclasses.dataclass(frozen=True)
class Toll:
    """What a stage's bytes are charged on leaving a switch, and given back on entering it.

    A switch sends what it receives, no more, so that it adds nothing on the whole.
    """

    stage: Collective
    switch: int
    price: int


@dataclasses.dataclass(frozen=True, eq=False)
class Prices:
    """Prices at which every byte of gradient pays at least `paid`, and links charge `charged`.

    A link direction's price is the largest that one of the stages has there: that of the sets whose
    boundaries it crosses, and the tolls of its ends. So all transfers of a gradient of M bytes
    together pay M·`paid` or more; in a second all links charge at most their bandwidths times their
    prices. Any prices prove a bound, and every number here is exact.
    """

    topology: Topology
    stages: tuple[Collective, ...]
    """One or both."""
    apart: bool
    """Whether a barrier separates both stages: then each has the links to itself for its time."""
    shares: tuple[Fraction, ...] | None
    """[N] the part of the gradient that each server roots; None where any may."""
    crossings: tuple[Crossing, ...]
    tolls: tuple[Toll, ...]

    @functools.cached_property
    def link_prices(self) -> NDArray:
        """[stages, L] the price of each link direction for a byte of each stage; integers."""
        topology = self.topology
        prices = np.zeros((len(self.stages), len(topology.source)), object)
        for k, stage in enumerate(self.stages):
            toll = np.zeros(topology.num_nodes, object)
            for one in self.tolls:
                toll[one.switch] += one.price if one.stage == stage else 0
            prices[k] = toll[topology.source] - toll[topology.target]
            for one in self.crossings:
                if one.stage == stage:
                    prices[k, self._crossed(one)] += one.price
        return np.maximum(prices, 0)

    def _crossed(self, crossing: Crossing) -> NDArray[np.bool_]:
        """[L] the link directions over which the crossing's bytes must go."""
        inside = np.zeros(self.topology.num_nodes, bool)
        inside[[*crossing.servers, *crossing.switches]] = True
        start, end = inside[self.topology.source], inside[self.topology.target]
        return start & ~end if crossing.stage == "all_gather" else end & ~start

    @functools.cached_property
    def paid(self) -> Fraction:
        """What a byte of the gradient pays at least, wherever it is rooted."""
        paid = np.zeros(self.topology.num_servers, object)
        for crossing in self.crossings:
            paid[self.topology.rank[list(crossing.servers)]] += crossing.price
        if self.shares is None:
            return Fraction(int(paid.min()))
        return sum((a * int(b) for a, b in zip(self.shares, paid, strict=True)), Fraction(0))

    @functools.cached_property
    def charged(self) -> Fraction:
        """What all link directions charge in a second at most, over prices times bytes."""
        prices = self.link_prices
        return max(map(self._charged, prices if self.apart else prices.max(axis=0)[None]))

    def _charged(self, prices: NDArray) -> Fraction:
        bandwidths, kind = np.unique(self.topology.bandwidth_bytes_per_s, return_inverse=True)
        charged = Fraction(0)
        for k, bandwidth in enumerate(bandwidths.tolist()):
            charged += Fraction(bandwidth) * int(prices[kind == k].sum())
        return charged

    @property
    def seconds_per_byte(self) -> Fraction:
        """Seconds that each byte of gradient takes at least, without latency."""
        return self.paid / self.charged if self.charged else Fraction(0)

    def seconds(self, gradient_bytes: float) -> Fraction:
        """The least time for a gradient, latency included as far as bytes must wait for it.

        A link direction is idle for the latency of the shortest route over it: before what it
        carries can have come so far, or while the last of that is still on its way. So in T seconds
        it carries at most its bandwidth times T less that latency, and T is the least for which all
        can charge what the gradient pays.

        Args:
            gradient_bytes: M.
        """
        due = self.paid * Fraction(gradient_bytes)
        waits = least_latency_over(self.topology)
        if self.apart or not self.charged:
            waiting = Fraction(float(waits.min())) * len(self.stages)
            return due / self.charged + waiting if self.charged and due else Fraction(0)
        prices = self.link_prices.max(axis=0)
        rate, level, time = Fraction(0), Fraction(0), Fraction(0)
        for wait in np.unique(waits[prices > 0]).tolist():
            following = Fraction(wait)
            if level + rate * (following - time) >= due:
                break
            level, time = level + rate * (following - time), following
            rate += self._charged(np.where(waits == wait, prices, 0))
        return time + (due - level) / rate if rate and due else Fraction(0)

    def __str__(self) -> str:
        ways: dict[tuple[str, int], list[str]] = {}
        for crossing in self.crossings:
            way, where = self._in_words(crossing)
            ways.setdefault((where, crossing.price), []).append(way)
        listed = sorted(ways.items(), key=lambda item: -item[0][1])
        words = [
            f"{' and '.join(way)} {where}" + (f" ({price} times)" if price > 1 else "")
            for (where, price), way in listed[:SHOWN]
        ]
        more = len(listed) - len(words)
        text = "; ".join(words) + (f"; and {more} more" if more else "")
        rate = format_bandwidth(float(self.charged / self.paid)) if self.paid else "any speed"
        return f"links take at most {rate} of gradient past these boundaries: {text}"

    def _in_words(self, crossing: Crossing) -> tuple[str, str]:
        """What crosses which way; and which boundary, named by its smaller side."""
        many = 2 * (len(crossing.servers) + len(crossing.switches)) > self.topology.num_nodes
        inside = np.zeros(self.topology.num_nodes, bool)
        inside[[*crossing.servers, *crossing.switches]] = True
        servers, switches = nodes_inside(self.topology, ~inside if many else inside)
        kinds = (("server", servers), ("switch", switches))
        within = " and ".join(named(kind, ids) for kind, ids in kinds if ids)
        into = (crossing.stage == "all_gather") == many
        what = "copies" if crossing.stage == "all_gather" else "sums"
        rooted = "elsewhere" if many else "there"
        return f"{what} {'into' if into else 'out of'}", f"{within}, of all rooted {rooted}"


def priced(
    topology: Topology,
    stages: tuple[Collective, ...],
    apart: bool,
    shares: tuple[Fraction, ...] | None,
    sets: Sequence[tuple[Collective, NDArray[np.bool_], int]],
    tolls: Sequence[tuple[Collective, int, int]] = (),
) -> Prices:
    """Prices from sets of nodes [V] with a stage and a price each; those of price zero left out."""
    crossings = tuple(
        Crossing(stage, *nodes_inside(topology, inside), price)
        for stage, inside, price in sets
        if price
    )
    charges = tuple(Toll(*toll) for toll in tolls if toll[2])
    return Prices(topology, stages, apart, shares, crossings, charges)


@functools.lru_cache(maxsize=4)
def least_latency_over(topology: Topology) -> NDArray[np.float64]:
    """[L] the least latency of a route between servers, through switches, over each link direction.

    No transfer that passes it takes less, and none holds it while its last byte is under way.
    """
    before = _to_nearest_server(topology, topology.source, topology.target)
    after = _to_nearest_server(topology, topology.target, topology.source)
    return before[topology.source] + topology.latency_s + after[topology.target]


def _to_nearest_server(topology: Topology, near: NDArray, far: NDArray) -> NDArray[np.float64]:
    least = np.where(topology.is_server, 0.0, np.inf)
    while True:
        shorter = least.copy()
        np.minimum.at(shorter, far, least[near] + topology.latency_s)
        if np.array_equal(shorter, least):
            return least
        least = shorter
