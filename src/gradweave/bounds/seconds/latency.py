"""Minimum times of messages with hardly any bytes, from latencies, overheads and ports."""

import dataclasses
import functools
import heapq
from collections.abc import Iterable, Iterator
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gradweave.bounds.bound import Name, named
from gradweave.bounds.classes import SWITCHES_ADD, class_of
from gradweave.bounds.distances import node_distances
from gradweave.common.wording import counted
from gradweave.schedules.schedule import Collective
from gradweave.topology.spec import TopologyLike, as_topology
from gradweave.topology.topology import Floats, Topology
from gradweave.topology.units import ROUNDING, format_bandwidth, format_seconds, format_size

MAX_SERVERS = 64
"""Servers up to which the ports of each are counted with distances, which takes a tenth of a
second."""
MAX_DISTANCES = 128
"""Servers up to which all distances are used; beyond, only that of the two nearest servers is."""
MAX_MEETING = 32
"""Servers up to which the meeting bound is tried; it tries pairs of servers at several times."""
MAX_OVERHEADS = 4
"""Number of overheads that the minimum message time distinguishes. The others are rounded down to
one of these, so the bound stays valid."""
MAX_SETS = 3
"""Number of sets of far servers that are tried around each server, at the largest distances."""
HALVINGS = 40
"""Bisection steps for a time; they narrow its interval to a millionth of a millionth."""

Kind = Literal["distance", "reach", "gather", "relay", "meeting"]


@dataclasses.dataclass(frozen=True)
class LatencyBound:
    """A lower bound on the time of any schedule, however few its bytes, and the reason."""

    seconds: float
    kind: Kind
    """``distance``: the farthest server. ``reach``, ``gather``: the messages that one server's
    links can send or receive. ``relay``: some contribution takes two messages in a row.
    ``meeting``: a complete sum must still be sent on."""
    servers: tuple[int, ...] = ()
    """Node ids: both ends of a distance or relay, otherwise the server whose links count."""
    others: int = 0
    """Number of servers that must be reached or heard from."""
    ports: float = 0.0
    """Messages that the server's links carry concurrently, or exchange in a round."""
    then_s: float = 0.0
    """For a meeting, the part of the time that the last message takes."""
    size: int = 0
    """Bytes that must first leave the server of a reach, or enter the server of a gather."""
    bytes_per_s: float = 0.0
    """Bandwidth at which those bytes leave or enter."""

    def reason(self, name: Name = str) -> str:
        """The certificate in words.

        Args:
            name: (node id) -> display name.
        """
        at_once = counted(round(self.ports), "message")
        if self.kind == "distance":
            return "a message needs that long from " + " to ".join(_each(self.servers, name))
        if self.kind in ("reach", "gather"):
            (server,) = _each(self.servers, name)
            if self.size and self.size / self.bytes_per_s > self.seconds / 2:
                leaving, rate = self.kind == "reach", format_bandwidth(self.bytes_per_s)
                way = "leave" if leaving else "enter"
                rest = "the last bytes reach all" if leaving else "the first bytes come from all"
                return f"{format_size(self.size)} must {way} {server} at {rate}, and {rest}"
            does = "reach" if self.kind == "reach" else "hear from"
            return (
                f"{server} must {does} {counted(self.others, 'other')}, directly or through "
                f"others, and its links carry {at_once} at a time"
            )
        if self.kind == "relay":
            one, other = _each(self.servers, name)
            return (
                f"{one} can exchange with only {counted(round(self.ports), 'other')} at a time, "
                f"over all its links or one of them, so an exchange with {other} takes two "
                "consecutive messages or a detour"
            )
        then = format_seconds(self.then_s)
        return (
            f"no server has the whole sum earlier than {then} before the end, and then a message "
            "must pass it on, or servers must exchange parts of it"
        )

    @property
    def holds_unless(self) -> frozenset[str]:
        """Liberties that void the bound if a schedule takes one; see `gradweave.bounds.classes`."""
        return frozenset() if self.kind == "distance" else frozenset({SWITCHES_ADD})

    def __str__(self) -> str:
        least = f"at least {format_seconds(self.seconds)} ({self.kind})"
        return f"{least}{class_of(self.holds_unless)}, since {self.reason()}"


