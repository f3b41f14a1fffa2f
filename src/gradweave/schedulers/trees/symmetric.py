"""Trees mapped by automorphisms: one base tree per orbit of servers gives the whole schedule."""

import dataclasses
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from gradweave.bounds import free_trees
from gradweave.common.stop import Stop
from gradweave.errors import NoScheduleError
from gradweave.schedulers.hops import Hops
from gradweave.schedulers.problem import hop_table, integers
from gradweave.schedulers.scheduler import Scheduler, Traits, check_counts, from_all_gather
from gradweave.schedules.columns import narrowest
from gradweave.schedules.implicit import images
from gradweave.schedules.schedule import COPY, Collective, Schedule, take_rows
from gradweave.topology.symmetry import FreeGroup, free_groups, moved_links, orbits_of
from gradweave.topology.topology import Topology

if TYPE_CHECKING:
    from gradweave.schedulers.trees.orbit_kernel import HopOrbits


@dataclasses.dataclass(frozen=True)
class Tuning:
    """Constants of the search, chosen by hand."""

    work: int = 10_000_000
    """Base hops that restarts examine, if their number is not given: tenths of a second."""
    min_restarts: int = 4
    max_restarts: int = 20_000
    """Limits of the resulting number of restarts."""
    looks: int = 20
    searched: float = 1 / 8
    """Approximate number of base hops examined per transfer: `looks` plus this share of all."""


TUNING = Tuning()


