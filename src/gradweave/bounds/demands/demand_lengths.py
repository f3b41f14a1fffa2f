"""Link lengths that prove a lower bound on a demand's time."""

import dataclasses
import functools
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from gradweave.bounds.bound import WORTH_SAYING, Name
from gradweave.bounds.classes import (
    ROUTES_PASS_SERVERS,
    SUMS_MEET_ANYWHERE,
    SWITCHES_ADD,
    impossible_on,
)
from gradweave.bounds.demands.arborescence_kernel import least_arborescence
from gradweave.bounds.demands.link_lengths import checked_integers
from gradweave.bounds.demands.link_windows import FEMTOSECONDS, NEVER, least_idle
from gradweave.bounds.distances import node_distances
from gradweave.errors import OptionError
from gradweave.schedules.demand import LET_RELAY, Demand
from gradweave.topology.topology import Integers, Topology
from gradweave.topology.units import format_bandwidth, format_seconds, format_size

FAR = 1 << 60
"""Length that stands for an unreachable target."""


@dataclasses.dataclass(frozen=True, eq=False)
class DemandLengths:
    """Link lengths that prove a lower bound on a demand's time.

    Every byte that crosses a link uses the link's length. Each block uses at least its bytes times
    the minimum length of whatever must carry it: a path for one contributor and one destination; a
    tree from the contributor to all destinations, or from all contributors to the destination; or
    one tree to some server and a second tree from there. Per second, all links offer their
    bandwidths times their lengths, less the time before bytes can have reached a link and the time
    they still need after it (`link_windows.least_idle`). Any lengths prove a valid bound, however
    they were found.

    The bound holds for schedules built from trees: if a block has several contributors and several
    destinations, all contributions are added somewhere before the sum is copied. Messages end at
    the first server of their route.
    """

    topology: Topology
    demand: Demand
    length: Integers
    """[L] of each link direction, at least 0, at most `link_lengths.MAX_LENGTH`."""

    def __post_init__(self) -> None:
        length = checked_integers(self.topology, self.length)
        self.demand.check_servers(self.topology)
        object.__setattr__(self, "length", length)

    @functools.cached_property
    def used_by_job(self) -> tuple[int, ...]:
        """[jobs] minimum sum over each job's blocks of bytes times length; exact."""
        there = set(self.demand.job.tolist())
        jobs = range(len(self.demand.jobs))
        return tuple(_used_by(self, job) if job in there else 0 for job in jobs)

    @functools.cached_property
    def holds_unless(self) -> frozenset[str]:
        """Liberties that void the bound if a schedule takes one; see `gradweave.bounds.classes`."""
        sets = self.demand.contributors.sizes, self.demand.destinations.sizes
        several = bool(((sets[0] > 1) & (sets[1] > 1)).any())
        unless = {SWITCHES_ADD, ROUTES_PASS_SERVERS, *[SUMS_MEET_ANYWHERE] * several}
        return frozenset(unless) - impossible_on(self.topology)

    @property
    def used(self) -> int:
        """The sum of `used_by_job` over all jobs."""
        return sum(self.used_by_job)

    @functools.cached_property
    def offered(self) -> Fraction:
        """Bandwidth times length of all link directions; exact."""
        return self._offered_by(np.flatnonzero(self.length))

    @functools.cached_property
    def seconds(self) -> Fraction:
        """Minimum duration of the demand in seconds; exact.

        It is the smallest T for which all links together offer what is used, each link for T less
        the time for which it must be idle.
        """
        idle = least_idle(self.topology, self.demand)
        links = np.flatnonzero((self.length > 0) & (idle != NEVER))
        order = links[np.argsort(idle[links], kind="stable")]
        offered, seconds, unused = Fraction(0), Fraction(0), Fraction(self.used)
        for alike in np.split(order, np.flatnonzero(np.diff(idle[order])) + 1):
            since = Fraction(int(idle[alike[0]]) if len(alike) else 0, FEMTOSECONDS)
            if offered and seconds <= since:
                break
            rate = self._offered_by(alike)
            offered, unused = offered + rate, unused + rate * since
            seconds = unused / offered if offered else seconds
        return seconds if self.used else Fraction(0)

    def _offered_by(self, links: NDArray[np.int64]) -> Fraction:
        """Bandwidth times length of some link directions."""
        values, kind = np.unique(self.topology.bandwidth_bytes_per_s[links], return_inverse=True)
        length = self.length[links].astype(object)
        pairs = ((value, length[kind == k].sum()) for k, value in enumerate(values.tolist()))
        return sum((Fraction(value) * int(total) for value, total in pairs), Fraction(0))

    def reason(self, name: Name = str) -> str:
        """The certificate in words.

        Args:
            name: (node id) -> display name.
        """
        besides = float(self.seconds - self.used / self.offered) if self.offered else 0.0
        if besides <= WORTH_SAYING * self.seconds:
            return self._of_bytes(name)
        return (
            f"{self._of_bytes(name)}, and messages take {format_seconds(besides)} on top of their "
            "bytes"
        )

    def _of_bytes(self, name: Name) -> str:
        topology, links = self.topology, np.flatnonzero(self.length)
        if self.length.max() == 1:
            amount, rate = format_size(self.used), format_bandwidth(float(self.offered))
            for ends, verb in ((topology.source, "leave"), (topology.target, "enter")):
                node = int(ends[links[0]])
                if topology.is_server[node] and np.array_equal(links, np.flatnonzero(ends == node)):
                    return f"{amount} must {verb} server {name(node)} at {rate}"
            return f"{amount} must cross {len(links)} link directions, which carry {rate} together"
        return (
            f"with lengths up to {self.length.max():,} on {len(links)} link directions, the bytes "
            f"use {float(self.used):.4g}, and the links offer {float(self.offered):.4g} per second"
        )

    def __str__(self) -> str:
        return self.reason()


