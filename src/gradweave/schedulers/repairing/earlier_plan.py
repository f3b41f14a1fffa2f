"""Reuses an earlier plan of the same jobs: keeps what still works and plans the rest again."""

import contextlib
import dataclasses
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gradweave.common.stop import Stop
from gradweave.errors import InvalidScheduleError, NoScheduleError, OptionError
from gradweave.schedulers.flows.even_routes import EvenRoutes
from gradweave.schedulers.flows.flows import Flows
from gradweave.schedulers.ordering.in_order import InOrder, Order
from gradweave.schedulers.packing.joint import Joint
from gradweave.schedulers.repairing.kept import check_start, now_ids
from gradweave.schedulers.scheduler import DemandStrategy
from gradweave.schedules.compose import at_once
from gradweave.schedules.demand import Demand
from gradweave.schedules.given import as_schedule
from gradweave.schedules.schedule import DEMAND, Schedule
from gradweave.simulator.seconds import event_seconds
from gradweave.topology.topology import Topology


@dataclasses.dataclass(frozen=True)
class EarlierPlan(DemandStrategy):
    """The transfers of an earlier plan that the network can still carry.

    The jobs are the same, but their sizes, weights and release times may differ. The network may
    have lost links or changed bandwidths since. A transfer over a lost link is rerouted past
    switches. If it has no other route, its piece is dropped, and the block's other pieces carry its
    share. A job is planned from scratch if one of its blocks has lost all its pieces.
    """

    name: ClassVar[str] = "earlier_plan"
    forwards: ClassVar[bool] = True

    start: Schedule = dataclasses.field(repr=False, compare=False)
    """The earlier plan."""

    @classmethod
    def of(cls, start: Any) -> "EarlierPlan":
        """The strategy for an earlier plan: a schedule, a solution that has one, or a file.

        Raises:
            OptionError: for anything else, or a schedule without jobs.
        """
        try:
            plan = as_schedule(start)
        except OptionError:
            plan = None
        if plan is None or plan.demand is None:
            raise OptionError(
                "start_from: expected a plan of the same jobs: a schedule, its file or a solution"
            )
        return cls(plan)

    def options(self) -> dict[str, Any]:
        """The name of the strategy that made the earlier plan."""
        return {"start_from": self.start.scheduler.name}

    def verified(self, made: Schedule, seed: int) -> Schedule:
        """The schedule with its provenance; raises NoScheduleError if it does not verify."""
        try:
            return super().verified(made, seed)
        except InvalidScheduleError as error:
            raise self.refused(f"is no longer valid: {error}") from None

    def make(self, topology: Topology, demand: Demand, seed: int, stop: Stop) -> Schedule:
        """Makes the schedule; `schedule` verifies it."""
        old = self.start
        check_start(topology, old.topology)
        now = now_ids(topology, old.topology)
        _check_jobs(old.demanded, demand, now)
        if topology.same_network(old.topology):
            return old.replace(topology=topology, demand=demand, bound=None)
        routes, passable = _routes(old, topology, now)
        assert old.block is not None
        kept = np.ones(old.pieces, np.bool_)
        kept[old.piece[~passable]] = False
        whole = np.bincount(old.block[kept], minlength=len(demand)) > 0
        lost = np.unique(demand.job[~whole]).tolist()
        if not lost:
            return _some(old, topology, demand, now, routes, kept)
        if (np.diff(demand.job) < 0).any():
            raise self.refused("has lost all pieces of a block, and jobs' blocks are interleaved")
        made = []
        for job in range(len(demand.jobs)):
            alone = demand.of_job(job)
            if job in lost:
                part = stop.part(1 / (len(lost) - lost.index(job)))
                anew = Flows() if alone.unicast else Joint()
                made.append(anew.schedule_until(topology, alone, part, seed=seed))
                continue
            mine = kept & (demand.job == job)[old.block]
            made.append(_some(old, topology, alone, now, routes, mine))
        return at_once(made, [event_seconds(one)[0] for one in made])


