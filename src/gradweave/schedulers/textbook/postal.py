"""Small gradients on any network: trees grown by arrival times, joined in several ways."""

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from gradweave.common.stop import Stop
from gradweave.errors import NoScheduleError, OptionError
from gradweave.schedulers.hops import Hops
from gradweave.schedulers.scheduler import Scheduler, Traits, check_counts
from gradweave.schedules.schedule import COPY, REDUCE, Collective, Schedule, take_rows
from gradweave.simulator import seconds
from gradweave.topology.topology import Topology
from gradweave.topology.units import ROUNDING

Shape = Literal["root", "pair", "cross", "hubs"]
SHAPES: tuple[Shape, ...] = ("root", "pair", "cross", "hubs")


@dataclasses.dataclass(frozen=True)
class Tuning:
    """Limits, chosen by hand."""

    max_servers: int = 256
    """Most servers: above this, repeatedly examining hops between all servers takes too long."""
    paired_servers: int = 64
    """Most servers for which pairs of roots are sought: half a second."""
    forwarded_servers: int = 64
    """Most servers for which servers without a switch-only route send to each other through
    others."""
    roots: int = 4
    """Number of roots, or pairs of roots, that are simulated; the others are only estimated."""
    evaluations: int = 20_000_000
    """Most hops examined by all tries together: about a fifth of a second."""


TUNING = Tuning()

Message = tuple[int, int, int]
"""Hop, piece and operation."""
Unit = tuple[Message, ...]
"""Messages of one round, all of which read the state before the round."""
Made = tuple[list[int], list[Unit]]
"""Roots, and the messages."""


@dataclasses.dataclass(frozen=True)
class Postal(Scheduler):
    """The gradient as one piece, over trees grown by arrival times of messages (the postal model).

    A message holds the links of its route for its overhead and bytes, and arrives after their
    latencies; a server may send on as soon as it has received. From a root, servers are informed
    one by one, each by the server that can do so first; the order is improved by moving single
    servers. A reduction is such a broadcast with all messages reversed. In a star this is the
    optimal tree of the LogP model, between a binomial tree and direct sends from the root;
    elsewhere, distances and shared links count too.

    An all-reduce has one of four shapes, with the roots that make it fastest:

    - ``root``: reduced to a root and broadcast from it;
    - ``pair``: reduced to two roots, each from the servers on its side; they exchange their sums,
      and each broadcasts to its side;
    - ``cross``: like ``pair``, but each root's sum goes directly to all servers of the other side,
      which add it to the sum of their side;
    - ``hubs``: groups of nearby servers, each with a root, whose sum goes to one server of each
      other group, or to all but their roots; servers that have the total send it to the rest of
      their group. With three groups or more, servers add in different orders and end with different
      last bits.

    A single stage has one root. If no route between two servers has only switches inside, a message
    passes through servers, as in a ring.

    Source: Bar-Noy and Kipnis, "Designing broadcasting algorithms in the postal model", 1992; Karp,
        Sahay, Santos and Schauser, "Optimal broadcast and summation in the LogP model", 1993.
    """

    name: ClassVar[str] = "postal"

    shape: Shape = "root"
    """The shape of an all-reduce."""
    pieces: int = 1
    """Number of pieces, each with its roots (only for ``cross`` and ``hubs``), so that several
    servers' ports are used."""
    tries: int = 200
    """Number of moves to try for each order."""
    gradient_bytes: float | None = None
    """Gradient size for which trees are grown; if not given, messages have no bytes."""

    def __post_init__(self) -> None:
        if self.shape not in SHAPES:
            raise OptionError(
                f"{self.name}: shape: expected one of {', '.join(SHAPES)}, got {self.shape!r}"
            )
        check_counts(self, "tries", least=0)
        check_counts(self, "pieces", most=64)
        size = self.gradient_bytes
        if size is not None and not 0 < size < float("inf"):
            raise OptionError(
                f"{self.name}: gradient_bytes: expected a finite number above 0, got {size}"
            )

    @property
    def traits(self) -> Traits:
        """The strategy's traits with these options."""
        return Traits(forwards=True, one_root=True, takes_size=True)

    def make(self, topology: Topology, collective: Collective, seed: int, stop: Stop) -> Schedule:
        """Makes the schedule; `schedule` verifies it."""
        if topology.num_servers > TUNING.max_servers:
            raise NoScheduleError(
                f"{self.name}: expected at most {TUNING.max_servers} servers, "
                f"got {topology.num_servers}"
            )
        size = self.gradient_bytes or 0.0
        clock = PostalClock.of(topology, size / self.pieces)
        program = _Program(clock, self.tries, seed)
        paired = self.shape in ("pair", "cross")
        if paired and topology.num_servers > TUNING.paired_servers:
            raise NoScheduleError(
                f"{self.name}: expected at most {TUNING.paired_servers} servers with this shape, "
                f"got {topology.num_servers}"
            )
        if collective != "all_reduce":
            root, units = program.stage(collective)
            return clock.schedule(collective, [root], units)
        made = {
            "root": program.by_root,
            "pair": program.by_pair,
            "cross": lambda: program.crossing(self.pieces),
            "hubs": lambda: program.by_hubs(self.pieces),
        }[self.shape]()
        schedules = [clock.schedule("all_reduce", roots, units) for roots, units in made]
        if not schedules:
            raise NoScheduleError(f"{self.name}: {topology.name!r} has no servers for this shape")
        return min(schedules, key=lambda schedule: seconds(schedule, size, "events"))


