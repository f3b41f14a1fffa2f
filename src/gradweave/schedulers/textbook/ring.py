"""The ring: each server sends to the next, N−1 steps per stage; or both ways, in half as many."""

import dataclasses
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from gradweave.common.stop import UNLIMITED, Stop
from gradweave.errors import NoScheduleError, OptionError
from gradweave.schedulers.ordering.list_scheduling_in_rounds import first_fit
from gradweave.schedulers.scheduler import SEARCHING, Scheduler, Traits, check_counts
from gradweave.schedulers.textbook.hamiltonian import hamiltonian_orders
from gradweave.schedules.compose import compose
from gradweave.schedules.schedule import (
    COPY,
    REDUCE,
    Collective,
    Schedule,
    Stage,
    inside_rows,
    reverse_rows,
    take_rows,
)
from gradweave.topology.groups import members_of_groups
from gradweave.topology.routes import routes_between
from gradweave.topology.topology import Topology

MAX_CYCLES = 16
"""Most cycles that are used at the same time."""


_ORDERS = ("id", "hamiltonian", "boxes")


@dataclasses.dataclass(frozen=True)
class Ring(Scheduler):
    """A logical ring of all servers, with a barrier after each step.

    The flows of a step are put into rounds by first fit.

    In step t of the reduce-scatter, the server at place p sends the piece whose root is at place
    p−1−t to place p+1; in the all-gather, the piece whose root is at place p−t. Each server sends
    2·(N−1)/N of the gradient. Flows between servers that are not neighbours pass through others,
    and may need several rounds per step. With two directions, each piece travels both ways round,
    and half the steps, ⌈(N−1)/2⌉, are enough; the bytes are the same.

    Source: Patarasuk and Yuan 2009; Bandyopadhyay, lecture, 2025.
    """

    name: ClassVar[str] = "ring"

    order: Literal["id", "hamiltonian", "boxes"] | tuple[int, ...] = "id"
    """Order of the servers round the ring: ascending ids; a cycle of neighbours that share no link
    (found by constraint programming); group after group (of `nested_groups`, such as boxes); or the
    node ids given."""
    steps: Literal["minimal", "paper"] = "minimal"
    """N−1 steps per stage, or N as the paper counts: the last step of each stage is then a copy
    that changes nothing."""
    directions: int = 1
    """1, or 2: each piece travels both ways round. A Hamiltonian cycle's routes and reversed routes
    must then share no link, so that it leaves a server by another port than it enters."""
    cycles: int = 1
    """Number of rings used at the same time; each server is the root of one piece per ring.
    Hamiltonian rings share no link: a network has at most half as many as its servers have ports.
    With boxes, the nth ring enters each box at its nth server, as NCCL's channels do; at most as
    many as a box has servers."""
    forwarding: bool = True
    """Let flows between servers that are not neighbours pass through others; otherwise refuse."""

    def __post_init__(self) -> None:
        if isinstance(self.order, str) and self.order not in _ORDERS:
            raise OptionError(
                f"ring: order: expected {', '.join(_ORDERS)} or node ids, got {self.order!r}"
            )
        if self.steps not in ("minimal", "paper"):
            raise OptionError(f"ring: steps: expected minimal or paper, got {self.steps!r}")
        if self.directions not in (1, 2):
            raise OptionError(f"ring: directions: expected 1 or 2, got {self.directions}")
        if self.directions == 2 and self.steps == "paper":
            raise OptionError("ring: steps=paper goes one way round; use directions=1")
        check_counts(self, "cycles", most=MAX_CYCLES)
        if self.cycles > 1 and self.order not in ("hamiltonian", "boxes"):
            raise OptionError("ring: cycles: several cycles need order=hamiltonian or order=boxes")

    @property
    def traits(self) -> Traits:
        """The strategy's traits with these options."""
        return Traits(forwards=self.forwarding, pieces_per_server=self.cycles)

    def steps_fit_rounds(self, topology: Topology) -> bool:
        """Whether each step takes one round, in the order of servers that the options give.

        Args:
            topology: the network.
        """
        if self.order == "hamiltonian":
            return True  # the search ensures it
        flows = _Flows.of(topology, self._orders(topology, 0, UNLIMITED), self.directions, False)
        return flows.share_no_link()

    def make(self, topology: Topology, collective: Collective, seed: int, stop: Stop) -> Schedule:
        """Makes the schedule; `schedule` verifies it."""
        searching = stop.part(SEARCHING)
        orders = self._orders(topology, seed, stop)
        flows = _Flows.of(topology, orders, self.directions, self.steps == "paper")
        if not self.forwarding and flows.pass_servers():
            raise NoScheduleError(
                "some neighbours on the ring reach each other only through other servers; "
                "try order=hamiltonian, or allow forwarding"
            )
        rng = np.random.default_rng(seed)
        if collective != "all_reduce":
            return flows.stage(collective, rng, searching)
        stages = (flows.stage(one, rng, searching) for one in ("reduce_scatter", "all_gather"))
        return compose(*stages)

    def _orders(self, topology: Topology, seed: int, stop: Stop) -> NDArray[np.int32]:
        """[cycles, N] node ids, in order round each cycle."""
        if self.order == "id":
            return topology.servers[None]
        if self.order == "boxes":
            return self._by_boxes(topology)
        if self.order == "hamiltonian":
            return hamiltonian_orders(
                topology,
                cycles=self.cycles,
                both_ways=self.directions == 2 and topology.num_servers > 2,
                seed=seed,
                stop=stop,
            )
        if sorted(self.order) != topology.servers.tolist():
            raise OptionError(
                f"ring: order: expected each of the {topology.num_servers} servers once, "
                f"got {self.order}"
            )
        return np.array([self.order], np.int32)

    def _by_boxes(self, topology: Topology) -> NDArray[np.int32]:
        """[cycles, N] box after box; each cycle begins at another server of each box."""
        members = members_of_groups(topology)
        if self.cycles > members.shape[1]:
            raise NoScheduleError(
                f"ring: cycles: expected at most {members.shape[1]}, as many as a group of "
                f"{topology.name!r} has servers, got {self.cycles}"
            )
        cycles = [np.roll(members, -channel, axis=1).ravel() for channel in range(self.cycles)]
        return np.array(cycles, np.int32)


