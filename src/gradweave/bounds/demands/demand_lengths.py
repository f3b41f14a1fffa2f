"""Link lengths that prove a lower bound on a demand's time."""

import dataclasses
import functools
import math
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from gradweave.bounds.bound import WORTH_SAYING, Certificate, Name
from gradweave.bounds.classes import (
    ROUTES_PASS_SERVERS,
    SUMS_MEET_ANYWHERE,
    SWITCHES_ADD,
    impossible_on,
)
from gradweave.bounds.demands.arborescence_kernel import least_arborescence
from gradweave.bounds.demands.link_windows import FEMTOSECONDS, least_idle
from gradweave.bounds.distances import node_distances
from gradweave.bounds.prices import Prices, Unit, checked_integers
from gradweave.common.wording import counted
from gradweave.errors import OptionError
from gradweave.schedules.demand import LET_RELAY, Demand, Sets
from gradweave.topology.topology import Integers, Topology
from gradweave.topology.units import format_bandwidth, format_seconds, format_size

FAR = 1 << 60
"""Length that stands for an unreachable target."""


@dataclasses.dataclass(frozen=True, eq=False)
class DemandLengths(Certificate):
    """Link lengths that prove a lower bound on a demand's time, in seconds or in rounds.

    Every byte that crosses a link uses the link's length. Each block uses at least its bytes times
    the minimum length of whatever must carry it: a path for one contributor and one destination; a
    tree from the contributor to all destinations, or from all contributors to the destination; or
    one tree to some server and a second tree from there. Per second, all links offer their
    bandwidths times their lengths, less the time before bytes can have reached a link and the time
    they still need after it (`link_windows.least_idle`). In rounds, bytes count as pieces of equal
    size, and links offer their capacities times their lengths. Any lengths prove a valid bound,
    however they were found.

    The bound holds for schedules built from trees: if a block has several contributors and several
    destinations, all contributions are added somewhere before the sum is copied. Messages end at
    the first server of their route.
    """

    topology: Topology
    demand: Demand
    length: Integers
    """[L] of each link direction, at least 0, at most `prices.MAX_LENGTH`."""
    unit: Unit = "seconds"

    def __post_init__(self) -> None:
        length = checked_integers(self.topology, self.length)
        self.demand.check_servers(self.topology)
        object.__setattr__(self, "length", length)

    @functools.cached_property
    def used_by_job(self) -> tuple[int, ...]:
        """[jobs] minimum sum over each job's blocks of bytes times length; exact."""
        return tuple(
            sum(int(size) * length for size, length in zip(sizes, carriers, strict=True))
            for sizes, carriers in (
                (self.demand.bytes[blocks].tolist(), least.of_blocks(self.demand, blocks))
                for blocks, least in least_of_jobs(self.topology, self.demand, self.length)
            )
        )

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
    def prices(self) -> Prices:
        """The lengths as prices."""
        return Prices(self.topology, self.length[None], unit=self.unit)

    @property
    def offered(self) -> Fraction:
        """Capacity times length of all link directions, per second or per round; exact."""
        return self.prices.offered

    @functools.cached_property
    def time(self) -> Fraction:
        """Minimum duration of the demand, in seconds or in whole rounds; exact.

        In seconds, it is the smallest T for which all links together offer what is used, each link
        for T less the time for which it must be idle.
        """
        used = Fraction(self.used)
        if self.unit == "rounds":
            return Fraction(math.ceil(self.prices.time(used, np.zeros(len(self.length)))))
        return self.prices.time(used, least_idle(self.topology, self.demand), FEMTOSECONDS)

    def reason(self, name: Name = str) -> str:
        """The certificate in words.

        Args:
            name: (node id) -> display name.
        """
        besides = float(self.time - self.used / self.offered) if self.offered else 0.0
        if self.unit == "rounds" or besides <= WORTH_SAYING * self.time:
            return self._of_bytes(name)
        return (
            f"{self._of_bytes(name)}, and messages take {format_seconds(besides)} on top of their "
            "bytes"
        )

    def _of_bytes(self, name: Name) -> str:
        topology, links = self.topology, np.flatnonzero(self.length)
        used, rate = format_size(self.used), format_bandwidth(float(self.offered))
        moved = "bytes"
        if self.unit == "rounds":
            used, rate = counted(self.used, "piece"), f"{int(self.offered):,} per round"
            moved = "pieces"
        if self.length.max() == 1:
            for ends, verb in ((topology.source, "leave"), (topology.target, "enter")):
                node = int(ends[links[0]])
                if topology.is_server[node] and np.array_equal(links, np.flatnonzero(ends == node)):
                    return f"{used} must {verb} server {name(node)} at {rate}"
            return f"{used} must cross {len(links)} link directions, which carry {rate} together"
        return (
            f"with lengths up to {self.length.max():,} on {len(links)} link directions, the "
            f"{moved} use {float(self.used):.4g}, and the links offer {float(self.offered):.4g} "
            f"per {self.unit[:-1]}"
        )


