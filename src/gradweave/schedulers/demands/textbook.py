"""What runtimes do: blocks sent straight, along chains, down binomial or double binary trees."""

import abc
import dataclasses
import functools
from collections.abc import Iterator
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gradweave.schedule.demand import Demand
from gradweave.schedule.schedule import Schedule
from gradweave.schedulers.demands.carriers import (
    Carrier,
    Relayed,
    Trees,
    even_plan,
    path_carrier,
)
from gradweave.schedulers.demands.even_routes import EvenRoutes
from gradweave.schedulers.demands.pieces import Pieces
from gradweave.schedulers.demands.strategy import DemandStrategy
from gradweave.schedulers.scheduler import check_counts
from gradweave.schedulers.textbook.double_tree import mirrored, parents
from gradweave.schedulers.textbook.halving_doubling import MAX_RADIX
from gradweave.stop import Stop
from gradweave.topology.topology import Topology
from gradweave.topology.units import format_seconds


@dataclasses.dataclass(frozen=True)
class Textbook(DemandStrategy):
    """One tree for each block, or some, of a shape that does not depend on the network.

    Hops take the routes whose bytes take least time, of equal ones in turn; pieces are as many as
    take least time.
    """

    time_share: ClassVar[float] = 0.1
    unicast: ClassVar[bool] = False
    """Whether it says how blocks of one contributor and one destination go."""

    def make(self, topology: Topology, demand: Demand, seed: int, stop: Stop) -> Schedule:
        """Makes the schedule; `schedule` verifies it."""
        if demand.unicast and not self.unicast:
            raise self.refused("is for blocks of several contributors or destinations")
        plan = even_plan(topology, demand, self.carriers(topology, demand))
        if (busiest_s := plan.busiest_s) >= stop.below:
            raise self.refused(f"its bytes keep a link busy for {format_seconds(busiest_s)}")
        pieces = Pieces(plan)
        return pieces.schedule(pieces.fastest(stop))

    def carriers(self, topology: Topology, demand: Demand) -> Iterator[tuple[int, Carrier]]:
        """Blocks, ascending, with the carriers that divide each evenly.

        Args:
            topology: the network.
            demand: what is to be summed and moved.

        Raises:
            NoScheduleError: where servers that are to send to each other share no link or switch.
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
                    trees = Trees(group, root)
                    if len(given) > 1:
                        trees = dataclasses.replace(trees, towards=parent, given=gives)
                    if len(wanted) > 1:
                        trees = dataclasses.replace(trees, away=parent, wanted=wants)
                    yield number, trees.carrier(topology, route)

    def _roots(self, gives: NDArray[np.bool_], wants: NDArray[np.bool_]) -> list[int]:
        """Places of the roots among which a block is divided."""
        if gives.sum() == 1:
            return np.flatnonzero(gives).tolist()
        if wants.sum() == 1:
            return np.flatnonzero(wants).tolist()
        return np.flatnonzero(gives | wants).tolist()

    def _path(self, servers: int, source: int, target: int) -> list[int]:
        """Places that a block of one contributor and one destination passes; empty: straight."""
        return []

    @abc.abstractmethod
    def _parents(
        self, topology: Topology, group: NDArray[np.int64], root: int
    ) -> Iterator[NDArray[np.int64]]:
        """Trees among which a root's part is divided.

        Args:
            topology: the network.
            group: [G] ranks of a job's servers, ascending.
            root: its place in the group.

        Yields:
            [G] the parent of each place; −1 at the root.
        """


@dataclasses.dataclass(frozen=True)
class Direct(Textbook):
    """Every block straight from each contributor, and straight to each destination.

    An all-to-all is the pairwise exchange; behind switches all send to the next server, then all to
    the one after that. Between servers that share no link or switch others relay, on the way that
    takes the bytes least time.
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

    An all-reduce is rings of both directions: a sum goes one way to its root, then back the other.
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
    """Binomial trees: as few transfers in a row as can be where each server sends one at a time.

    Trees of all roots are one tree moved round the ring of places, so that an all-gather among any
    number of servers takes ⌈log2 N⌉ steps. With ``radix=k`` they are k-nomial trees, of ⌈logk N⌉
    levels: a place is below the one whose highest digit to the base k is 0.

    Source: Thakur, Rabenseifner and Gropp 2005, for the tree; Bruck et al. 1997, its
        concatenation, for the all-gather.
    """

    name: ClassVar[str] = "binomial_tree"

    radix: int = 2
    """K: servers after a level of the tree, for each one before."""

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
    """Two binary trees, each with half: who is a leaf in one has children in the other.

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


TEXTBOOK = (Direct(), Chain(), BinomialTree(), DoubleBinaryTree())
"""Those, as `gradweave.solve` tries them."""
