"""Trees mapped by automorphisms: one base tree per orbit of servers gives the whole schedule."""

import dataclasses
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gradweave import clock
from gradweave.bounds import free_trees
from gradweave.errors import NoScheduleError
from gradweave.schedule.schedule import COPY, Collective, Schedule, take_rows
from gradweave.schedulers.hops import Hops
from gradweave.schedulers.scheduler import Scheduler, check_counts, from_all_gather
from gradweave.topology.symmetry import FreeGroup, free_groups
from gradweave.topology.topology import Topology

WORK = 10_000_000
"""Base hops that the restarts look at where their number is not given."""
LOOKS, SEARCHED = 20, 1 / 8
"""Base hops looked at for each transfer: so many, and so large a share of all, roughly."""


@dataclasses.dataclass(frozen=True)
class Symmetric(Scheduler):
    """Base trees under a group of automorphisms that acts freely on the servers.

    The tree of a server's piece is the base tree of its orbit, moved by the element that brings the
    orbit's root to the server. Each link of an orbit then carries what the base trees together use
    of the orbit, so a round of base hops that respects the orbits' capacities makes a round of
    transfers that respects every link's. The search is as small as the number of orbits: for
    BCube, a torus or a hypercube, one tree.
    """

    name: ClassVar[str] = "symmetric"

    restarts: int | None = None
    """Runs at most for each group; the search stops at the bound. If not given, as many as a few
    tenths of a second take on one core, reckoned from the number of base hops."""

    def __post_init__(self) -> None:
        check_counts(self, "restarts")

    def _make(
        self, topology: Topology, collective: Collective, seed: int, time_limit: float | None
    ) -> Schedule:
        return from_all_gather(self._all_gather, topology, collective, seed, time_limit)

    def _all_gather(self, topology: Topology, seed: int, deadline: float | None) -> Schedule:
        target = free_trees(topology, "all_gather").rounds
        best: tuple[FreeGroup, BaseHops, NDArray] | None = None
        fewest = topology.num_servers**2
        give_up = np.zeros(1, np.bool_)
        with clock.alarm(deadline) as late:
            for group in free_groups(topology, deadline=deadline):
                hops = BaseHops.of(topology, group)
                bases = len(hops.roots)
                looks = LOOKS + SEARCHED * bases * len(hops.target)
                work = int(bases * topology.num_servers * looks)
                for restart in range(self.restarts or int(np.clip(WORK // work, 4, 20_000))):
                    transfers = hops.grow(fewest - 1, seed, restart, give_up)
                    if len(transfers):
                        give_up = late  # what comes before the first schedule is finished
                        best, fewest = (group, hops, transfers), int(transfers[-1, 0]) + 1
                    if fewest <= target or late[0]:
                        break
                if fewest <= target or (late[0] and best):
                    break
        if best is None:
            raise NoScheduleError(
                f"symmetric: found no group that moves all servers of {topology.name!r} and lets "
                "its trees grow; use grown"
            )
        return _moved_about(topology, *best)


@dataclasses.dataclass(frozen=True, eq=False)
class BaseHops:
    """All hops of a network as images, under a group, of the hops that leave its orbits' roots."""

    topology: Topology
    roots: NDArray[np.int64]
    """[B] rank of each orbit's root."""
    routes: Hops
    """The hops that leave the roots."""
    element: NDArray[np.int64]
    """[H] element of the group that brings a root's hop to each hop."""
    route: NDArray[np.int64]
    """[H] the root's hop that it is the image of."""
    target: NDArray[np.int64]
    """[H] rank of the server that each hop enters; hops are sorted by the server that they
    leave."""
    first_hop: NDArray[np.int64]
    """[N+1] where each server's hops start."""
    resources: NDArray[np.int64]
    first: NDArray[np.int64]
    capacity: NDArray[np.int64]

    @staticmethod
    def of(topology: Topology, group: FreeGroup) -> "BaseHops":
        """Moves the roots' hops about, and finds the orbits of the links that they use."""
        servers, moves = topology.servers, group.permutations
        orbit_root = topology.rank[moves[:, servers].min(axis=0)]
        roots = np.unique(orbit_root)
        near_all = Hops.of(topology)
        from_roots = np.flatnonzero(np.isin(near_all.source, roots))
        nodes, offsets = take_rows(near_all.route_nodes, near_all.route_offsets, from_roots)
        links, _ = take_rows(near_all.links, near_all.first_link, from_roots)
        routes = Hops(
            near_all.source[from_roots], near_all.target[from_roots], nodes, offsets, links
        )
        element, route = np.divmod(np.arange(group.order * len(from_roots)), len(from_roots))
        source = topology.rank[moves[element, servers[routes.source[route]]]]
        target = topology.rank[moves[element, servers[routes.target[route]]]]
        order = np.argsort(source, kind="stable")
        orbit, capacity = _link_orbits(topology, group)
        resources, first = take_rows(orbit[routes.links], routes.first_link, route[order])
        return BaseHops(
            topology,
            roots.astype(np.int64),
            routes,
            element[order],
            route[order],
            target[order].astype(np.int64),
            np.searchsorted(source[order], np.arange(topology.num_servers + 1)),
            resources,
            first,
            capacity,
        )

    def grow(
        self, most: int, seed: int, restart: int, give_up: NDArray[np.bool_]
    ) -> NDArray[np.int64]:
        """[B·(N−1), 3] round, base tree and hop; no rows where `most` rounds are too few.

        Nor where `give_up`, [1], is set meanwhile.
        """
        from gradweave.schedulers.trees.orbit_kernel import Orbits, grow_base_trees

        orbits = Orbits(
            self.roots, self.first_hop, self.target, self.resources, self.first, self.capacity
        )
        mixed = np.random.SeedSequence([seed, restart]).generate_state(1)[0]
        return grow_base_trees(orbits, most, int(mixed), give_up)


def _link_orbits(topology: Topology, group: FreeGroup) -> tuple[NDArray, NDArray[np.int64]]:
    """[L] orbit of each link direction, and the hops that each orbit's links take in a round.

    An element that keeps a link in place brings a base hop over it once more, so a link takes only
    its capacity divided by the number of such elements.
    """
    label = np.arange(len(topology.source))
    images = [
        topology.find_links(move[topology.source], move[topology.target])
        for move in _generators(topology, group)
    ]
    while True:
        lower = label
        for image in images:
            lower = np.minimum(lower, lower[image])
            np.minimum.at(lower, image, lower)
        if np.array_equal(lower, label):
            break
        label = lower
    _, orbit, size = np.unique(label, return_inverse=True, return_counts=True)
    capacity = np.zeros(len(size), np.int64)
    capacity[orbit] = topology.capacity
    return orbit, capacity // (group.order // size)


def _generators(topology: Topology, group: FreeGroup) -> list[NDArray]:
    """Elements that generate the group: each new one reaches servers that those before do not."""
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


def _moved_about(
    topology: Topology, group: FreeGroup, hops: BaseHops, transfers: NDArray[np.int64]
) -> Schedule:
    """The all-gather in which every element of the group moves the base trees."""
    moves = group.permutations
    at, base, hop = transfers[np.argsort(transfers[:, 0], kind="stable")].T
    nodes, offsets = take_rows(hops.routes.route_nodes, hops.routes.route_offsets, hops.route[hop])
    lengths = np.diff(offsets)
    nodes = moves[np.repeat(hops.element[hop], lengths), nodes]
    count, order = len(hop), group.order
    # Rows by base hop, then element, so that rounds ascend.
    moved = moves[:, nodes]
    if len(np.unique(lengths)) == 1:
        route_nodes = moved.reshape(order, count, lengths[0]).transpose(1, 0, 2).ravel()
        route_offsets = np.arange(count * order + 1) * lengths[0]
    else:
        all_offsets = np.concatenate([[0], np.cumsum(np.tile(lengths, order))])
        by_hop = np.arange(order * count).reshape(order, count).T.ravel()
        route_nodes, route_offsets = take_rows(moved.ravel(), all_offsets, by_hop)
    root_nodes = moves[:, topology.servers[hops.roots[base]]].T.ravel()
    return Schedule(
        topology=topology,
        collective="all_gather",
        root=topology.servers,
        round=np.repeat(at, order),
        piece=topology.rank[root_nodes],
        source=moves[:, nodes[offsets[:-1]]].T.ravel(),
        target=moves[:, nodes[offsets[1:] - 1]].T.ravel(),
        op=np.full(count * order, COPY, np.int8),
        route_nodes=route_nodes,
        route_offsets=route_offsets,
    )
