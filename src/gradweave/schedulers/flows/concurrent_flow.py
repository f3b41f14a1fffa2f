"""Flows along paths that minimise the busiest link's load, and link lengths that prove it."""

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gradweave.bounds.bound import Bound
from gradweave.bounds.demands.demand_bound import demand_bound, demand_rounds
from gradweave.bounds.prices import Unit
from gradweave.bounds.seconds_bound import SecondsBound
from gradweave.common.stop import UNLIMITED, Stop
from gradweave.errors import OptionError
from gradweave.schedulers.flows.concurrent_flow_kernel import (
    FlowPaths,
    OrbitGraph,
    OrbitPrices,
    Sources,
    Work,
    improve,
    no_paths,
    no_work,
    paid,
)
from gradweave.schedulers.flows.messages import Messages
from gradweave.topology.symmetry import FreeGroup, automorphism_generators, moved_links, orbits_of

FIRST_SHARPNESS, SHARPNESS, MAX_SHARPNESS = 5.0, 20.0, 300.0
"""Sharpness of prices in the first pass, from the second pass on, and at most. At sharpness s, a
load higher by 1/s of the bound has e times the price. If prices are sharp too early, the first
paths are poor."""
FAR = 2.0
"""Multiple of the bound above which prices are less sharp, in proportion to loads: with few
messages on a large network, too little would move at a time otherwise."""
SHARPER = 1.05
"""Factor by which prices get sharper with each pass. Twice as fast, or with doublings, more passes
were needed."""
REWEIGHTED = 10
"""Number of passes after which the current prices are used as multipliers for the next passes (the
exponential method of multipliers). Loads then become equal although prices get no sharper."""
LEAST_MULTIPLIER = 1e-12
"""Smallest multiplier relative to the largest, so that every link keeps a price."""
NEXT_TO_NOTHING = 1e-6
"""Share of the largest capacity below which a link is left out, if all messages have other paths.
Kilobytes per second next to gigabytes occur when a link is meant for one direction only; loads then
differ by so many powers of ten that the search does not end."""


@dataclasses.dataclass(frozen=True, eq=False)
class ConcurrentFlow:
    """Flows along paths, and the minimum load that any flows need.

    On a symmetric network it holds the messages of one server per orbit. The other messages are
    images of these, divided equally among the automorphisms, so that links of an orbit have equal
    loads.
    """

    messages: Messages
    unit: Unit
    sources: Sources
    paths: FlowPaths
    orbit: NDArray[np.int64]
    """[L] orbit of link directions with equal load; without symmetry each is an orbit."""
    load: NDArray[np.float64]
    """[L] flow over each link direction divided by its capacity: fractional seconds or rounds."""
    length: NDArray[np.float64]
    """[L] link lengths with the strongest bound, at least 0: duals of the linear program."""
    bound: float
    """The bound that the lengths prove, in floats; see `proof` for the exact value."""
    multiplier: NDArray[np.float64]
    """[L] multipliers of prices at the end, to continue from."""
    sharpness: float
    """Sharpness of prices at the end."""

    @property
    def time(self) -> float:
        """The busiest link's load: the duration of the messages if cut into small enough parts."""
        return float(self.load.max())

    @property
    def gap(self) -> float:
        """How far `time` is above `bound`, as a share of it."""
        return self.time / self.bound - 1

    @functools.cached_property
    def proof(self) -> SecondsBound | Bound:
        """The bound of the lengths as small integers, counted independently of the search."""
        make = demand_bound if self.unit == "seconds" else demand_rounds
        return make(self.messages.topology, self.messages.demand, lengths=self.length)


def concurrent_flow(
    messages: Messages,
    unit: Unit = "seconds",
    *,
    symmetric: bool | FreeGroup = True,
    tolerance: float = 1e-3,
    known: ConcurrentFlow | None = None,
    max_passes: int | None = None,
    stop: Stop = UNLIMITED,
) -> ConcurrentFlow:
    """Minimises the busiest link's load: the fractional maximum concurrent flow.

    Args:
        messages: the messages; paths pass through switches, and through servers that may relay.
        unit: whether links carry their bandwidths or, per round, their capacities.
        symmetric: whether to look for automorphisms that leave the messages unchanged, or a group
            of such automorphisms; each orbit of sources and of links is then handled once.
        tolerance: gap at which the search ends.
        known: the flow of other messages on this network, to start from; both without symmetry.
        max_passes: number of passes over all messages after which the search ends.
        stop: when to end the search; the first pass always finishes.

    Raises:
        OptionError: if a server cannot be reached, or `known` has another network or unit.

    Source: Jayakrishnan et al., "A faster path-based algorithm for traffic assignment", 1994
        (gradient projection); Tseng and Bertsekas, "On the convergence of the exponential
        multiplier method for convex programming", 1993.

    >>> import gradweave as gw
    >>> mesh = gw.topology.from_spec("mesh:4x4")
    >>> pieces = gw.schedules.collective("all_to_all", range(16), 16)
    >>> flow = concurrent_flow(Messages(mesh, pieces), "rounds")
    >>> f"{flow.time:.1f}", flow.proof.rounds  # 8 · 8 messages over 4 links
    ('16.0', 16)
    """
    if isinstance(symmetric, FreeGroup):
        generators: Sequence[NDArray[np.int32]] = [*symmetric.permutations]
    else:
        generators = _generators(messages) if symmetric else []
    search = _Search(messages, unit, generators)
    if known is not None:
        search.start_from(known)
    while True:
        search.improve()
        ended = search.judge() <= tolerance or search.passes == max_passes
        if ended or search.waits(stop):
            return search.flow()