@functools.lru_cache(maxsize=8)  # a search asks for it at its start and at its end
def latency_bound(
    topology: TopologyLike, collective: Collective = "all_reduce", *, every_root: bool = True
) -> LatencyBound:
    """The minimum time for a collective, whatever the size of its messages.

    A message holds the links of its route for the largest of their overheads, and arrives after
    the sum of their latencies. For a stage the first three of these bounds hold; for an all-reduce
    all hold for each piece.

    - distance: each contribution reaches every server over a shortest path.
    - reach, gather: one server's contribution reaches all others, or all contributions reach one
      server, while each message holds its links. Servers that have it may pass it on (the LogP
      model, with distances).
    - relay: if two servers exchange their initial data directly, both send before they receive, in
      one round, and to no more partners than messages fit on their links.
    - meeting: either some server is sent the sum after it was completed at another server, or none
      is. In the second case, consider the last servers to complete their sums, in the same round.
      Each adds what a few of them send, servers on a cycle of them both send and receive, and
      whatever a server sends arrived there earlier. So one server and those it receives from have
      all contributions by then.

    Args:
        topology: the network.
        collective: a stage, or both.
        every_root: for a stage, whether every server is the root of something; if not, one is.

    Source: Karp, Sahay, Santos and Schauser, "Optimal broadcast and summation in the LogP model",
        1993; Bar-Noy, Kipnis and Schieber, "An optimal algorithm for computing census functions in
        message-passing systems", 1993; docs/concepts/bounds.md.

    >>> import gradweave as gw
    >>> bound = latency_bound(gw.topology.star(12))
    >>> f"{1e6 * bound.seconds:.1f} us", bound.kind  # two links of 1 us, an overhead of 1 us
    ('9.0 us', 'meeting')
    """
    topology = as_topology(topology)
    if topology.num_servers > MAX_DISTANCES:
        return _of_many(topology, collective)
    model = MessageTimes.of(topology)
    if collective == "all_reduce" or every_root:
        best = max(model.single(collective), key=lambda bound: bound.seconds)
    else:
        best = model.of_one_root(collective)
    if collective == "all_reduce":
        best = max(best, model.relay(), key=lambda bound: bound.seconds)
        best = max(best, model.meeting(best.seconds), key=lambda bound: bound.seconds)
    return dataclasses.replace(best, seconds=best.seconds * (1 - ROUNDING))


@functools.lru_cache(maxsize=256)  # a search asks for it repeatedly
def reach_of(topology: Topology, root: int, size: int, *, gathering: bool) -> LatencyBound | None:
    """Minimum time until a server's bytes have reached all others, or all others' have reached it.

    The byte whose first message ends last leaves the server no sooner than its links can carry all
    bytes once. From then on it must reach all servers by messages that hold links for their
    overheads, of which its first message may have held some for that long already. Gathering is the
    same with time reversed.

    Args:
        topology: the network.
        root: node id of the server.
        size: bytes.
        gathering: whether the bytes of the others must reach the server.

    Returns:
        None for networks of more than `MAX_SERVERS` servers.
    """
    if topology.num_servers > MAX_SERVERS:
        return None
    messages, rank = MessageTimes.of(topology), int(topology.rank[root])
    (found,) = messages.reach(gathering=gathering, servers=[rank])
    ends = topology.target if gathering else topology.source
    rate = float(topology.bandwidth_bytes_per_s[ends == root].sum())
    bytes_s = max(0.0, size / rate - float(messages.overhead[int(gathering), rank]))
    least_s = (found.seconds + bytes_s) * (1 - ROUNDING)
    return dataclasses.replace(found, seconds=least_s, size=size, bytes_per_s=rate)