def _used_by(lengths: DemandLengths, job: int) -> int:
    """Minimum use of length by a job's blocks."""
    demand, topology = lengths.demand, lengths.topology
    allowed = np.union1d(demand.servers_of(job), demand.relays).astype(np.int64)
    least = _Least(topology, allowed, lengths.length)
    place = np.full(topology.num_nodes, -1)
    place[allowed] = np.arange(len(allowed))
    known: dict[tuple[bytes, bytes], int] = {}
    total = 0
    for block in np.flatnonzero(demand.job == job).tolist():
        sets = demand.contributors[block], demand.destinations[block]
        key = sets[0].tobytes(), sets[1].tobytes()
        if key not in known:
            known[key] = least.length(place[sets[0]], place[sets[1]])
        total += int(demand.bytes[block]) * known[key]
    return total


class _Least:
    """Minimum lengths of paths and trees among servers that may relay.

    Args:
        topology: the network.
        servers: [R] node ids, ascending.
        length: [L] of link directions, integers.
    """

    def __init__(self, topology: Topology, servers: Integers, length: Integers) -> None:
        nodes, ends = topology.num_nodes, (topology.source, topology.target)
        self._servers, cost = servers, length.astype(np.float64)
        # Every hop that enters a server ends there, at a separate node: no hop passes a server.
        entered = np.where(topology.is_server, np.arange(nodes) + nodes, np.arange(nodes))
        over_switches = ends[0], entered[ends[1]]
        hop = node_distances(entered[servers], cost, over_switches, 2 * nodes)[servers]
        passes = ~topology.is_server
        passes[servers] = True
        cost = np.where(passes[ends[0]] & passes[ends[1]], cost, np.inf)
        path = node_distances(servers, cost, ends, nodes)[servers]
        self._hop, self._path = (
            np.where(np.isfinite(one), one, FAR).astype(np.int64) for one in (hop, path)
        )
        np.fill_diagonal(self._hop, FAR)

    def length(self, given: Integers, wanted: Integers) -> int:
        """The minimum length of a path or tree that carries a block.

        A tree that may leave servers out is at least as long as its longest shortest path.

        Args:
            given: indices of its contributors among `servers`.
            wanted: indices of its destinations.
        """
        everyone, found = len(self._hop), int(self._path[np.ix_(given, wanted)].max())
        if len(given) == 1 and len(np.union1d(given, wanted)) == everyone > 2:
            found = self.tree(int(given[0]), False)
        elif len(wanted) == 1 and len(np.union1d(given, wanted)) == everyone > 2:
            found = self.tree(int(wanted[0]), True)
        elif len(given) == len(wanted) == everyone:
            found = min(self.tree(r, True) + self.tree(r, False) for r in range(everyone))
        if found >= FAR:
            path = self._path[np.ix_(given, wanted)]
            a, b = divmod(int(path.argmax()), len(wanted))
            raise OptionError(
                f"demand: every path from server {self._servers[given[a]]} to server "
                f"{self._servers[wanted[b]]} passes servers that are not in the job; {LET_RELAY}"
            )
        return found

    @functools.cache  # noqa: B019 — one object per bound
    def tree(self, root: int, towards: bool) -> int:
        """Minimum length of a tree that spans all servers, from a root or to it."""
        hop = self._hop.T.copy() if towards else self._hop
        return int(least_arborescence(hop, root, FAR))
