"""The runtimes' algorithms: direct sends, chains, binomial and double binary trees."""

import abc
import dataclasses
import functools
from collections.abc import Iterator
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gradweave.common.stop import Stop
from gradweave.schedulers.carriers import (
    Carrier,
    Relayed,
    TreePair,
    even_plan,
    path_carrier,
)
from gradweave.schedulers.flows.even_routes import EvenRoutes
from gradweave.schedulers.ordering.pieces import Pieces
from gradweave.schedulers.scheduler import DemandStrategy, check_counts
from gradweave.schedulers.textbook.double_tree import mirrored, parents
from gradweave.schedulers.textbook.halving_doubling import MAX_RADIX
from gradweave.schedules.demand import Demand
from gradweave.schedules.schedule import Schedule
from gradweave.topology.topology import Topology
from gradweave.topology.units import format_seconds


@dataclasses.dataclass(frozen=True)
class Textbook(DemandStrategy):
    """One or more trees per block, of a shape that does not depend on the network.

    Hops take the fastest routes for bytes, equal ones in turn; the number of pieces is the fastest
    one.
    """

    time_share: ClassVar[float] = 0.1
    unicast: ClassVar[bool] = False
    """Whether it supports blocks of one contributor and one destination."""

    def make(self, topology: Topology, demand: Demand, seed: int, stop: Stop) -> Schedule:
        """Makes the schedule; `schedule` verifies it."""
        if demand.unicast and not self.unicast:
            raise self.refused("needs blocks of several contributors or destinations")
        plan = even_plan(topology, demand, self.carriers(topology, demand))
        if (busiest_s := plan.busiest_s) >= stop.below:
            raise self.refused(f"its bytes keep a link busy for {format_seconds(busiest_s)}")
        pieces = Pieces(plan)
        return pieces.schedule(pieces.fastest(stop))

    def carriers(self, topology: Topology, demand: Demand) -> Iterator[tuple[int, Carrier]]:
        """Blocks, ascending, each with carriers that divide it evenly.

        Args:
            topology: the network.
            demand: the blocks to sum and move.

        Raises:
            NoScheduleError: if servers that must send to each other share no link or switch.
        """
        rank = topology.rank.astype(np.int64)
        routes = EvenRoutes(topology)

        def route_of(size: float, source: int, target: int) -> tuple[int, ...]:
            if not np.isfinite(routes.cost[source, target]):
                ends = (topology.node_name(int(topology.servers[r])) for r in (source, target))
                raise self.refused("{} and {} share no link or switch".format(*ends))
            return routes.route(size, source, target)

        groups = [rank[demand.servers_of(job)] for job in range(len(demand.jobs))]
        relayed = [
            Relayed(routes.cost, np.union1d(group, rank[demand.relays]).astype(np.int64))
            for group in groups
        ]
        for number in range(len(demand)):
            job = int(demand.job[number])
            group, route = groups[job], functools.partial(route_of, float(demand.bytes[number]))
            given, wanted = rank[demand.contributors[number]], rank[demand.destinations[number]]
            if len(given) == len(wanted) == 1:
                ends = np.searchsorted(group, [given[0], wanted[0]]).tolist()
                if path := self._path(len(group), *ends):
                    yield number, path_carrier(topology, group[path].tolist(), route)
                else:
                    path = relayed[job].path(int(given[0]), int(wanted[0]))
                    yield number, path_carrier(topology, path, route)
                continue
            gives, wants = np.isin(group, given), np.isin(group, wanted)
            for root in self._roots(gives, wants):
                for parent in self._parents(topology, group, root):
                    trees = TreePair(group, root, parent, gives, parent, wants)
                    yield number, trees.carrier(topology, route)

    def _roots(self, gives: NDArray[np.bool_], wants: NDArray[np.bool_]) -> list[int]:
        """Places of the roots that share a block."""
        if gives.sum() == 1:
            return np.flatnonzero(gives).tolist()
        if wants.sum() == 1:
            return np.flatnonzero(wants).tolist()
        return np.flatnonzero(gives | wants).tolist()

    def _path(self, servers: int, source: int, target: int) -> list[int]:
        """Places on the path of a block with one contributor and destination; empty if direct."""
        return []

    @abc.abstractmethod
    def _parents(
        self, topology: Topology, group: NDArray[np.int64], root: int
    ) -> Iterator[NDArray[np.int64]]:
        """The trees that share a root's part.

        Args:
            topology: the network.
            group: [G] ranks of a job's servers, ascending.
            root: the root's place in the group.

        Yields:
            [G] the parent of each place; −1 at the root.
        """