@dataclasses.dataclass(frozen=True, eq=False)
class MessageTimes:
    """Minimum times of messages between each two servers and at each server's links."""

    servers: NDArray[np.int32]
    """[N] node ids."""
    distance: NDArray[np.float64]
    """[N, N] minimum latency from each server to each other; servers may forward."""
    message: NDArray[np.float64]
    """[N, N] the same plus the message's overhead; 0 on the diagonal."""
    overhead: NDArray[np.float64]
    """[2, N] minimum time for which a message holds the links out of and into each server."""
    ports: NDArray[np.float64]
    """[2, N] maximum number of concurrent messages on those links: the slowest transfer has a share
    of some link, and holds no more bandwidth on any other."""
    in_round: NDArray[np.int64]
    """[2, N] messages that those links carry in a round."""
    narrow: NDArray[np.int64]
    """[L', 2] links at servers: the server's rank, and messages per round."""
    around: NDArray[np.float64]
    """[L', N] minimum time of a message between that server and each other without that link: from
    the server if the link leaves it, to the server if the link enters it."""

    @staticmethod
    @functools.lru_cache(maxsize=8)
    def of(topology: Topology) -> "MessageTimes":
        """The message times of a network.

        Args:
            topology: the network.
        """
        ends, servers = (topology.source, topology.target), topology.servers
        carried = topology.bandwidth_bytes_per_s / slowest(topology)
        overhead = _overheads(topology)
        narrow, around = _around_links(topology, overhead)
        return MessageTimes(
            servers,
            distances(topology, topology.latency_s),
            message_times(topology),
            overhead,
            np.array(
                [np.bincount(end, carried, topology.num_nodes)[servers] for end in ends], np.float64
            ),
            np.array(
                [np.bincount(end, topology.capacity, topology.num_nodes)[servers] for end in ends]
            ).astype(np.int64),
            narrow,
            around,
        )

    @property
    def count(self) -> int:
        """N."""
        return len(self.servers)

    @property
    def spread(self) -> NDArray[np.float64]:
        """[N] when a server can have one, two, … contributions if all pairs were as near as any."""
        others = self.distance[~np.eye(self.count, dtype=bool)]
        return spread_times(
            float(others.min()), float(self.overhead.min()), float(self.ports.max()), self.count
        )

    def single(self, collective: Collective) -> Iterator[LatencyBound]:
        """Bounds from one server's contribution, or from what one server must receive."""
        yield self.farthest()
        if self.count <= MAX_SERVERS:
            if collective != "reduce_scatter":
                yield max(self.reach(gathering=False), key=lambda bound: bound.seconds)
            if collective != "all_gather":
                yield max(self.reach(gathering=True), key=lambda bound: bound.seconds)
        else:
            kind: Kind = "gather" if collective == "reduce_scatter" else "reach"
            ends, ports = (int(self.servers[0]),), float(self.ports.max())
            yield LatencyBound(float(self.spread[-1]), kind, ends, self.count - 1, ports)

    def farthest(self) -> LatencyBound:
        """The bound from the largest distance between two servers."""
        source, target = np.unravel_index(np.argmax(self.message), self.message.shape)
        ends = int(self.servers[source]), int(self.servers[target])
        return LatencyBound(float(self.message[source, target]), "distance", ends)

    def of_one_root(self, collective: Collective) -> LatencyBound:
        """The bound for a stage with its best root: from it to all, or from all to it."""
        reaching = collective == "all_gather"
        largest = self.message.max(axis=1 if reaching else 0)
        root = int(np.argmin(largest))
        far = int(np.argmax(self.message[root] if reaching else self.message[:, root]))
        ends = (root, far) if reaching else (far, root)
        nearest = LatencyBound(
            float(largest[root]),
            "distance",
            (int(self.servers[ends[0]]), int(self.servers[ends[1]])),
        )
        if self.count > MAX_SERVERS:
            return nearest
        by_ports = min(self.reach(gathering=not reaching), key=lambda bound: bound.seconds)
        return max(nearest, by_ports, key=lambda bound: bound.seconds)

    def reach(
        self, *, gathering: bool, servers: Iterable[int] | None = None
    ) -> Iterator[LatencyBound]:
        """For each server, when its contribution can have reached all others, or theirs it.

        Args:
            gathering: whether the others' contributions must reach the server.
            servers: ranks; all if not given.
        """
        from gradweave.bounds.seconds.latency_kernel import not_before

        side, spread = int(gathering), self.spread
        distance = np.ascontiguousarray(self.distance.T if gathering else self.distance)
        for server in range(self.count) if servers is None else servers:
            best, most = 0.0, 0
            for chosen in self.sets_around(server, gathering):
                reached = self._reached(chosen, gathering)
                found = not_before(
                    server,
                    reached.shape[1],
                    int(chosen[server]),
                    gathering,
                    distance,
                    float(self.overhead[side, server]),
                    float(self.ports[side, server]),
                    spread,
                    reached,
                    HALVINGS,
                )
                if found > best:
                    best, most = found, reached.shape[1] - int(chosen[server])
            kind: Kind = "gather" if gathering else "reach"
            ports = float(self.ports[side, server])
            yield LatencyBound(best, kind, (int(self.servers[server]),), most, ports)

    def relay(self) -> LatencyBound:
        """Some pair of servers cannot exchange their contributions directly.

        Either a third server relays, or one of the two sends on a message that it has received.
        """
        if self.count == 2 or self.count > MAX_DISTANCES:
            return LatencyBound(0.0, "relay", (int(self.servers[0]),) * 2)
        lone = self.message + np.diag(np.full(self.count, np.inf))
        second = np.stack([(lone + lone[:, [j]].T).min(axis=1) for j in range(self.count)], axis=1)
        second = np.minimum(second, lone.min(axis=0)[:, None] + self.message)
        second = np.minimum(second, second.T)
        np.fill_diagonal(second, -np.inf)
        at_once = np.minimum(self.in_round.min(axis=0), self.count - 1)
        ranks = np.concatenate([np.arange(self.count), self.narrow[:, 0]])
        values = np.concatenate([second, np.minimum(second[self.narrow[:, 0]], self.around)])
        at_once = np.concatenate([at_once, np.minimum(self.narrow[:, 1], self.count - 1)])
        rows = np.arange(len(ranks))
        partner = np.argsort(-values, axis=1, kind="stable")[rows, at_once]
        row = int(np.argmax(values[rows, partner]))
        ends = int(self.servers[ranks[row]]), int(self.servers[partner[row]])
        value = max(0.0, float(values[row, partner[row]]))
        return LatencyBound(value, "relay", ends, ports=float(at_once[row]))

    def meeting(self, known_s: float = 0.0) -> LatencyBound:
        """When sums can be complete everywhere, whether or not complete sums are sent.

        Args:
            known_s: another bound; a value that does not exceed it need not be exact.
        """
        if self.count == 2 or self.count > MAX_MEETING:
            return LatencyBound(0.0, "meeting")
        lone = self.message + np.diag(np.full(self.count, np.inf))
        onward = lone.min(axis=1)
        gathered = np.array([bound.seconds for bound in self.reach(gathering=True)])
        at = int(np.argmin(gathered + onward))
        high, low = float(gathered[at] + onward[at]), known_s
        found = LatencyBound(high, "meeting", (int(self.servers[at]),), then_s=float(onward[at]))
        if high <= low or self._can_meet(low, lone, onward):
            return dataclasses.replace(found, seconds=min(high, low))
        if not self._can_meet(high, lone, onward):
            return found
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            if self._can_meet(middle, lone, onward):
                high = middle
            else:
                low = middle
        return dataclasses.replace(found, seconds=low)

    def _can_meet(self, time: float, lone: NDArray, onward: NDArray) -> bool:
        """Whether all can have exchanged partial sums by a time if no complete sum is sent."""
        return any(self._can_meet_at(server, time, lone, onward) for server in range(self.count))

    def _can_meet_at(self, server: int, time: float, lone: NDArray, onward: NDArray) -> bool:
        """Whether one server and those it receives from can have all contributions by then.

        The server also sends what it has.
        """
        from gradweave.bounds.seconds.latency_kernel import known_by

        until = time - lone[:, server]
        until[server] = time - onward[server]
        partners = min(int(self.in_round[1, server]), self.count - 1)
        others = np.arange(self.count) != server
        near = self.message <= until
        fits = (near | near[:, [server]]).all(axis=0)
        if partners > 1 and not near.any(axis=1).all():
            return False
        distance, spread = np.ascontiguousarray(self.distance.T), self.spread
        for chosen in self.sets_around(server, True):
            known = known_by(
                until,
                chosen.astype(np.int64),
                distance,
                self.overhead[1],
                self.ports[1],
                spread,
                self._reached(chosen, True),
            )
            lacking = int(chosen.sum()) - known[server]
            # A single partner must bring all that the server lacks; several may divide it among
            # them, so that the most that each can know is added up.
            if partners == 1:
                fits &= known >= lacking
            elif np.sort(known[others])[-partners:].sum() < lacking:
                return False
        return partners > 1 or bool((fits & others).any())

    def sets_around(self, server: int, gathering: bool) -> Iterator[NDArray[np.bool_]]:
        """[N] all servers, then those at the largest distances from a server, or to it."""
        times = self.message[:, server] if gathering else self.message[server]
        yield np.ones(self.count, bool)
        apart = np.unique(times)
        steps = apart[1:][np.diff(apart) > ROUNDING * apart[-1]]
        for least in steps[1:][-MAX_SETS:]:
            yield times >= least

    def _reached(self, chosen: NDArray[np.bool_], gathering: bool) -> NDArray[np.float64]:
        """[N, Z] for each server, ascending: when the contributions of a set can have arrived."""
        times = self.message[chosen].T if gathering else self.message[:, chosen]
        return np.sort(times, axis=1)