class _Search:
    """The state between passes. Loads are relative to the bound of equal lengths: about one."""

    def __init__(
        self, messages: Messages, unit: Unit, generators: Sequence[NDArray[np.int32]]
    ) -> None:
        """Args: the messages, the unit, and automorphisms that leave messages unchanged."""
        self.messages = messages
        self.unit: Unit = unit
        topology = messages.topology
        links = [moved_links(topology, one) for one in generators]
        self.orbit = orbits_of(links, len(topology.source))
        self.sources = _sources(messages, orbits_of(generators, topology.num_nodes))
        self.size = np.bincount(self.orbit)
        self.capacity = np.zeros(len(self.size))
        self.capacity[self.orbit] = messages.capacity(unit)
        self.left_out = _left_out(messages, unit)
        # The bound of equal lengths becomes the unit of load; it is found in any unit first.
        self.graph = self._graph(1.0)
        self.work: Work = no_work(self.graph)
        ones = np.ones(len(self.size))
        even = OrbitPrices(ones, ones, ones, np.ones(2))
        self.scale = self._proven(even)
        self.graph = self._graph(self.scale)
        self.bound, self.length = 1.0, self._lengths(even)
        self.multiplier, self.sharpness = np.ones(len(self.size)), FIRST_SHARPNESS
        self.load = np.zeros(len(self.size))
        self.paths: FlowPaths = no_paths(0, 0)
        self.passes, self.judged = 0, 0

    def _graph(self, scale: float) -> OrbitGraph:
        """The network; `scale` is the load that counts as one."""
        source, target, nodes = self.messages.ends
        target = np.where(self.left_out, source, target)  # a loop is on no shortest path
        first = np.searchsorted(source, np.arange(nodes + 1)).astype(np.int64)
        unit = 1 / (self.size * self.capacity * scale)
        return OrbitGraph(first, source, target, self.orbit, unit)

    def _proven(self, prices: OrbitPrices) -> float:
        """The bound of some prices, in units of load; a link's length is its price per capacity."""
        due = paid(self.graph, self.sources, prices, self.work)
        if not np.isfinite(due):
            self.messages.distances(np.ones(len(self.orbit)))  # raises and names the server
        return due / float(prices.price.sum())

    def _lengths(self, prices: OrbitPrices) -> NDArray[np.float64]:
        length = (prices.price / (self.size * self.capacity))[self.orbit]
        if self.left_out.any():  # as long as the longest path, so that no path gains by them
            length[self.left_out] = np.inf
            length[self.left_out] = self.messages.distances(length).max()
        return length

    def start_from(self, known: ConcurrentFlow) -> None:
        """Continues from another flow: its paths, rescaled to these messages, and its prices."""
        same = known.messages.topology is self.messages.topology and known.unit == self.unit
        if (
            not same
            or len(self.size) != len(self.orbit)
            or len(known.multiplier) != len(known.load)
        ):
            raise OptionError(
                "known: expected a flow of the same network and unit, without symmetry"
            )
        self.multiplier = known.multiplier.copy()
        self.sharpness = known.sharpness
        self.paths = _rescaled(known, self.sources)
        links = self.paths.links[: self.paths.first[self.paths.length[0]]]
        flow = np.repeat(
            self.paths.flow[: self.paths.length[0]],
            np.diff(self.paths.first[: self.paths.length[0] + 1]),
        )
        self.load = np.bincount(links, flow, len(self.orbit)) * self.graph.unit
        self.passes = 1

    def improve(self) -> None:
        """One pass over all messages."""
        reference = float(self.load.max()) if self.passes else 1.0
        room = int(self.paths.first[self.paths.length[0]]) + len(self.orbit)
        count = int(self.paths.length[0]) + len(self.sources.target)
        while True:
            room += 8 * len(self.sources.target)
            prices = self._prices(reference)
            new = no_paths(count + 1, room)
            if improve(self.graph, self.sources, self.paths, new, prices, self.work):
                break
            room *= 2
        self.load, self.paths = prices.load, new
        self.passes += 1

    def _prices(self, reference: float) -> OrbitPrices:
        sharpness = self.sharpness * min(FAR * self.bound / reference, 1.0)
        price = self.multiplier * np.exp(sharpness * (self.load - reference))
        setting = np.array([sharpness, reference])
        return OrbitPrices(self.load.copy(), self.multiplier, price, setting)

    def judge(self) -> float:
        """The gap, updating the bound at current prices; if passes are many, not after each."""
        if self.passes >= self.judged:
            # A bound costs about as much as a pass: paths from every source.
            self.judged = self.passes + 1 + self.passes // 8
            prices = self._prices(float(self.load.max()))
            proven = self._proven(prices)
            if proven > self.bound:
                self.bound, self.length = proven, self._lengths(prices)
        return float(self.load.max()) / self.bound - 1

    def waits(self, stop: Stop) -> bool:
        """Whether the search must end; otherwise makes prices sharper for the next pass."""
        if stop.reached():
            return True
        if self.passes % REWEIGHTED == 0:
            price = self._prices(float(self.load.max())).price
            self.multiplier = np.maximum(price / price.max(), LEAST_MULTIPLIER)
        self.sharpness = min(max(SHARPER * self.sharpness, SHARPNESS), MAX_SHARPNESS)
        return False

    def flow(self) -> ConcurrentFlow:
        """The flow found so far."""
        return ConcurrentFlow(
            self.messages,
            self.unit,
            self.sources,
            self.paths,
            self.orbit,
            self.load[self.orbit] * self.scale,
            self.length,
            self.bound * self.scale,
            self.multiplier[self.orbit],
            self.sharpness,
        )


