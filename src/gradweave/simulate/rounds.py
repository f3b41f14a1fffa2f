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
        if not self.ready()[workload]:
            raise ScheduleError(
                f"round {self.round}: workload {workload} is not ready, or was sent already"
            )
        if not self.fits(workload):
            raise ScheduleError(
                f"round {self.round}: workload {workload} finds a link of its route full"
            )
        self.link_load[self._links[self._first[workload] : self._first[workload + 1]]] += 1
        self.sent_in[workload] = self.round

    def end_round(self) -> None:
        """Moves to the next round: all links are free again."""
        self.round += 1
        self.link_load[:] = 0


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