def spread_times(
    latency_s: float, overhead_s: float, ports: float, count: int
) -> NDArray[np.float64]:
    """[N] when one, two, … servers can know of something if each keeps sending all the time.

    The k-th message of a server that knows since t arrives at t + latency + overhead · max(1, k/p),
    where p is the number of messages that a server's links carry concurrently. O(N log N).

    Args:
        latency_s: latency of each message.
        overhead_s: seconds for which a message holds links.
        ports: p.
        count: N.
    """
    times, arrivals = [0.0], [(latency_s + overhead_s, 0.0, 1)]
    for _ in range(count - 1):
        time, since, k = heapq.heappop(arrivals)
        follows = since + latency_s + overhead_s * max(1.0, (k + 1) / ports)
        heapq.heappush(arrivals, (follows, since, k + 1))
        heapq.heappush(arrivals, (time + latency_s + overhead_s, time, 1))
        times.append(time)
    return np.array(times)


def _of_many(topology: Topology, collective: Collective) -> LatencyBound:
    """The bound for very many servers, with all distances as short as one link's latency."""
    ends, inside = (topology.source, topology.target), topology.is_server
    carried = topology.bandwidth_bytes_per_s / slowest(topology)
    ports = max(
        float(np.bincount(end, carried, topology.num_nodes)[topology.servers].max()) for end in ends
    )
    latency = float(topology.latency_s[inside[topology.source]].min())
    overhead, count = float(topology.overhead_s.min()), topology.num_servers
    time = float(spread_times(latency, overhead, ports, count)[-1])
    kind: Kind = "gather" if collective == "reduce_scatter" else "reach"
    first = (int(topology.servers[0]),)
    return LatencyBound(time * (1 - ROUNDING), kind, first, count - 1, ports)