@dataclasses.dataclass(frozen=True)
class Direct(Textbook):
    """Every block directly from each contributor, and directly to each destination.

    An all-to-all is the pairwise exchange; behind switches, all send to the next server, then all
    to the one after that. Between servers that share no link or switch, others relay, on the
    fastest path for bytes.
    """

    name: ClassVar[str] = "direct"
    time_share: ClassVar[float] = 1.0
    unicast: ClassVar[bool] = True

    def _parents(
        self, topology: Topology, group: NDArray[np.int64], root: int
    ) -> Iterator[NDArray[np.int64]]:
        parent = np.full(len(group), root)
        parent[root] = -1
        yield parent


@dataclasses.dataclass(frozen=True)
class Chain(Textbook):
    """Pipelined chains in the order of the servers' ids; an all-gather is the ring.

    An all-reduce uses rings in both directions: a sum goes one way to its root, then back the
    other.
    """

    name: ClassVar[str] = "chain"

    def _parents(
        self, topology: Topology, group: NDArray[np.int64], root: int
    ) -> Iterator[NDArray[np.int64]]:
        parent = (np.arange(len(group)) - 1) % len(group)
        parent[root] = -1
        yield parent


@dataclasses.dataclass(frozen=True)
class BinomialTree(Textbook):
    """Binomial trees: the fewest steps in sequence if each server sends one message at a time.

    The trees of all roots are one tree rotated along the ring of places, so that an all-gather
    among any number of servers takes ⌈log2 N⌉ steps. With ``radix=k`` they are k-nomial trees with
    ⌈logk N⌉ levels: the parent of a place is the place with its highest digit to the base k set to
    0.

    Source: Thakur, Rabenseifner and Gropp 2005, for the tree; Bruck et al. 1997, its
        concatenation, for the all-gather.
    """

    name: ClassVar[str] = "binomial_tree"

    radix: int = 2
    """k: the factor by which each level multiplies the number of servers reached."""

    def __post_init__(self) -> None:
        check_counts(self, "radix", least=2, most=MAX_RADIX)

    def _parents(
        self, topology: Topology, group: NDArray[np.int64], root: int
    ) -> Iterator[NDArray[np.int64]]:
        servers = len(group)
        place, highest = np.arange(servers), np.ones(servers, np.int64)
        while (below := place >= highest * self.radix).any():
            highest[below] *= self.radix
        made = np.full(servers, -1)
        made[(place[1:] + root) % servers] = ((place % highest + root) % servers)[1:]
        yield made


@dataclasses.dataclass(frozen=True)
class DoubleBinaryTree(Textbook):
    """Two binary trees per root, each with half the bytes; leaves of one are inner in the other.

    A broadcast or a reduction has one root. In an all-reduce among N servers every server is a
    root, which gives 2N trees; their bytes take (N − 1) / N of the time that they would take in
    only two trees. NCCL's all-reduce uses two trees: `gradweave.schedulers.DoubleTree`, as
    ``double_tree``.

    Source: Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast, reduction
        and scan", 2009.
    """

    name: ClassVar[str] = "double_binary_tree"

    def _parents(
        self, topology: Topology, group: NDArray[np.int64], root: int
    ) -> Iterator[NDArray[np.int64]]:
        servers = len(group)
        others = (np.arange(1, servers) + root) % servers
        for order in (others, mirrored(others)):
            placed = np.concatenate([[root], order])
            made = np.full(servers, -1)
            made[order] = placed[parents(servers)[1:]]
            yield made