@dataclasses.dataclass(frozen=True, eq=False)
class Sorted:
    """Hops, or reversed hops, sorted by the server that they enter."""

    number: NDArray[np.int64]
    """[H] number of each hop."""
    source: NDArray[np.int64]
    """[H] rank of the server that each hop leaves."""
    first_into: NDArray[np.int64]
    """[N+1] index of each server's first hop."""
    links: NDArray[np.int64]
    """Link directions of the hops, concatenated."""
    first_link: NDArray[np.int64]
    """[H+1] index of each hop's first link."""

    @staticmethod
    def of(hops: Hops, source: NDArray[np.int64], target: NDArray[np.int64]) -> "Sorted":
        """Sorts hops.

        Args:
            hops: the hops.
            source: [H] rank of the server that each leaves.
            target: [H] rank of the server that each enters.
        """
        number = np.lexsort((source, target))
        first_into = np.searchsorted(target[number], np.arange(int(target.max()) + 2))
        offsets = hops.first_link
        links, first_link = take_rows(hops.links, offsets, number)
        return Sorted(number, source[number], first_into, links, first_link)


@dataclasses.dataclass(frozen=True, eq=False)
class PostalClock:
    """Hops between servers, and the duration of a message over each."""

    topology: Topology
    hops: Hops
    hold: NDArray[np.float64]
    """[H] seconds for which a message holds the links."""
    latency: NDArray[np.float64]
    """[H] seconds from then until it arrives."""

    @staticmethod
    def of(topology: Topology, message_bytes: float, *, forwarded: bool = True) -> "PostalClock":
        """The clock of a network.

        Args:
            topology: the network.
            message_bytes: bytes of each message.
            forwarded: whether servers without a switch-only route send through others.
        """
        hops = Hops.of(topology)
        hops = _with_forwarded(topology, hops) if forwarded else hops
        first = hops.first_link[:-1]
        overhead = np.maximum.reduceat(topology.overhead_s[hops.links], first)
        rate = np.minimum.reduceat(topology.bandwidth_bytes_per_s[hops.links], first)
        latency = np.add.reduceat(topology.latency_s[hops.links], first)
        return PostalClock(topology, hops, overhead + message_bytes / rate, latency)

    @functools.cached_property
    def forward(self) -> "Sorted":
        """Hops by the server that they enter."""
        return Sorted.of(self.hops, self.hops.source, self.hops.target)

    @functools.cached_property
    def backward(self) -> "Sorted":
        """The reversed hops: by the server that they leave."""
        return Sorted.of(self.hops, self.hops.target, self.hops.source)

    @functools.cached_property
    def closed(self) -> NDArray[np.float64]:
        """[N, N] minimum time over any number of consecutive messages."""
        return _closed(self.least)

    @functools.cached_property
    def least(self) -> NDArray[np.float64]:
        """[N, N] minimum time of a message from each server to each other; 0 to itself."""
        count = self.topology.num_servers
        least = np.full((count, count), np.inf)
        ends = self.hops.source, self.hops.target
        np.minimum.at(least, ends, self.hold + self.latency)
        np.fill_diagonal(least, 0.0)
        return least

    def fastest(self, source: int, target: int) -> int:
        """The hop between two servers with the earliest arrival; −1 if there is none."""
        between = np.flatnonzero((self.hops.source == source) & (self.hops.target == target))
        if not len(between):
            return -1
        return int(between[np.argmin((self.hold + self.latency)[between])])

    def schedule(
        self, collective: Collective, roots: Sequence[int], units: Iterable[Unit]
    ) -> Schedule:
        """The schedule of some messages, in the earliest rounds that keep their order on each link.

        Args:
            collective: the collective that they perform.
            roots: ranks of each piece's root.
            units: the messages.
        """
        from gradweave.schedulers.ordering.lower import lower

        units = list(units)
        hop, piece, op = np.array([*itertools.chain(*units)], np.int64).reshape(-1, 3).T
        return lower(
            self.topology,
            self.hops.links,
            self.hops.first_link,
            hop,
            piece=piece,
            op=op,
            root=np.array(roots),
            adds=np.ones(len(hop), bool),  # so that nothing arrives together with a copy
            unit=np.repeat(np.arange(len(units)), [len(unit) for unit in units]),
            capacity=self.topology.capacity.astype(np.int64),
            collective=collective,
        )


