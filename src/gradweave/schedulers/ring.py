"""The ring: each server sends to the next, N−1 steps a stage."""

import dataclasses
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from gradweave.errors import OptionError
from gradweave.schedule.compose import compose
from gradweave.schedule.schedule import COPY, REDUCE, Collective, Schedule, take_rows
from gradweave.schedulers.hamiltonian import hamiltonian_order
from gradweave.schedulers.list_scheduling import first_fit
from gradweave.schedulers.scheduler import Scheduler
from gradweave.topology.routes import follow, shortest_path_trees, switch_only_trees
from gradweave.topology.topology import Topology


@dataclasses.dataclass(frozen=True)
class Ring(Scheduler):
    """A logical ring of all servers, a barrier after each step, a step's flows first fit.

    In step t of the reduce-scatter, the server at place p sends the piece whose root is at place
    p−1−t to place p+1; in the all-gather, the piece whose root is at place p−t. Each server sends
    2·(N−1)/N of the gradient. Flows between servers that are not neighbours pass through others,
    and may need several rounds a step.

    Source: Patarasuk and Yuan 2009; Bandyopadhyay, lecture, 2025.
    """

    name: ClassVar[str] = "ring"
    forwards_through_servers: ClassVar[bool] = True

    order: Literal["id", "hamiltonian"] | tuple[int, ...] = "id"
    """Order of the servers round the ring: ascending ids, a cycle of neighbours that share no link
    (found by constraint programming), or the node ids given."""
    steps: Literal["minimal", "paper"] = "minimal"
    """N−1 steps a stage, or N as the paper counts: the last step of each stage is then a copy that
    changes nothing."""

    def __post_init__(self) -> None:
        if isinstance(self.order, str) and self.order not in ("id", "hamiltonian"):
            raise OptionError(
                f"ring: order: expected id, hamiltonian or node ids, got {self.order!r}"
            )
        if self.steps not in ("minimal", "paper"):
            raise OptionError(f"ring: steps: expected minimal or paper, got {self.steps!r}")

    def _make(
        self, topology: Topology, collective: Collective, seed: int, time_limit: float | None
    ) -> Schedule:
        order = self._order(topology, seed, time_limit)
        rng = np.random.default_rng(seed)
        if collective != "all_reduce":
            return self._stage(topology, order, collective, rng)
        return compose(
            self._stage(topology, order, "reduce_scatter", rng),
            self._stage(topology, order, "all_gather", rng),
        )

    def _order(self, topology: Topology, seed: int, time_limit: float | None) -> NDArray[np.int32]:
        if self.order == "id":
            return topology.servers
        if self.order == "hamiltonian":
            return hamiltonian_order(topology, seed=seed, time_limit=time_limit)
        if sorted(self.order) != topology.servers.tolist():
            raise OptionError(
                f"ring: order: expected each of the {topology.num_servers} servers once, "
                f"got {self.order}"
            )
        return np.array(self.order, np.int32)

    def _stage(
        self,
        topology: Topology,
        order: NDArray,
        collective: Literal["reduce_scatter", "all_gather"],
        rng: np.random.Generator,
    ) -> Schedule:
        count = len(order)
        steps = count if self.steps == "paper" else count - 1
        following = np.roll(order, -1)
        nodes, offsets = _ring_routes(topology, order, following)
        starts = np.delete(np.arange(len(nodes)), offsets[1:] - 1)
        links = topology.find_links(nodes[starts], nodes[starts + 1])
        first_link = offsets - np.arange(count + 1)
        disjoint = (np.bincount(links) <= topology.capacity[: links.max() + 1]).all()
        rounds = np.empty((steps, count), np.int64)
        begin = 0
        for step in range(steps):
            taken = (
                0
                if disjoint
                else first_fit(links, first_link, topology.capacity, rng.permutation(count))
            )
            rounds[step] = begin + taken
            begin = int(rounds[step].max()) + 1
        place, step = np.arange(count), np.arange(steps)[:, None]
        root_place = (place - step - (collective == "reduce_scatter")) % count
        # Step N of the reduce-scatter sends what is complete already: a copy, which changes no
        # root's result.
        op = np.where((collective == "reduce_scatter") & (step < count - 1), REDUCE, COPY)
        # Pieces are numbered by their roots' ranks.
        piece = topology.rank[order][root_place]
        route_nodes, route_offsets = take_rows(nodes, offsets, np.tile(place, steps))
        return Schedule(
            topology=topology,
            collective=collective,
            root=topology.servers,
            round=rounds.ravel(),
            piece=piece.ravel(),
            source=np.tile(order, steps),
            target=np.tile(following, steps),
            op=np.broadcast_to(op, rounds.shape).ravel(),
            route_nodes=route_nodes,
            route_offsets=route_offsets,
        )


def _ring_routes(topology: Topology, order: NDArray, following: NDArray) -> tuple[NDArray, NDArray]:
    """Each server's route to the next: switches only where there is one, else through servers."""
    direct, lengths = switch_only_trees(topology, following)
    through = shortest_path_trees(topology, following)
    place = np.arange(len(order))
    has_direct = lengths[place, order] >= 0
    return follow(np.where(has_direct[:, None], direct, through), order, following)