@dataclasses.dataclass(frozen=True)
class Symmetric(Scheduler):
    """Base trees under a group of automorphisms that acts freely on the servers.

    The tree of a server's piece is the base tree of its orbit, moved by the group element that maps
    the orbit's root to the server. Each link of an orbit then carries as much as the base trees
    together use of the orbit, so a round of base hops that respects the orbits' capacities yields a
    round of transfers that respects every link's. The search is as small as the number of orbits:
    for BCube, a torus or a hypercube, one tree.
    """

    name: ClassVar[str] = "symmetric"

    restarts: int | None = None
    """Most runs for each group; the search stops at the bound. By default as many as a few tenths
    of a second take on one core, estimated from the number of base hops."""

    def __post_init__(self) -> None:
        check_counts(self, "restarts")

    @property
    def traits(self) -> Traits:
        """The strategy's traits with these options."""
        return Traits(by_symmetry=True)

    def make(self, topology: Topology, collective: Collective, seed: int, stop: Stop) -> Schedule:
        """Makes the schedule; `schedule` verifies it."""
        return from_all_gather(self._all_gather, topology, collective, seed, stop)

    def _all_gather(self, topology: Topology, seed: int, stop: Stop) -> Schedule:
        base, group = self.base(topology, seed, stop)
        kind = narrowest(topology.num_nodes, base.num_transfers * group.order)
        moves = np.ascontiguousarray(group.permutations.T, kind)
        return images(base, group.order, lambda nodes: moves[nodes].T)

    def base(self, topology: Topology, seed: int, stop: Stop) -> tuple[Schedule, FreeGroup]:
        """The all-gather of the pieces of the orbits' roots, and the group that moves it about."""
        target = free_trees(topology, "all_gather").rounds
        best: tuple[FreeGroup, BaseHops, NDArray] | None = None
        fewest, late = topology.num_servers**2, False
        with stop.at(target).watched() as stop:
            give_up = stop.flag if stop.dispensable else np.zeros(1, np.bool_)
            for group in free_groups(topology, stop=stop):
                hops = BaseHops.of(topology, group)
                bases = len(hops.roots)
                looks = TUNING.looks + TUNING.searched * bases * len(hops.element)
                work = int(bases * topology.num_servers * looks)
                most = np.clip(TUNING.work // work, TUNING.min_restarts, TUNING.max_restarts)
                for restart in range(self.restarts or int(most)):
                    transfers = hops.grow(fewest - 1, seed, restart, give_up)
                    if len(transfers):
                        give_up = stop.flag  # only runs before the first schedule must finish
                        best, fewest = (group, hops, transfers), int(transfers[-1, 0]) + 1
                    if stop.reached(fewest):
                        break
                late = best is None and stop.dispensable and bool(stop.reached())
                if late or (best and stop.reached(fewest)):
                    break
        if late:
            raise NoScheduleError("symmetric: time was up before its first schedule")
        if best is None:
            raise NoScheduleError(
                f"symmetric: found no group that moves all servers of {topology.name!r} and lets "
                "its trees grow; use grown"
            )
        group, hops, transfers = best
        return hops.schedule(group, transfers), group


@dataclasses.dataclass(frozen=True, eq=False)
class BaseHops:
    """All hops of a network as images, under a group, of the hops that leave the orbits' roots."""

    topology: Topology
    roots: NDArray[np.int64]
    """[B] rank of each orbit's root."""
    routes: Hops
    """The hops that leave the roots."""
    element: NDArray[np.int64]
    """[H] the group element that maps a root's hop to each hop."""
    route: NDArray[np.int64]
    """[H] the root's hop of which each hop is the image."""
    orbits: "HopOrbits"
    """The hops, sorted by sender, as arrays for the compiled search; their links are orbits of
    links."""

    @staticmethod
    def of(topology: Topology, group: FreeGroup) -> "BaseHops":
        """Maps the roots' hops by the group, and finds the orbits of the links that they use."""
        from gradweave.schedulers.trees.orbit_kernel import HopOrbits

        servers, moves = topology.servers, group.permutations
        roots = np.unique(topology.rank[moves.min(axis=0)[servers]])
        routes = Hops.of(topology, senders=roots)
        count = len(routes.source)
        element, route = np.divmod(np.arange(group.order * count), count)
        source = topology.rank[moves[element, servers[routes.source[route]]]]
        target = topology.rank[moves[element, servers[routes.target[route]]]]
        order = np.argsort(source, kind="stable")
        orbit, capacity = _link_orbits(topology, group)
        resources, first = take_rows(orbit[routes.links], routes.first_link, route[order])
        hops = hop_table(source[order], target[order], resources, first, topology.num_servers)
        return BaseHops(
            topology,
            roots.astype(np.int64),
            routes,
            element[order],
            route[order],
            HopOrbits(hops, integers(roots), integers(capacity)),
        )

    def grow(
        self, most: int, seed: int, restart: int, give_up: NDArray[np.bool_]
    ) -> NDArray[np.int64]:
        """[B·(N−1), 3] round, base tree and hop; no rows if `most` rounds are too few.

        There are also no rows if `give_up`, [1], is set in the meantime.
        """
        from gradweave.schedulers.trees.orbit_kernel import grow_base_trees

        mixed = np.random.SeedSequence([seed, restart]).generate_state(1)[0]
        return grow_base_trees(self.orbits, most, int(mixed), give_up)

    def schedule(self, group: FreeGroup, transfers: NDArray[np.int64]) -> Schedule:
        """The all-gather that consists of the base trees alone.

        Args:
            group: the group of these hops.
            transfers: as `grow` returns them.
        """
        at, base, hop = transfers[np.argsort(transfers[:, 0], kind="stable")].T
        nodes, offsets = take_rows(
            self.routes.route_nodes, self.routes.route_offsets, self.route[hop]
        )
        nodes = group.permutations[np.repeat(self.element[hop], np.diff(offsets)), nodes]
        return Schedule(
            topology=self.topology,
            collective="all_gather",
            root=self.topology.servers[self.roots],
            round=at,
            piece=base,
            source=nodes[offsets[:-1]],
            target=nodes[offsets[1:] - 1],
            op=np.full(len(hop), COPY),
            route_nodes=nodes,
            route_offsets=offsets,
        )


def _link_orbits(topology: Topology, group: FreeGroup) -> tuple[NDArray, NDArray[np.int64]]:
    """[L] orbit of each link direction, and the hops that each orbit's links carry per round.

    Each group element that keeps a link in place brings a base hop over it once more, so a link
    only carries its capacity divided by the number of such elements.
    """
    images = [moved_links(topology, move) for move in _generators(topology, group)]
    orbit = orbits_of(images, len(topology.source))
    size = np.bincount(orbit)
    capacity = np.zeros(len(size), np.int64)
    capacity[orbit] = topology.capacity
    return orbit, capacity // (group.order // size)


def _generators(topology: Topology, group: FreeGroup) -> list[NDArray]:
    """Elements that generate the group; each reaches servers that those before do not."""
    first = topology.servers[0]
    reached = {int(first)}
    chosen: list[NDArray] = []
    for move in group.permutations[1:]:
        if int(move[first]) in reached:
            continue
        chosen.append(move)
        queue = list(reached)
        while queue:
            images = [int(generator[node]) for node in queue for generator in chosen]
            queue = [node for node in dict.fromkeys(images) if node not in reached]
            reached.update(queue)
    return chosen