def tree_by_arrival(
    topology: Topology,
    root: int,
    members: NDArray[np.int64],
    towards: bool,
    message_bytes: float,
    *,
    tries: int,
    seed: int,
) -> dict[int, tuple[int, tuple[int, ...]]]:
    """The tree of a broadcast from a root, or of a reduction to it, grown by arrival times.

    Args:
        topology: the network.
        root: rank.
        members: ranks of the servers that it spans, including the root.
        towards: whether they send to the root.
        message_bytes: bytes of each message.
        tries: number of moves to improve the order.
        seed: the seed of the moves.

    Returns:
        For each member except the root, in the order in which messages from the root arrive: its
        parent and the links between them, in the direction of the data.

    Raises:
        NoScheduleError: if there are too many members, or some share no link or switch with others.
    """
    if len(members) > TUNING.max_servers:
        raise NoScheduleError(f"expected at most {TUNING.max_servers} servers, got {len(members)}")
    clock = PostalClock.of(topology, message_bytes, forwarded=False)
    informed, hop, _ = _Program(clock, tries, seed).grown([root], members, towards)
    if not np.isfinite(informed[members]).all():
        raise NoScheduleError("some servers share no link or switch with others")
    hops = clock.hops
    ends, first = (hops.target if towards else hops.source), hops.first_link
    order = np.argsort(informed, kind="stable").tolist()
    return {
        server: (int(ends[one]), tuple(hops.links[first[one] : first[one + 1]].tolist()))
        for server, one in zip(order, hop[order].tolist(), strict=True)
        if one >= 0
    }