def slowest(topology: Topology) -> float:
    """Minimum bandwidth of a transfer, in bytes per second: a share of some link."""
    return float((topology.bandwidth_bytes_per_s / topology.capacity).min())


def distances(topology: Topology, cost: Floats) -> NDArray[np.float64]:
    """[N, N] minimum sum of link costs from each server to each other, over any path.

    Args:
        topology: the network.
        cost: [L] cost of each link direction; infinite if it must not be used.
    """
    ends = topology.source, topology.target
    least = node_distances(topology.servers, cost, ends, topology.num_nodes)
    return np.ascontiguousarray(least[topology.servers])


def message_times(topology: Topology) -> NDArray[np.float64]:
    """[N, N] minimum latency plus overhead from each server to each other.

    For each overhead in the network: that overhead plus the minimum latency over paths whose links
    have at most that overhead. At least what the overheads at both ends require.
    """
    least = np.full((topology.num_servers,) * 2, np.inf)
    for overhead_s, latency_s in by_overhead(topology):
        least = np.minimum(least, overhead_s + distances(topology, latency_s))
    out, into = _overheads(topology)
    ends = np.maximum(out[:, None], into)
    least = np.maximum(least, ends + distances(topology, topology.latency_s))
    np.fill_diagonal(least, 0.0)
    return least


def _overheads(topology: Topology) -> NDArray[np.float64]:
    """[2, N] minimum time for which a message holds the links out of and into each server."""
    least = np.full((2, topology.num_nodes), np.inf)
    for side, end in zip(least, (topology.source, topology.target), strict=True):
        np.minimum.at(side, end, topology.overhead_s)
    return least[:, topology.servers]


def by_overhead(topology: Topology) -> list[tuple[float, NDArray[np.float64]]]:
    """Overheads, each with the latencies of links that have at most it, infinite for others.

    If links have more than `MAX_OVERHEADS` overheads, some are kept and others rounded down.
    """
    overheads = np.unique(topology.overhead_s)  # `gradweave_check.Messages` keeps the same levels
    steps = MAX_OVERHEADS - 1
    kept = overheads[np.unique((len(overheads) - 1) * np.arange(MAX_OVERHEADS) // steps)]
    counted_as = kept[np.searchsorted(kept, topology.overhead_s, side="right") - 1]
    return [(most, np.where(counted_as <= most, topology.latency_s, np.inf)) for most in kept]


def _around_links(
    topology: Topology, overhead: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """`narrow` and `around` of `MessageTimes`: minimum times without one of a server's links."""
    narrow, around = [], []
    for side, end, other in zip(
        overhead,
        (topology.source, topology.target),
        (topology.target, topology.source),
        strict=True,
    ):
        # From each node to each server, or to each node from each server.
        least = node_distances(
            topology.servers, topology.latency_s, (end, other), topology.num_nodes
        )
        over = topology.latency_s[:, None] + least[other]
        for server in topology.servers.tolist():
            links = np.flatnonzero(end == server)
            for link in links.tolist():
                rest = over[links[links != link]]
                without = rest.min(axis=0) if len(rest) else np.full(topology.num_servers, np.inf)
                narrow.append((int(topology.rank[server]), int(topology.capacity[link])))
                around.append(side[topology.rank[server]] + without)
    return np.array(narrow, np.int64).reshape(-1, 2), np.array(around)


def _each(servers: tuple[int, ...], name: Name) -> list[str]:
    return [named("server", (server,), name) for server in servers]
