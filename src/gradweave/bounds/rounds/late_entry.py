"""Lower bounds from the rounds that remain after the last pieces have crossed a cut."""

import dataclasses
import functools

import numpy as np
from numpy.typing import NDArray

from gradweave.bounds.bound import Bound, LateEntry
from gradweave.bounds.flows import nodes_inside
from gradweave.bounds.rounds.entry_sets import entering, entry_sets
from gradweave.topology.topology import Integers, Topology

WORK = 1 << 27
"""Number of pairs of servers that are examined over all sets."""
MAX_SETS = 64
"""Number of sets that are examined closely, even on a small network."""
ALIKE = 4
"""Sets with equal size and capacity that are examined before all other kinds have had a turn."""
BEYOND = 3
"""Numbers of last rounds that are tried beyond the largest distance."""
UNLIMITED = np.iinfo(np.int64).max


def late_entry(
    topology: Topology,
    capacity: Integers,
    hops: NDArray[np.int32],
    tightest: NDArray[np.bool_],
    rounds: int,
    per_server: int,
) -> Bound | None:
    """A bound on an all-gather that exceeds a known bound, or None if there is none.

    Pieces that enter a set of nodes in the last rounds must still reach every server inside. If m
    pieces must enter at C per round, at most q of them in the last j rounds and at most p in the
    first i, then at least i + j + ⌈(m − p − q) / C⌉ rounds are needed. Transfers may pass only
    through switches.

    Args:
        topology: the network.
        capacity: [L] of each link direction.
        hops: [N, N] least number of transfers from server to server.
        tightest: [V] the side of the tightest cut that the pieces start on.
        rounds: the known bound.
        per_server: pieces rooted at each server.

    Source: docs/concepts/bounds.md.
    """
    network = _Network(topology, capacity.astype(np.int64), hops, per_server)
    sets = entry_sets(topology, capacity, hops, tightest, rounds, per_server)
    entries = [network.farthest_alone(), *_promising(network, sets, rounds)]
    curves = np.full((len(entries), max(len(entry.curve) for entry in entries)), UNLIMITED)
    for entry, curve in zip(entries, curves, strict=True):
        curve[: len(entry.curve)] = [limit.late for limit in entry.curve]
    certificates = (_strongest(entry, entry.limits(entries, curves)) for entry in entries)
    best = max(certificates, key=lambda certificate: certificate.rounds)
    return Bound(best.rounds, "late_entry", (best,)) if best.rounds > rounds else None


