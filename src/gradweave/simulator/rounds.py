"""Reference semantics of rounds: plays any policy over workloads.

Written in NumPy for clarity; the compiled schedulers and the learning environment are tested
against it.
"""

import abc
import dataclasses
from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from gradweave.errors import NoScheduleError, ScheduleError
from gradweave.schedules.flow_tree import Workloads
from gradweave.schedules.schedule import COPY, REDUCE, Provenance, Schedule, take_rows
from gradweave.topology.topology import Topology


class _PlayState(abc.ABC):
    """The common part of `RoundState` and `GrownState`: rounds, and links that fill up."""

    topology: Topology

    def __init__(self, workloads: int, links: NDArray, link_offsets: NDArray) -> None:
        """Starts with the first round.

        Args:
            workloads: W.
            links: link directions of all routes, one route after the other.
            link_offsets: [routes+1] where each route's links start.
        """
        self.round = 0
        """The current round."""
        self.sent_in = np.full(workloads, -1, np.int64)
        """[W] round in which each workload was sent; −1 if it was not."""
        self.link_load = np.zeros(len(self.topology.source), np.int64)
        """[L] transfers over each link direction in this round so far."""
        self._links, self._link_offsets = links, link_offsets

    @abc.abstractmethod
    def ready(self) -> NDArray[np.bool_]:
        """[W] workloads that may be sent if their links have capacity."""

    @abc.abstractmethod
    def _route(self, workload: int) -> int:
        """Number of the workload's route."""

    def _route_links(self, workload: int) -> NDArray:
        route = self._route(workload)
        return self._links[self._link_offsets[route] : self._link_offsets[route + 1]]

    def fits(self, workload: int) -> bool:
        """Whether each link direction of the workload's route has capacity in this round."""
        links = self._route_links(workload)
        return bool((self.link_load[links] < self.topology.capacity[links]).all())

    def available(self) -> NDArray[np.int64]:
        """The workloads that could be sent now: ready, with capacity on their routes."""
        return np.array(
            [w for w in np.flatnonzero(self.ready()).tolist() if self.fits(w)], np.int64
        )

    def send(self, workload: int) -> None:
        """Sends a workload in this round.

        Raises:
            ScheduleError: it is not ready or does not fit.
        """
        if not self.ready()[workload]:
            raise ScheduleError(
                f"round {self.round}: workload {workload} is not ready, or was sent already"
            )
        if not self.fits(workload):
            raise ScheduleError(
                f"round {self.round}: workload {workload} finds a link of its route full"
            )
        self.link_load[self._route_links(workload)] += 1
        self.sent_in[workload] = self.round

    def end_round(self) -> None:
        """Moves to the next round, with all links free again."""
        self.round += 1
        self.link_load[:] = 0


@dataclasses.dataclass(eq=False)
class RoundState(_PlayState):
    """A round in progress as a policy sees it, with the methods to send workloads."""

    workloads: Workloads
    barrier: bool
    """Whether the all-gather waits for the whole reduce-scatter."""

    def __post_init__(self) -> None:
        self.topology = self.workloads.topology
        super().__init__(len(self.workloads), *self.workloads.links())
        waits_for = np.diff(self.workloads.prefix_offsets)
        self._waiting = np.repeat(np.arange(len(self.workloads)), waits_for)

    @property
    def done(self) -> bool:
        """Whether every workload was sent."""
        return bool((self.sent_in >= 0).all())

    def ready(self) -> NDArray[np.bool_]:
        """[W] unsent workloads whose prefixes were all completed in earlier rounds."""
        complete = (self.sent_in >= 0) & (self.sent_in < self.round)
        missing = np.bincount(
            self._waiting, ~complete[self.workloads.prefix], minlength=len(self.workloads)
        )
        ready = (self.sent_in < 0) & (missing == 0)
        if self.barrier and not complete[self.workloads.op == REDUCE].all():
            ready &= self.workloads.op != COPY
        return ready

    def _route(self, workload: int) -> int:
        return workload