def _check_jobs(old: Demand, demand: Demand, now: NDArray[np.int64]) -> None:
    """Refuses a plan of other jobs.

    Args:
        old: the demand of the earlier plan.
        demand: the demand now.
        now: [V] for each node of the old network, its id in the new one; −1 if it is gone.
    """
    same = len(old) == len(demand) and np.array_equal(old.job, demand.job)
    same = same and old.contributors.mapped(now).same(demand.contributors)
    if not (same and old.destinations.mapped(now).same(demand.destinations)):
        raise OptionError(
            f"start_from: expected a plan of these jobs, {demand.name}, in {len(demand)} blocks "
            f"among the same servers; got a plan of {old.name}, in {len(old)} blocks"
        )


def _routes(
    old: Schedule, topology: Topology, now: NDArray[np.int64]
) -> tuple[list[NDArray[np.int64]], NDArray[np.bool_]]:
    """Each transfer's route by current node ids, and which transfers still have a route."""
    nodes, offsets = now[old.route_nodes], old.route_offsets.astype(np.int64)
    of_transfer = np.repeat(np.arange(old.num_transfers), np.diff(offsets))
    links = topology.links_along(np.maximum(nodes, 0), offsets)
    of_link = np.repeat(np.arange(old.num_transfers), np.diff(offsets) - 1)
    passable = np.ones(old.num_transfers, np.bool_)
    passable[of_link[links < 0]] = False
    passable[of_transfer[nodes < 0]] = False
    routes: list[Any] = np.split(nodes, offsets[1:-1])
    if passable.all():
        return routes, passable
    others, rank = EvenRoutes(topology), topology.rank.astype(np.int64)
    size = (old.share * old.demanded.total_bytes)[old.piece]
    for transfer in np.flatnonzero(~passable).tolist():
        ends = now[old.source[transfer]], now[old.target[transfer]]
        source, target = (int(rank[end]) if end >= 0 else -1 for end in ends)
        if min(source, target) >= 0 and np.isfinite(others.cost[source, target]):
            along = list(others.route(float(size[transfer]), source, target))
            routes[transfer] = np.concatenate([[ends[0]], topology.target[along]])
            passable[transfer] = True
    return routes, passable


def _some(
    old: Schedule,
    topology: Topology,
    demand: Demand,
    now: NDArray[np.int64],
    routes: list[NDArray[np.int64]],
    kept: NDArray[np.bool_],
) -> Schedule:
    """Some pieces of a plan, as a schedule of the blocks they belong to.

    Args:
        old: the plan.
        topology: the network now.
        demand: the blocks of those pieces.
        now: [V] for each of the plan's nodes, its current id.
        routes: [T] route of each transfer.
        kept: [P] the pieces to keep, at least one of each block.
    """
    assert old.block is not None
    rows = np.flatnonzero(kept[old.piece])
    number = np.cumsum(kept) - 1
    block = np.unique(old.block[kept], return_inverse=True)[1].reshape(-1)
    nodes = np.concatenate([routes[row] for row in rows])
    offsets = np.concatenate([[0], np.cumsum([len(routes[row]) for row in rows])])
    made = Schedule(
        topology=topology,
        collective=DEMAND,
        root=now[old.root[kept]],
        round=np.unique(old.round[rows], return_inverse=True)[1].reshape(-1),
        piece=number[old.piece[rows]],
        source=now[old.source[rows]],
        target=now[old.target[rows]],
        op=old.op[rows],
        route_nodes=nodes,
        route_offsets=offsets,
        shares=old.weights[kept],
        demand=demand,
        block=block,
    )
    with contextlib.suppress(NoScheduleError):  # otherwise its rounds may exceed link capacities
        order = Order(event_seconds(made)[0], np.zeros(len(demand.jobs)))
        return InOrder(made).made(order)
    return made