@dataclasses.dataclass(frozen=True, eq=False)
class _Flows:
    """The flows of every step: each server sends to the next, on each lap.

    A lap is one cycle in one direction. F flows, N to a lap.
    """

    topology: Topology
    laps: NDArray[np.int32]
    """[laps, N] node ids, in the order of travel."""
    cycles: int
    reach: NDArray[np.int64]
    """[F] number of servers to which a piece is passed on along the flow's lap."""
    steps: NDArray[np.int64]
    """[F] steps that the flow takes part in."""
    nodes: NDArray
    """Nodes of the flows' routes, concatenated."""
    offsets: NDArray
    """[F+1] index of each route's first node."""

    @staticmethod
    def of(topology: Topology, orders: NDArray, directions: int, extra_step: bool) -> "_Flows":
        """The laps of some cycles; backward laps take the same routes reversed."""
        count = topology.num_servers
        parts, lengths = [], []
        for order in orders:
            nodes, offsets = routes_between(topology, order, np.roll(order, -1))
            parts.append(nodes)
            lengths.append(np.diff(offsets))
            if directions == 2:
                # Backward, place i is order[N−1−i]; its flow is the reverse of flow N−2−i.
                mirrored = (count - 2 - np.arange(count)) % count
                nodes, offsets = take_rows(reverse_rows(nodes, offsets), offsets, mirrored)
                parts.append(nodes)
                lengths.append(np.diff(offsets))
        laps = [lap for order in orders for lap in (order, order[::-1])[:directions]]
        reaches = [count // 2, (count - 1) // 2] if directions == 2 else [count - 1]
        reach = np.repeat(np.tile(reaches, len(orders)), count)
        return _Flows(
            topology,
            np.array(laps),
            len(orders),
            reach,
            reach + extra_step,
            np.concatenate(parts),
            np.concatenate([[0], np.cumsum(np.concatenate(lengths))]),
        )

    def share_no_link(self) -> bool:
        """Whether no link carries more flows than it can in one round."""
        load = np.bincount(self.topology.links_along(self.nodes, self.offsets))
        return bool((load <= self.topology.capacity[: len(load)]).all())

    def pass_servers(self) -> bool:
        """Whether some flow's route passes through a server."""
        return bool(self.topology.is_server[self.nodes[inside_rows(self.offsets)]].any())

    def stage(
        self,
        collective: Stage,
        rng: np.random.Generator,
        stop: Stop,
    ) -> Schedule:
        """One stage: as many steps as the longest lap has, with a barrier after each."""
        count, scatter = self.topology.num_servers, collective == "reduce_scatter"
        lap, place = np.divmod(np.arange(len(self.reach)), count)
        step = np.arange(self.steps.max())[:, None]
        root_place = (place + (self.reach - step if scatter else -step)) % count
        # The extra step of the reduce-scatter sends data that is already complete: a copy, which
        # changes no root's result.
        op = np.where(scatter & (step < self.reach), REDUCE, COPY)
        # Pieces are numbered by their roots' ranks, then by cycle.
        cycle = lap // (len(self.laps) // self.cycles)
        piece = self.topology.rank[self.laps[lap, root_place]] * self.cycles + cycle
        active = step < self.steps
        flow = np.nonzero(active)[1]
        route_nodes, route_offsets = take_rows(self.nodes, self.offsets, flow)
        return Schedule(
            topology=self.topology,
            collective=collective,
            root=np.repeat(self.topology.servers, self.cycles),
            round=self._rounds(active, rng, stop)[active],
            piece=piece[active],
            source=self.nodes[self.offsets[flow]],
            target=self.nodes[self.offsets[flow + 1] - 1],
            op=op[active],
            route_nodes=route_nodes,
            route_offsets=route_offsets,
        )

    def _rounds(
        self, active: NDArray[np.bool_], rng: np.random.Generator, stop: Stop
    ) -> NDArray[np.int64]:
        """[steps, F] round of each flow of each step.

        After the stop, a step with the same flows as the previous step reuses its rounds.
        """
        capacity = self.topology.capacity
        links = self.topology.links_along(self.nodes, self.offsets)
        first_link = self.offsets - np.arange(len(self.offsets))
        disjoint = self.share_no_link()
        rounds = np.zeros(active.shape, np.int64)
        begin, taken = 0, 0
        for step, flows in enumerate(active):
            going = np.flatnonzero(flows)
            alike = step > 0 and np.array_equal(flows, active[step - 1])
            if not (disjoint or (alike and stop.reached())):
                of_step = take_rows(links, first_link, going)
                taken = first_fit(*of_step, capacity, rng.permutation(len(going)))
            rounds[step, going] = begin + taken
            begin = int(rounds[step, going].max()) + 1
        return rounds