@dataclasses.dataclass(frozen=True, eq=False)
class _Program:
    """The messages of each shape."""

    clock: PostalClock
    tries: int
    seed: int

    def stage(self, collective: Collective) -> tuple[int, list[Unit]]:
        """A stage's root, and its messages."""
        everybody = np.arange(self.clock.topology.num_servers)
        root = self._roots(everybody)[0]
        return root, self._forest([root], everybody, collective == "reduce_scatter")

    def by_root(self) -> Iterator[Made]:
        """Messages to a root, and from it."""
        everybody = np.arange(self.clock.topology.num_servers)
        for root in self._roots(everybody):
            towards, back = (self._forest([root], everybody, way) for way in (True, False))
            yield [root], towards + back

    def by_pair(self) -> Iterator[Made]:
        """Messages to two roots, between them, and from each to its side."""
        least, everybody = self.clock.least, np.arange(self.clock.topology.num_servers)
        for one, other, _ in _pairs(least, across=least)[: TUNING.roots]:
            units = self._forest([one, other], everybody, True)
            units.append(self._exchange(one, other, 0))
            yield [one], units + self._forest([one, other], everybody, False)

    def crossing(self, pieces: int) -> Iterator[Made]:
        """Messages to two roots, from each to its side, and from each to the other side."""
        pairs = _pairs(self.clock.least, across=None)
        for first in range(min(len(pairs), TUNING.roots if pieces == 1 else 1)):
            chosen = _disjoint(pairs[first:], pieces)
            phases = [self._crossing(*pair, piece) for piece, pair in enumerate(chosen)]
            units = [unit for phase in zip(*phases, strict=True) for unit in _in_turn(phase)]
            yield [one for one, _, _ in chosen], units

    def _crossing(
        self, one: int, other: int, side: NDArray[np.bool_], piece: int
    ) -> tuple[list[Unit], list[Unit], list[Unit]]:
        least = self.clock.least
        crossed: list[Unit] = [
            ((self.clock.fastest(root, server), piece, REDUCE),)
            for root, others in ((one, side), (other, ~side))
            for server in _farthest_first(least[root], others)
            if server not in (one, other)
        ]
        return (
            self._both(one, other, side, True, piece),
            self._both(one, other, side, False, piece),
            [*crossed, self._exchange(one, other, piece)],
        )

    def by_hubs(self, pieces: int) -> Iterator[Made]:
        """Messages to each group's root, from roots to other groups, and from there to all."""
        least = self.clock.least
        groups = _groups(least)
        if len(groups) < 2 or min(map(len, groups)) < 2:
            return
        central = [group[np.argsort(least[group].max(axis=1), kind="stable")] for group in groups]
        for one_receives in (True, False):
            phases = []
            for piece in range(pieces):
                hubs = [int(group[piece % len(group)]) for group in central]
                receivers = [
                    np.array([group[(piece + 1) % len(group)]])
                    if one_receives
                    else np.roll(group, -1 - piece)[:-1]
                    for group in central
                ]
                phases.append(self._through_hubs(groups, hubs, receivers, piece))
            if all(phase is not None for phase in phases):
                units = [unit for phase in zip(*phases, strict=True) for unit in _in_turn(phase)]
                yield [int(central[0][piece % len(central[0])]) for piece in range(pieces)], units

    def _through_hubs(
        self,
        groups: list[NDArray[np.int64]],
        hubs: list[int],
        receivers: list[NDArray[np.int64]],
        piece: int,
    ) -> tuple[list[Unit], ...] | None:
        """The messages in phases, or None if some root has no hop to some receiver.

        Args:
            groups: ranks of each group's servers.
            hubs: each group's root.
            receivers: the servers of each group that receive from other groups.
            piece: number of the piece.
        """
        gathered, copied, crossed, back = [], [], [], []
        for at, (hub, group) in enumerate(zip(hubs, groups, strict=True)):
            within = np.array([hub, *receivers[at]])
            gathered.append(self._forest([hub], group, True, piece))
            copied.append(self._forest([hub], within, False, piece))
            turned = itertools.chain(
                *(receivers[(at + k) % len(groups)] for k in range(1, len(groups)))
            )
            crossed.append([((self.clock.fastest(hub, int(to)), piece, REDUCE),) for to in turned])
            rest = np.setdiff1d(group, receivers[at][1:])
            back.append(self._forest([int(receivers[at][0])], rest, False, piece))
        if any(hop < 0 for units in crossed for ((hop, _, _),) in units):
            return None
        return tuple(list(_in_turn(phase)) for phase in (gathered, copied, crossed, back))

    def _both(
        self, one: int, other: int, side: NDArray[np.bool_], towards: bool, piece: int = 0
    ) -> list[Unit]:
        """Two roots' trees: of the servers for which `side` is false, and of the others."""
        trees = [
            self._forest([root], np.flatnonzero(members), towards, piece)
            for root, members in ((one, ~side), (other, side))
        ]
        return list(_in_turn(trees))

    def _exchange(self, one: int, other: int, piece: int) -> Unit:
        """Both roots send their sums to each other in the same round."""
        there, back = self.clock.fastest(one, other), self.clock.fastest(other, one)
        return ((there, piece, REDUCE), (back, piece, REDUCE))

    def _forest(
        self, roots: list[int], members: NDArray[np.int64], towards: bool, piece: int = 0
    ) -> list[Unit]:
        """The messages of some roots' trees, in the order of their starts."""
        informed, hop, turn = self.grown(roots, members, towards)
        below = np.flatnonzero(hop >= 0)
        used = hop[below]
        start = informed[below] - (0.0 if towards else (self.clock.hold + self.clock.latency)[used])
        # Ties by turn: if messages take no time, a server must still not send before it receives.
        sign = -1 if towards else 1
        order = np.lexsort((sign * turn[below], sign * start))
        return [((int(one), piece, REDUCE if towards else COPY),) for one in used[order]]

    def _roots(self, members: NDArray[np.int64]) -> list[int]:
        """The members nearest to all other members, there and back."""
        least = self.clock.closed
        largest = least[:, members].max(axis=1) + least[members].max(axis=0)
        ties = (least[:, members] + least[members].T).sum(axis=1)
        nearest = np.lexsort((ties[members], largest[members]))
        return members[nearest][: TUNING.roots].tolist()

    def grown(
        self, roots: list[int], members: NDArray[np.int64], towards: bool
    ) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
        """A broadcast from roots to some servers; or, towards the roots, with messages reversed.

        Returns:
            [N] when each server is informed; [N] by which hop, −1 for roots and non-members; [N]
            after how many others.
        """
        from gradweave.schedulers.textbook.postal_kernel import grow_best

        clock = self.clock
        others = np.setdiff1d(members, roots)
        if not len(others):
            count = clock.topology.num_servers
            return np.zeros(count), np.full(count, -1), np.zeros(count, np.int64)
        least, hops = clock.closed, clock.backward if towards else clock.forward
        far = (least[:, roots].min(axis=1) if towards else least[roots].min(axis=0))[others]
        # Near servers first, as they pass messages on soon; and far servers first, as messages to
        # them take long.
        orders = np.stack(
            [others[np.argsort(far, kind="stable")], others[np.argsort(-far, kind="stable")]]
        )
        tries = min(self.tries, TUNING.evaluations // (TUNING.roots * len(hops.number)))
        informed, hop, turn = grow_best(
            orders,
            np.array(roots),
            tries,
            self.seed,
            hops.source,
            hops.first_into,
            hops.links,
            hops.first_link,
            clock.hold[hops.number],
            clock.latency[hops.number],
            len(clock.topology.source),
        )
        return informed, np.where(hop >= 0, hops.number[hop], -1), turn


def _with_forwarded(topology: Topology, hops: Hops) -> Hops:
    """Hops, and for pairs without one the path of minimum latency through servers."""
    count = topology.num_servers
    there = np.zeros((count, count), bool)
    there[hops.source, hops.target] = True
    np.fill_diagonal(there, True)
    if there.all() or count > TUNING.forwarded_servers:
        return hops
    from gradweave.schedulers.kernels.paths import cheapest_paths

    none = np.zeros(topology.num_nodes, bool)
    _, last = cheapest_paths(
        topology.first_link, topology.target, topology.latency_s, topology.servers, none
    )
    routes = [
        hops.route_nodes[start:end].tolist()
        for start, end in itertools.pairwise(hops.route_offsets.tolist())
    ]
    sources, targets = hops.source.tolist(), hops.target.tolist()
    for one, other in np.argwhere(~there).tolist():
        node, route = int(topology.servers[other]), [int(topology.servers[other])]
        while node != topology.servers[one]:
            node = int(topology.source[last[one, node]])
            route.append(node)
        routes.append(route[::-1])
        sources.append(one)
        targets.append(other)
    nodes = np.array(list(itertools.chain(*routes)), np.int32)
    offsets = np.concatenate([[0], np.cumsum([len(route) for route in routes])])
    links = topology.links_along(nodes, offsets)
    return Hops(np.array(sources), np.array(targets), nodes, offsets, links)


def _closed(least: NDArray[np.float64]) -> NDArray[np.float64]:
    """[N, N] minimum time over any number of consecutive messages."""
    closed = least.copy()
    for k in range(len(closed)):
        closed = np.minimum(closed, closed[:, [k]] + closed[[k]])
    return closed


Pair = tuple[int, int, NDArray[np.bool_]]


def _pairs(least: NDArray[np.float64], across: NDArray[np.float64] | None) -> list[Pair]:
    """Pairs of roots with the servers on the second root's side, fastest first.

    Args:
        least: [N, N] minimum time of a message; infinite without a hop.
        across: the same if the roots exchange their sums and send them on; None if each sends its
            sum to all.
    """
    closed, count = _closed(least), len(least)
    found: list[tuple[float, float, int, int, NDArray[np.bool_]]] = []
    for one, other in itertools.combinations(range(count), 2):
        ends = [one, other]
        if across is None:
            onward = least[ends].max(axis=1)
            takes = closed[:, ends] + onward
        else:
            takes = np.maximum(closed[:, ends], closed[ends].T)
            # Half of the total time: to the roots, across, and back.
            takes = takes + across[one, other] / 2
        if not np.isfinite(takes).all() or not np.isfinite(least[one, other] + least[other, one]):
            continue
        takes[one, 1], takes[other, 0] = np.inf, np.inf
        side = takes[:, 1] < takes[:, 0] * (1 - ROUNDING)
        # Servers that are as near to both roots even out the sides.
        alike = np.flatnonzero(~side & (takes[:, 1] <= takes[:, 0] * (1 + ROUNDING)))
        side[alike[: max(0, count // 2 - int(side.sum()))]] = True
        each = np.where(side, takes[:, 1], takes[:, 0])
        found.append((float(each.max()), float(each.sum()), one, other, side))
    found.sort(key=lambda pair: pair[:4])
    return [(one, other, side) for _, _, one, other, side in found]


def _disjoint(pairs: list[Pair], count: int) -> list[Pair]:
    """The first pairs that share no root; repeated if there are too few."""
    chosen: list[Pair] = []
    for pair in pairs:
        if len(chosen) < count and not {*pair[:2]} & {end for one in chosen for end in one[:2]}:
            chosen.append(pair)
    return [chosen[k % len(chosen)] for k in range(count)]


def _groups(least: NDArray[np.float64]) -> list[NDArray[np.int64]]:
    """Groups of servers connected by the shortest distances in the network."""
    apart = least + np.diag(np.full(len(least), np.inf))
    near = apart <= apart.min() * (1 + 1e-6)
    reach = near | near.T | np.eye(len(least), dtype=bool)
    for k in range(len(reach)):
        reach |= reach[:, [k]] & reach[[k]]
    return [np.flatnonzero(reach[k]) for k in range(len(reach)) if not reach[k, :k].any()]


def _farthest_first(times: NDArray[np.float64], members: NDArray[np.bool_]) -> list[int]:
    ranks = np.flatnonzero(members)
    return ranks[np.argsort(-times[ranks], kind="stable")].tolist()


def _in_turn(lists: Sequence[Sequence[Unit]]) -> Iterator[Unit]:
    """The first units of all lists, then the second units, and so on."""
    for units in itertools.zip_longest(*lists):
        yield from (unit for unit in units if unit is not None)
