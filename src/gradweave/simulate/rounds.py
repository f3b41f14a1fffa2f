"""The reference semantics of rounds: play any policy over workloads.

Written for clarity, in NumPy; the compiled schedulers and the learning environment are tested
against it.
"""

import dataclasses
from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from gradweave.errors import NoScheduleError, ScheduleError
from gradweave.schedule.flow_tree import Workloads
from gradweave.schedule.schedule import COPY, REDUCE, Provenance, Schedule, take_rows
from gradweave.topology.topology import Topology


@dataclasses.dataclass(eq=False)
class RoundState:
    """What a policy sees in the middle of a round, and how it sends."""

    workloads: Workloads
    barrier: bool
    """Whether the all-gather waits for the whole reduce-scatter."""

    def __post_init__(self) -> None:
        self.round = 0
        """The current round."""
        self.sent_in = np.full(len(self.workloads), -1, np.int64)
        """[W] round in which each workload was sent; −1 while it waits."""
        self.link_load = np.zeros(len(self.workloads.topology.source), np.int64)
        """[L] transfers that each link direction carries in this round so far."""
        self._links, self._first = self.workloads.links()
        self._waiting_for = np.diff(self.workloads.prefix_offsets)
        self._waiter = np.repeat(np.arange(len(self.workloads)), self._waiting_for)

    @property
    def done(self) -> bool:
        """Whether every workload was sent."""
        return bool((self.sent_in >= 0).all())

    def ready(self) -> NDArray[np.bool_]:
        """[W] not sent yet, and every prefix completed in an earlier round."""
        complete = (self.sent_in >= 0) & (self.sent_in < self.round)
        missing = np.bincount(
            self._waiter, ~complete[self.workloads.prefix], minlength=len(self.workloads)
        )
        ready = (self.sent_in < 0) & (missing == 0)
        if self.barrier and not complete[self.workloads.op == REDUCE].all():
            ready &= self.workloads.op != COPY
        return ready

    def fits(self, workload: int) -> bool:
        """Whether each link direction of the workload's route has room in this round."""
        route = self._links[self._first[workload] : self._first[workload + 1]]
        return bool((self.link_load[route] < self.workloads.topology.capacity[route]).all())

    def available(self) -> NDArray[np.int64]:
        """The workloads that could be sent now: ready, and with room on their routes."""
        return np.array(
            [w for w in np.flatnonzero(self.ready()).tolist() if self.fits(w)], np.int64
        )

    def send(self, workload: int) -> None:
        """Sends a workload in this round.

        Raises:
            ScheduleError: where it is not ready or does not fit.
        """
        _check_can_send(self, workload)
        self.link_load[self._links[self._first[workload] : self._first[workload + 1]]] += 1
        self.sent_in[workload] = self.round

    def end_round(self) -> None:
        """Moves to the next round: all links are free again."""
        self.round += 1
        self.link_load[:] = 0


@dataclasses.dataclass(eq=False)
class GrownState:
    """One stage whose trees grow: any hop from a server that has a piece to one that lacks it.

    Same interface as `RoundState`. Piece p starts at server p (by rank), and a workload is a hop
    and a piece, numbered ``hop * pieces + piece``. A reduce-scatter is played backward in time, as
    the all-gather that it then is: what a hop carries goes from its target to its source, and the
    first round played is the schedule's last.

    >>> import gradweave as gw
    >>> state = gw.simulate.GrownState(
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
        self.giver, self.taker = (target, source) if self.backward else (source, target)
        """[H] rank of the server that must hold a piece, and of the one that gets it."""
        self.round = 0
        """The current round."""
        self.sent_in = np.full(len(source) * pieces, -1, np.int64)
        """[H·P] round in which each workload was sent; −1 where it was not."""
        self.link_load = np.zeros(len(self.topology.source), np.int64)
        """[L] transfers that each link direction carries in this round so far."""
        self.holds = np.eye(pieces, dtype=bool)
        """[N, P] whether a server holds a piece since an earlier round."""
        self.promised = np.zeros((pieces, pieces), bool)
        """[N, P] whether a piece is on its way to a server in this round."""
        self._links = self.topology.links_along(self.route_nodes, self.route_offsets)
        self._first = self.route_offsets - np.arange(len(self.route_offsets))

    @property
    def done(self) -> bool:
        """Whether every server holds every piece or has it on the way."""
        return bool((self.holds | self.promised).all())

    def ready(self) -> NDArray[np.bool_]:
        """[H·P] the giver holds the piece, the taker neither holds it nor was promised it."""
        lacks = ~(self.holds | self.promised)
        return (self.holds[self.giver] & lacks[self.taker]).reshape(-1)

    def fits(self, workload: int) -> bool:
        """Whether each link direction of the workload's route has room in this round."""
        hop = workload // self.topology.num_servers
        route = self._links[self._first[hop] : self._first[hop + 1]]
        return bool((self.link_load[route] < self.topology.capacity[route]).all())

    def available(self) -> NDArray[np.int64]:
        """The workloads that could be sent now: ready, and with room on their routes."""
        return np.array(
            [w for w in np.flatnonzero(self.ready()).tolist() if self.fits(w)], np.int64
        )

    def send(self, workload: int) -> None:
        """Sends a workload in this round.

        Raises:
            ScheduleError: where it is not ready or does not fit.
        """
        _check_can_send(self, workload)
        hop, piece = divmod(workload, self.topology.num_servers)
        self.link_load[self._links[self._first[hop] : self._first[hop + 1]]] += 1
        self.promised[self.taker[hop], piece] = True
        self.sent_in[workload] = self.round

    def end_round(self) -> None:
        """Moves to the next round: what was on the way is held, all links are free again."""
        self.holds |= self.promised
        self.promised[:] = False
        self.round += 1
        self.link_load[:] = 0


def _check_can_send(state: RoundState | GrownState, workload: int) -> None:
    """Raises `ScheduleError` where a workload is not ready or does not fit."""
    if not state.ready()[workload]:
        raise ScheduleError(
            f"round {state.round}: workload {workload} is not ready, or was sent already"
        )
    if not state.fits(workload):
        raise ScheduleError(
            f"round {state.round}: workload {workload} finds a link of its route full"
        )


Policy = Callable[[RoundState], Iterable[int]]
"""Given the state at the start of a round, workloads in the order in which to try them; what is
ready and fits is sent."""


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
        workloads: what must move.
        policy: what to try first, round by round.
        barrier: for an all-reduce, whether the all-gather waits for the whole reduce-scatter.
        scheduler: the schedule's provenance.
        patience: rounds in a row without a single transfer after which to give up.

    Returns:
        The schedule; not verified here.

    Raises:
        NoScheduleError: where the policy stops sending although workloads are left.

    >>> import gradweave as gw
    >>> trees = gw.schedule.FlowTrees.shortest_path(gw.topology.bcube(n=3, k=1))
    >>> stage = gw.schedule.Workloads.of(trees, "reduce_scatter")
    >>> gw.simulate.play(stage, lambda state: state.available()).rounds >= gw.bounds.fixed_trees(
    ...     trees
    ... ).rounds
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
        rounds: [W] round of each.
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