def least_of_jobs(
    topology: Topology, demand: Demand, length: Integers
) -> Iterator[tuple[NDArray[np.int64], "LeastCarriers"]]:
    """For each job, its blocks, and the carriers among the servers that it may use.

    Args:
        topology: the network.
        demand: the blocks.
        length: [L] of link directions.
    """
    for job in range(len(demand.jobs)):
        blocks = np.flatnonzero(demand.job == job)
        servers = np.union1d(demand.servers_of(job), demand.relays).astype(np.int64)
        yield blocks, LeastCarriers(topology, servers, length)


class LeastCarriers:
    """Minimum lengths of paths and trees among servers that may relay.

    Args:
        topology: the network.
        servers: [R] node ids, ascending.
        length: [L] of link directions, integers.
    """

    def __init__(self, topology: Topology, servers: Integers, length: Integers) -> None:
        self._topology, self._servers, self._cost = topology, servers, length.astype(np.float64)
        self._trees: dict[tuple[int, bool], int] = {}

    @functools.cached_property
    def path(self) -> NDArray[np.int64]:
        """[R, R] minimum length of a path; `FAR` if there is none."""
        topology, ends = self._topology, (self._topology.source, self._topology.target)
        passes = ~topology.is_server
        passes[self._servers] = True
        cost = np.where(passes[ends[0]] & passes[ends[1]], self._cost, np.inf)
        return self._between(cost, self._servers, ends, topology.num_nodes)

    @functools.cached_property
    def _hop(self) -> NDArray[np.int64]:
        """[R, R] minimum length of a route that passes no server."""
        topology, nodes = self._topology, self._topology.num_nodes
        # Every hop that enters a server ends there, at a separate node.
        entered = np.where(topology.is_server, np.arange(nodes) + nodes, np.arange(nodes))
        ends = topology.source, entered[topology.target]
        hop = self._between(self._cost, entered[self._servers], ends, 2 * nodes)
        np.fill_diagonal(hop, FAR)
        return hop

    def _between(
        self,
        cost: NDArray[np.float64],
        entered: Integers,
        ends: tuple[Integers, Integers],
        nodes: int,
    ) -> NDArray[np.int64]:
        found = node_distances(entered, cost, ends, nodes)[self._servers]
        return np.where(np.isfinite(found), found, FAR).astype(np.int64)

    def between(self, given: Integers, wanted: Integers) -> NDArray[np.int64]:
        """[given, wanted] minimum length of a path from each of some servers to each of others.

        Args:
            given: node ids.
            wanted: node ids.
        """
        return self.path[np.ix_(*(np.searchsorted(self._servers, ids) for ids in (given, wanted)))]

    def of_blocks(self, demand: Demand, blocks: NDArray[np.int64]) -> list[int]:
        """The minimum length of what carries each of some blocks.

        Args:
            demand: all blocks.
            blocks: indices of blocks among these servers.
        """
        given, wanted = (
            Sets(np.searchsorted(self._servers, sets.members), sets.starts, sets.stored)
            for sets in (demand.contributors.take(blocks), demand.destinations.take(blocks))
        )
        if (given.sizes == 1).all() and (wanted.sizes == 1).all():
            found = self.path[given.servers, wanted.servers]
            if len(found) and found.max() >= FAR:
                k = int(found.argmax())
                raise self._unreachable(given[k], wanted[k])
            return found.tolist()
        pairs = np.stack([given.stored, wanted.stored])
        _, first, kind = np.unique(pairs, axis=1, return_index=True, return_inverse=True)
        lengths = [self.length(given[k], wanted[k]) for k in first.tolist()]
        return [lengths[k] for k in kind.reshape(-1).tolist()]

    def length(self, given: Integers, wanted: Integers) -> int:
        """The minimum length of a path or tree that carries a block.

        A tree that may leave servers out is at least as long as its longest shortest path.

        Args:
            given: indices of its contributors among `servers`.
            wanted: indices of its destinations.
        """
        everyone, found = len(self._servers), int(self.path[np.ix_(given, wanted)].max())
        if len(given) == 1 and len(np.union1d(given, wanted)) == everyone > 2:
            found = self.tree(int(given[0]), False)
        elif len(wanted) == 1 and len(np.union1d(given, wanted)) == everyone > 2:
            found = self.tree(int(wanted[0]), True)
        elif len(given) == len(wanted) == everyone:
            found = min(self.tree(r, True) + self.tree(r, False) for r in range(everyone))
        if found >= FAR:
            raise self._unreachable(given, wanted)
        return found

    def _unreachable(self, given: Integers, wanted: Integers) -> OptionError:
        path = self.path[np.ix_(given, wanted)]
        a, b = divmod(int(path.argmax()), len(wanted))
        return OptionError(
            f"demand: every path from server {self._servers[given[a]]} to server "
            f"{self._servers[wanted[b]]} passes servers that are not in the job; {LET_RELAY}"
        )

    def tree(self, root: int, towards: bool) -> int:
        """Minimum length of a tree that spans all servers, from a root or to it."""
        if (root, towards) not in self._trees:
            hop = self._hop.T.copy() if towards else self._hop
            self._trees[root, towards] = int(least_arborescence(hop, root, FAR))
        return self._trees[root, towards]