def _left_out(messages: Messages, unit: Unit) -> NDArray[np.bool_]:
    """[L] links with negligible capacity; none if some message needs such a link."""
    capacity = messages.capacity(unit)
    slow = capacity < NEXT_TO_NOTHING * capacity.max()
    if slow.any():
        try:
            messages.distances(np.where(slow, np.inf, 1.0))
        except OptionError:
            slow[:] = False
    return slow


def _generators(messages: Messages) -> list[NDArray[np.int32]]:
    """Automorphisms of the network that preserve the messages and the relaying servers."""
    return [
        moved
        for moved in automorphism_generators(messages.topology)
        if leaves_as_they_are(messages, moved)
    ]


def leaves_as_they_are(messages: Messages, moved: NDArray[np.int32]) -> bool:
    """Whether a relabelling [V] of the nodes preserves the messages and the relaying servers."""
    before = _table(messages, np.arange(len(moved)))
    return all(map(np.array_equal, before, _table(messages, moved))) and np.array_equal(
        messages.passes[moved], messages.passes
    )


def _table(messages: Messages, moved: NDArray) -> tuple[NDArray, NDArray]:
    """Pairs of servers, ascending, and amounts from the first to the second."""
    pair = moved[messages.source].astype(np.int64) * len(moved) + moved[messages.target]
    pairs, place = np.unique(pair, return_inverse=True)
    return pairs, np.bincount(place, messages.amount)


def _sources(messages: Messages, orbit: NDArray[np.int64]) -> Sources:
    """Messages by source, merged per pair of servers, for one source of each orbit."""
    nodes = messages.topology.num_nodes
    pairs, amount = _table(messages, np.arange(nodes))
    source, target = np.divmod(pairs, nodes)
    roots = np.unique(source)
    root = roots[np.unique(orbit[roots], return_index=True)[1]]
    kept = np.isin(source, root)
    source, target, amount = source[kept], messages.entered(target[kept]), amount[kept]
    root = np.unique(source)
    first = np.searchsorted(source, np.append(root, nodes)).astype(np.int64)
    weight = np.bincount(orbit[roots])[orbit[root]].astype(np.float64)
    return Sources(root, weight, first, target, amount.astype(np.float64))


def _rescaled(known: ConcurrentFlow, sources: Sources) -> FlowPaths:
    """A known flow's paths, scaled to the current messages; paths of other messages are dropped."""
    before, paths = known.sources, known.paths
    nodes = 2 * known.messages.topology.num_nodes

    def keys(of: Sources) -> NDArray[np.int64]:
        return np.repeat(of.root, np.diff(of.first)) * nodes + of.target

    now, old = keys(sources), keys(before)
    count = int(paths.length[0])
    message = paths.message[:count]
    place = np.minimum(np.searchsorted(now, old), len(now) - 1)
    kept = (now[place] == old)[message]
    factor = np.where(now[place] == old, sources.amount[place] / before.amount, 0.0)
    lengths = np.diff(paths.first[: count + 1])
    links = paths.links[: paths.first[count]][np.repeat(kept, lengths)]
    rescaled = no_paths(int(kept.sum()), len(links))
    rescaled.links[:] = links
    np.cumsum(lengths[kept], out=rescaled.first[1:])
    rescaled.message[:] = place[message[kept]]
    rescaled.flow[:] = (paths.flow[:count] * factor[message])[kept]
    rescaled.length[0] = kept.sum()
    return rescaled