@dataclasses.dataclass(eq=False)
class GrownState(_PlayState):
    """A stage whose trees grow: any hop from a server that holds a piece to one that lacks it.

    Same interface as `RoundState`. Piece p starts at server p (by rank), and a workload is a hop
    and a piece, numbered ``hop * pieces + piece``. A reduce-scatter is played backward in time as
    an all-gather: pieces move from a hop's target to its source, and the first round played is the
    schedule's last.

    >>> import gradweave as gw
    >>> state = gw.simulator.GrownState(
    ...     gw.topology.ring(3), np.array([0, 1, 1, 2, 2, 0]), np.array([0, 2, 4, 6])
    ... )
    >>> while not state.done:
    ...     for workload in state.available():
    ...         state.send(workload)
    ...     state.end_round()
    >>> state.sent_in.reshape(3, 3)  # hops 0 → 1, 1 → 2, 2 → 0 pass pieces 0, 1, 2 around
    array([[ 0, -1,  1],
           [ 1,  0, -1],
           [-1,  1,  0]])
    """

    topology: Topology
    route_nodes: NDArray
    """The hops' routes, one after the other, both ends included."""
    route_offsets: NDArray
    """[H+1] where each hop's route starts in `route_nodes`."""
    backward: bool = False
    """Whether the stage is a reduce-scatter."""

    def __post_init__(self) -> None:
        pieces = self.topology.num_servers
        source = self.topology.rank[self.route_nodes[self.route_offsets[:-1]]]
        target = self.topology.rank[self.route_nodes[self.route_offsets[1:] - 1]]
        links = self.topology.links_along(self.route_nodes, self.route_offsets)
        link_offsets = self.route_offsets - np.arange(len(self.route_offsets))
        super().__init__(len(source) * pieces, links, link_offsets)
        self.giver, self.taker = (target, source) if self.backward else (source, target)
        """[H] rank of the server that must hold a piece, and of the server that receives it."""
        self.holds = np.eye(pieces, dtype=bool)
        """[N, P] whether a server has held a piece since an earlier round."""
        self.promised = np.zeros((pieces, pieces), bool)
        """[N, P] whether a piece is on its way to a server in this round."""

    @property
    def done(self) -> bool:
        """Whether every server holds every piece or is about to receive it."""
        return bool((self.holds | self.promised).all())

    def ready(self) -> NDArray[np.bool_]:
        """[H·P] workloads whose giver holds the piece and whose taker neither has nor awaits it."""
        lacks = ~(self.holds | self.promised)
        return (self.holds[self.giver] & lacks[self.taker]).reshape(-1)

    def send(self, workload: int) -> None:
        """Sends a workload in this round.

        Raises:
            ScheduleError: it is not ready or does not fit.
        """
        super().send(workload)
        hop, piece = divmod(workload, self.topology.num_servers)
        self.promised[self.taker[hop], piece] = True

    def end_round(self) -> None:
        """Moves to the next round: sent pieces have arrived, all links are free again."""
        self.holds |= self.promised
        self.promised[:] = False
        super().end_round()

    def _route(self, workload: int) -> int:
        return workload // self.topology.num_servers


Policy = Callable[[RoundState], Iterable[int]]
"""State at the start of a round -> workloads in the order in which to try them; workloads that are
ready and fit are sent."""


def play(
    workloads: Workloads,
    policy: Policy,
    *,
    barrier: bool = True,
    scheduler: Provenance | None = None,
    patience: int = 1000,
) -> Schedule:
    """Plays a policy until every workload is sent.

    Args:
        workloads: the transfers.
        policy: chooses the order, round by round.
        barrier: for an all-reduce, whether the all-gather waits for the whole reduce-scatter.
        scheduler: the schedule's provenance.
        patience: consecutive rounds without a transfer after which to fail.

    Returns:
        The schedule; not verified here.

    Raises:
        NoScheduleError: the policy stops sending although workloads are left.

    >>> import gradweave as gw
    >>> trees = gw.schedules.FlowTrees.shortest_path(gw.topology.bcube(n=3, k=1))
    >>> stage = gw.schedules.Workloads.of(trees, "reduce_scatter")
    >>> play(stage, lambda state: state.available()).rounds >= gw.bounds.fixed_trees(trees).rounds
    True
    """
    state = RoundState(workloads, barrier)
    idle = 0
    while not state.done:
        ready, sent = state.ready(), 0
        for workload in policy(state):
            if ready[workload] and state.sent_in[workload] < 0 and state.fits(workload):
                state.send(int(workload))
                sent += 1
        idle = 0 if sent else idle + 1
        if idle > patience:
            left = int((state.sent_in < 0).sum())
            raise NoScheduleError(
                f"the policy sent nothing for {patience} rounds with {left} workloads left"
            )
        state.end_round()
    return schedule_from_rounds(workloads, state.sent_in, scheduler or Provenance("policy"))


def schedule_from_rounds(workloads: Workloads, rounds: NDArray, scheduler: Provenance) -> Schedule:
    """The schedule in which each workload is sent in the given round.

    Args:
        workloads: the transfers.
        rounds: [W] round of each workload.
        scheduler: the schedule's provenance.
    """
    order = np.argsort(rounds, kind="stable")
    route_nodes, route_offsets = take_rows(workloads.route_nodes, workloads.route_offsets, order)
    return Schedule(
        topology=workloads.topology,
        collective=workloads.collective,
        root=workloads.root,
        round=rounds[order],
        piece=workloads.piece[order],
        source=workloads.source[order],
        target=workloads.target[order],
        op=workloads.op[order],
        route_nodes=route_nodes,
        route_offsets=route_offsets,
        scheduler=scheduler,
    )
