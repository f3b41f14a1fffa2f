"""Trees mapped by automorphisms: one base tree per orbit of servers gives the whole schedule."""

import dataclasses
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from gradweave.bounds import free_trees
from gradweave.errors import NoScheduleError
from gradweave.schedule.columns import constant, frozen, narrowest
from gradweave.schedule.schedule import COPY, Collective, Schedule, take_rows
from gradweave.schedulers.hops import Hops
from gradweave.schedulers.problem import hop_table, integers
from gradweave.schedulers.scheduler import Scheduler, Traits, check_counts, from_all_gather
from gradweave.stop import Stop
from gradweave.topology.symmetry import FreeGroup, free_groups
from gradweave.topology.topology import Topology

if TYPE_CHECKING:
    from gradweave.schedulers.trees.orbit_kernel import Orbits


@dataclasses.dataclass(frozen=True)
class Tuning:
    """What tunes the search; chosen by hand."""

    work: int = 10_000_000
    """Base hops that the restarts look at where their number is not given: tenths of a second."""
    min_restarts: int = 4
    max_restarts: int = 20_000
    """Of the restarts that this comes to."""
    looks: int = 20
    searched: float = 1 / 8
    """Base hops looked at for each transfer: so many, and so large a share of all, roughly."""
    batch_routes: int = 1 << 20
    """Routes that are moved at once: as many as fit a processor's caches."""


TUNING = Tuning()


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

    @property
    def traits(self) -> Traits:
        """What it is like, with these options."""
        return Traits(by_symmetry=True)

    def make(self, topology: Topology, collective: Collective, seed: int, stop: Stop) -> Schedule:
        """Makes the schedule; `schedule` verifies it."""
        return from_all_gather(self._all_gather, topology, collective, seed, stop)

    def _all_gather(self, topology: Topology, seed: int, stop: Stop) -> Schedule:
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
                        give_up = stop.flag  # what comes before the first schedule is finished
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
    orbits: "Orbits"
    """The hops, sorted by the server that they leave, in the form that the compiled search takes:
    their links are orbits of links."""

    @staticmethod
    def of(topology: Topology, group: FreeGroup) -> "BaseHops":
        """Moves the roots' hops about, and finds the orbits of the links that they use."""
        from gradweave.schedulers.trees.orbit_kernel import Orbits

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
            Orbits(hops, integers(roots), integers(capacity)),
        )

    def grow(
        self, most: int, seed: int, restart: int, give_up: NDArray[np.bool_]
    ) -> NDArray[np.int64]:
        """[B·(N−1), 3] round, base tree and hop; no rows where `most` rounds are too few.

        Nor where `give_up`, [1], is set meanwhile.
        """
        from gradweave.schedulers.trees.orbit_kernel import grow_base_trees

        mixed = np.random.SeedSequence([seed, restart]).generate_state(1)[0]
        return grow_base_trees(self.orbits, most, int(mixed), give_up)


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
    at, base, hop = transfers[np.argsort(transfers[:, 0], kind="stable")].T
    nodes, offsets = take_rows(hops.routes.route_nodes, hops.routes.route_offsets, hops.route[hop])
    nodes = group.permutations[np.repeat(hops.element[hop], np.diff(offsets)), nodes]
    count, order = len(hop), group.order
    # Rows by base hop, then element, so that rounds ascend.
    route_nodes, route_offsets = _images(group, nodes, offsets)
    if isinstance(route_offsets, int):
        first, last = (slice(end, None, route_offsets) for end in (0, route_offsets - 1))
    else:
        first, last = route_offsets[:-1], route_offsets[1:] - 1
    rank = topology.rank[group.permutations[:, topology.servers[hops.roots]]].T
    rank = np.ascontiguousarray(rank, narrowest(topology.num_servers, count * order))
    return Schedule(
        topology=topology,
        collective="all_gather",
        root=topology.servers,
        round=frozen(np.repeat(at.astype(narrowest(int(at[-1]), count * order)), order)),
        piece=frozen(rank[base]).reshape(-1),
        source=route_nodes[first],
        target=route_nodes[last],
        op=constant(COPY, np.int8, count * order),
        route_nodes=route_nodes,
        route_offsets=route_offsets,
    )


def _images(
    group: FreeGroup, nodes: NDArray, offsets: NDArray
) -> tuple[NDArray, NDArray[np.int64] | int]:
    """Routes as every element of a group moves them: route by route, then by element.

    Args:
        group: G elements.
        nodes: the routes' nodes, one route after the other.
        offsets: [M+1] where each route starts.

    Returns:
        The nodes of M·G routes and their offsets, or the nodes of each if all have as many.
    """
    lengths, order = np.diff(offsets), group.order
    count, length = len(lengths), int(lengths[0])
    if (lengths != length).any():
        images = group.permutations[:, nodes].ravel()
        by_element = np.concatenate([[0], np.cumsum(np.tile(lengths, order))])
        return take_rows(images, by_element, np.arange(order * count).reshape(order, -1).T.ravel())
    kind = narrowest(group.permutations.shape[1], count * order)
    moves = np.ascontiguousarray(group.permutations.T, kind)
    images = np.empty((count, order, length), kind)
    many = max(1, TUNING.batch_routes // order)
    for first in range(0, count, many):
        some = nodes[first * length : (first + many) * length].reshape(-1, length)
        images[first : first + many] = moves[some].transpose(0, 2, 1)
    return frozen(images).reshape(-1), length