def _promising(network: "_Network", sets: NDArray[np.bool_], rounds: int) -> list["_Entry"]:
    """The sets that may exceed a known bound, as many as there is time for."""
    capacities = entering(network.topology, network.capacity, sets)
    outside = (~sets[:, network.topology.servers]).sum(axis=1) * network.per_server
    cut = -(-outside // capacities)
    # The two ends add at most about two diameters to the rounds in which pieces cross.
    may = np.flatnonzero(cut + 2 * (int(network.hops.max()) - 1) + BEYOND > rounds)
    most = max(1, min(MAX_SETS, WORK // network.topology.num_servers**2))
    repeats = _repeats(np.stack([outside[may], capacities[may]], axis=1))
    chosen = may[np.lexsort((-cut[may], repeats // ALIKE))][:most]
    return [_Entry(network, sets[k], int(capacities[k])) for k in chosen.tolist()]


def _repeats(rows: Integers) -> NDArray[np.int64]:
    """[K] the number of equal rows before each row."""
    _, kind, count = np.unique(rows, axis=0, return_inverse=True, return_counts=True)
    grouped = np.argsort(kind.ravel(), kind="stable")
    repeats = np.empty(len(rows), np.int64)
    repeats[grouped] = np.arange(len(rows)) - np.repeat(np.cumsum(count) - count, count)
    return repeats


@dataclasses.dataclass(frozen=True, eq=False)
class _Network:
    topology: Topology
    capacity: NDArray[np.int64]
    hops: NDArray[np.int32]
    per_server: int

    @functools.cached_property
    def intake(self) -> NDArray[np.int64]:
        """[N] transfers that each server can receive in one round."""
        return self._at_servers(self.topology.target)

    @functools.cached_property
    def output(self) -> NDArray[np.int64]:
        """[N] transfers that each server can send in one round."""
        return self._at_servers(self.topology.source)

    def _at_servers(self, ends: Integers) -> NDArray[np.int64]:
        sums = np.bincount(ends, self.capacity, minlength=self.topology.num_nodes)
        return sums[self.topology.servers].astype(np.int64)

    def farthest_alone(self) -> "_Entry":
        """The single server that needs most rounds, considering how far away the pieces start."""
        count = len(self.hops)
        most = np.zeros(count, np.int64)
        for first in range(min(int(self.hops.max()), max(1, WORK // count**2))):
            beyond = (self.hops > first).sum(axis=0) * self.per_server
            proved = np.where(beyond > 0, first - (-beyond // self.intake), 0)
            np.maximum(most, proved, out=most)
        rank = int(np.argmax(most))
        inside = np.zeros(self.topology.num_nodes, bool)
        inside[self.topology.servers[rank]] = True
        return _Entry(self, inside, int(self.intake[rank]))


@dataclasses.dataclass(frozen=True)
class _Limit:
    """A limit on the pieces that can enter late; see `LateEntry` for the fields."""

    late: int
    reach: tuple[int, ...]
    transfers: int
    deliveries: int
    needed: int


@dataclasses.dataclass(frozen=True, eq=False)
class _Entry:
    """A set of nodes that pieces must enter."""

    network: _Network
    inside: NDArray[np.bool_]
    """[V]"""
    capacity: int
    """Number of transfers that can enter in one round."""

    @functools.cached_property
    def members(self) -> NDArray[np.bool_]:
        """[N] the servers inside, by rank."""
        return self.inside[self.network.topology.servers]

    @functools.cached_property
    def names(self) -> tuple[int, ...]:
        """The servers inside."""
        return tuple(self.network.topology.servers[self.members].tolist())

    @functools.cached_property
    def across(self) -> NDArray[np.int32]:
        """[outside, inside] transfers from each server outside to each inside."""
        return self.network.hops[np.ix_(~self.members, self.members)]

    @functools.cached_property
    def depth(self) -> NDArray[np.int64]:
        """[inside] least number of transfers that bring a piece in to each server."""
        return self.across.min(axis=0).astype(np.int64)

    @functools.cached_property
    def pieces(self) -> int:
        """Pieces that must enter."""
        return len(self.across) * self.network.per_server

    @functools.cached_property
    def early(self) -> NDArray[np.int64]:
        """[i] pieces that start at most i transfers away, for each i below the largest."""
        away = self.across.min(axis=1)
        return np.cumsum(np.bincount(away)[: int(away.max())]) * self.network.per_server

    @functools.cached_property
    def curve(self) -> list[_Limit]:
        """[j] limits that this set implies by itself on pieces that enter in the last j rounds."""
        return [self._own_limit(j) for j in range(int(self.depth.max()) + BEYOND)]

    def _own_limit(self, rounds: int) -> _Limit:
        """Each piece must reach every server, and so the server with least time and capacity left.

        While the possible deliveries suffice for fewer pieces than assumed, the number is lowered.
        """
        left = np.maximum(rounds - self.depth + 1, 0)
        room = left * self.network.intake[self.members]
        hardest = int(np.argmin(room))
        late, needed = int(room[hardest]), len(self.names)
        limit = _Limit(late, (self.names[hardest],), int(self.depth[hardest]), late, 1)
        while late and (total := self._deliveries(rounds, late)) < late * needed:
            late = total // needed
            limit = _Limit(late, self.names, 1, total, needed)
        return limit

    def _deliveries(self, rounds: int, pieces: int) -> int:
        """The most transfers that can bring some late pieces to servers inside in the last rounds.

        In the k-th of these rounds, servers up to k transfers deep receive, no piece twice. Only
        the less deep servers send, and no more pieces than they have received; every other
        transfer crosses the boundary.
        """
        intake = np.minimum(self.network.intake[self.members], pieces)
        output = self.network.output[self.members]
        most, total = int(output.max()), 0
        receive, send = (np.cumsum(np.bincount(self.depth, each)) for each in (intake, output))
        for k in range(1, rounds + 1):
            inner = int(send[min(k, len(send)) - 1])
            total += min(
                int(receive[min(k, len(receive) - 1)]), self.capacity + min(inner, total * most)
            )
        return total

    def limits(self, entries: list["_Entry"], curves: NDArray[np.int64]) -> list[_Limit]:
        """[j] the tightest known limit on pieces that enter in the last j rounds.

        Such pieces enter a set inside this set later, by the transfers in between, and must also
        reach all of its servers.

        Args:
            entries: sets, of which those inside this set are used.
            curves: [K, j] pieces that each of them admits by itself; `UNLIMITED` beyond its curve.
        """
        best = list(self.curve)
        for entry, curve in zip(entries, curves, strict=True):
            if len(entry.names) < len(self.names) and not (entry.members & ~self.members).any():
                between = int(self.depth[entry.members[self.members]].min()) - 1
                for j in range(between, len(best)):
                    if curve[j - between] < best[j].late:
                        limit = entry.curve[j - between]
                        transfers = limit.transfers + between
                        best[j] = dataclasses.replace(limit, transfers=transfers)
        return best


def _strongest(entry: _Entry, limits: list[_Limit]) -> LateEntry:
    """The certificate with the most rounds over all numbers of first and last rounds."""
    late = np.array([limit.late for limit in limits])
    left = entry.pieces - entry.early[:, None] - late
    spent = np.arange(len(entry.early))[:, None] + np.arange(len(late))
    rounds = np.where(left > 0, spent - (-left // entry.capacity), 0)
    i, j = map(int, np.unravel_index(np.argmax(rounds), rounds.shape))
    return LateEntry(
        *nodes_inside(entry.network.topology, entry.inside),
        entry.pieces,
        entry.capacity,
        first_rounds=i,
        early=int(entry.early[i]),
        last_rounds=j,
        **(vars(limits[j]) if j else {}),
    )
