"""The least time of an all-reduce in one piece without bytes, by exhaustive search.

In the event model: each message takes what its source held when all before it had arrived there,
holds its links for their overhead, one message at a time, and arrives their latencies later; some
whose ends form circles may go at once, each with what was there before. Any schedule of one piece
on links of capacity 1 is such a sequence: what a round holds beside circles, or several that have
servers in common, can follow one another.
Sums that hold a contribution twice are left out, since nothing but a copy over them could follow.
"""

import dataclasses
import itertools
from collections.abc import Iterator

import networkx as nx
import numpy as np

from gradweave.topology import Topology

NANOSECOND = 1e-9
MAX_STATES = 20_000
"""Situations after which a search gives up: with five servers more than a minute, and not at its
end."""

State = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""What each server holds, as bits; when all of that has arrived; when each link is free."""


@dataclasses.dataclass(frozen=True)
class Hop:
    """A route from server to server."""

    source: int
    target: int
    links: tuple[int, ...]
    hold: int
    """Nanoseconds, as all times here."""
    latency: int


def least_time(topology: Topology, known_s: float) -> tuple[float, bool]:
    """The least time, where it is below a known one, else that.

    Args:
        topology: a network of at most four servers or so, with links of capacity 1 and times that
            are whole nanoseconds.
        known_s: what a schedule takes.

    Returns:
        Seconds, and whether none takes less: whether the search came to its end.
    """
    search = _Search(topology, round(known_s / NANOSECOND))
    search.from_state(search.start(), None)
    return search.best * NANOSECOND, search.states <= MAX_STATES


class _Search:
    def __init__(self, topology: Topology, best: int) -> None:
        assert (topology.capacity == 1).all()
        self.topology, self.best, self.states = topology, best, 0
        self.count = topology.num_servers
        self.everything = (1 << self.count) - 1
        self.hops = _hops(topology)
        self.units = self._units()
        self.least = self._least()
        self.seen: dict[tuple[int, ...], list[tuple[int, ...]]] = {}

    def start(self) -> State:
        own = tuple(1 << server for server in range(self.count))
        return own, (0,) * self.count, (0,) * len(self.topology.source)

    def from_state(self, state: State, last: int | None) -> None:
        """Looks at all that can follow, and remembers the least time."""
        self.states += 1
        if self.states > MAX_STATES:
            return
        holds, ready, _ = state
        if all(one == self.everything for one in holds):
            self.best = min(self.best, max(ready))
            return
        following = []
        for number, unit in enumerate(self.units):
            if last is not None and number < last and self._apart(number, last):
                continue  # The same as the other way round.
            for copies in _operations(unit):
                made = self._after(state, unit, copies)
                if made is not None and self._at_least(made) < self.best:
                    following.append(
                        (self._at_least(made), -sum(map(int.bit_count, made[0])), number, made)
                    )
        following.sort(key=lambda one: one[:3])
        for least, _, number, made in following:
            if least < self.best and not self._dominated(made):
                self.from_state(made, number)

    def _after(self, state: State, unit: tuple[Hop, ...], copies: tuple[bool, ...]) -> State | None:
        holds, ready, free = list(state[0]), list(state[1]), list(state[2])
        for hop, copy in zip(unit, copies, strict=True):
            content, there = state[0][hop.source], holds[hop.target]
            if (content == there) if copy else (content & there):
                return None
            begin = max([state[1][hop.source], *(free[link] for link in hop.links)])
            for link in hop.links:
                free[link] = begin + hop.hold
            holds[hop.target] = content if copy else content | there
            ready[hop.target] = max(ready[hop.target], begin + hop.hold + hop.latency)
        lost = self.everything
        for one in holds:
            lost &= ~one
        return None if lost else (tuple(holds), tuple(ready), tuple(free))

    def _at_least(self, state: State) -> int:
        """Whatever a server lacks, it has from the nearest that has it."""
        holds, ready, _ = state
        time = max(ready)
        for server, held in enumerate(holds):
            for other in range(self.count):
                if not held >> other & 1:
                    soonest = min(
                        ready[k] + self.least[k][server]
                        for k in range(self.count)
                        if holds[k] >> other & 1
                    )
                    time = max(time, soonest)
        return time

    def _dominated(self, state: State) -> bool:
        """Whether there was a situation with the same content, in which nothing was later."""
        times = state[1] + state[2]
        known = self.seen.setdefault(state[0], [])
        if any(all(a <= b for a, b in zip(one, times, strict=True)) for one in known):
            return True
        known[:] = [
            one for one in known if not all(b <= a for a, b in zip(one, times, strict=True))
        ]
        known.append(times)
        return False

    def _apart(self, one: int, other: int) -> bool:
        """Whether two units share neither servers nor links."""
        servers, links = (
            [{x for hop in self.units[number] for x in of(hop)} for number in (one, other)]
            for of in (lambda hop: (hop.source, hop.target), lambda hop: hop.links)
        )
        return not (servers[0] & servers[1] or links[0] & links[1])

    def _units(self) -> list[tuple[Hop, ...]]:
        """Single messages, circles of them, and circles that share servers."""
        circles: list[tuple[Hop, ...]] = []
        by_ends: dict[tuple[int, int], list[Hop]] = {}
        for hop in self.hops:
            by_ends.setdefault((hop.source, hop.target), []).append(hop)
        for size in range(2, self.count + 1):
            for order in itertools.permutations(range(self.count), size):
                if order[0] != min(order):
                    continue
                ends = [(order[i], order[(i + 1) % size]) for i in range(size)]
                for hops in itertools.product(*(by_ends[pair] for pair in ends)):
                    links = [link for hop in hops for link in hop.links]
                    if len(set(links)) == len(links):
                        circles.append(hops)
        joined, latest = {frozenset(one) for one in circles}, set(map(frozenset, circles))
        while latest:
            latest = {
                one | set(circle)
                for one in latest
                for circle in circles
                if _fit_together(one, circle)
            } - joined
            joined |= latest
        order = [tuple(sorted(one, key=self.hops.index)) for one in joined]
        return [*((hop,) for hop in self.hops), *sorted(order, key=lambda one: [*map(str, one)])]

    def _least(self) -> list[list[int]]:
        least = [[10**18] * self.count for _ in range(self.count)]
        for hop in self.hops:
            time = hop.hold + hop.latency
            least[hop.source][hop.target] = min(least[hop.source][hop.target], time)
        return least


def _operations(unit: tuple[Hop, ...]) -> Iterator[tuple[bool, ...]]:
    """Whether each message copies; not where a server receives several."""
    several = {hop.target for hop in unit if sum(one.target == hop.target for one in unit) > 1}
    yield from itertools.product(
        *((False,) if hop.target in several else (False, True) for hop in unit)
    )


def _fit_together(unit: frozenset[Hop], circle: tuple[Hop, ...]) -> bool:
    """Whether another circle has a server of a unit, and beside what both have other links."""
    servers = {end for hop in unit for end in (hop.source, hop.target)}
    if not any(hop.source in servers for hop in circle):
        return False
    both = [link for hop in unit | set(circle) for link in hop.links]
    return len(both) == len(set(both))


def _hops(topology: Topology) -> list[Hop]:
    """All simple routes between servers."""
    graph = nx.Graph(zip(topology.source.tolist(), topology.target.tolist(), strict=True))
    hops = []
    for source, target in itertools.permutations(topology.servers.tolist(), 2):
        for route in nx.all_simple_paths(graph, source, target):
            nodes = np.array(route)
            links = topology.links_along(nodes, np.array([0, len(route)]))
            hold, latency = topology.overhead_s[links].max(), topology.latency_s[links].sum()
            hops.append(
                Hop(
                    int(topology.rank[source]),
                    int(topology.rank[target]),
                    tuple(links.tolist()),
                    round(float(hold) / NANOSECOND),
                    round(float(latency) / NANOSECOND),
                )
            )
    return hops
