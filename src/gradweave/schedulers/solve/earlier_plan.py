"""An earlier plan of the same jobs: what still works of it is kept, the rest planned anew."""

import contextlib
import dataclasses
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gradweave.errors import InvalidScheduleError, NoScheduleError, OptionError
from gradweave.schedule.compose import at_once
from gradweave.schedule.demand import Demand
from gradweave.schedule.file import load
from gradweave.schedule.schedule import DEMAND, Schedule
from gradweave.schedulers.demands.even_routes import EvenRoutes
from gradweave.schedulers.demands.flows import Flows
from gradweave.schedulers.demands.in_order import InOrder, Order
from gradweave.schedulers.demands.joint import Joint
from gradweave.schedulers.demands.strategy import DemandStrategy
from gradweave.schedulers.solve.kept import check_start, now_ids
from gradweave.simulate.seconds import event_seconds
from gradweave.stop import Stop
from gradweave.topology.topology import Topology


@dataclasses.dataclass(frozen=True)
class EarlierPlan(DemandStrategy):
    """The transfers of an earlier plan, where the network still has them.

    The jobs are the same; their sizes, weights and times may differ. The network is the same, or
    has lost links since or changed bandwidths. A transfer over a lost link goes another way past
    switches; a piece for which there is none goes as its block's others do; and a job that has a
    block of which all pieces are lost is planned anew.
    """

    name: ClassVar[str] = "earlier_plan"
    forwards: ClassVar[bool] = True

    start: Schedule = dataclasses.field(repr=False, compare=False)
    """The earlier plan."""

    @classmethod
    def of(cls, start: Any) -> "EarlierPlan":
        """That of a schedule, a solution that has one, or a file of one.

        Raises:
            OptionError: something else, or a schedule that is for no jobs.
        """
        if isinstance(start, str | Path):
            start = load(Path(start))
        start = getattr(start, "schedule", start)
        if not isinstance(start, Schedule) or start.demand is None:
            raise OptionError(
                "start_from: expected a plan of the same jobs: a schedule, its file or a solution"
            )
        return cls(start)

    def options(self) -> dict[str, Any]:
        """Who made the earlier plan."""
        return {"start_from": self.start.scheduler.name}

    def verified(self, made: Schedule, seed: int) -> Schedule:
        """What was made, with its provenance; refused where it does not verify."""
        try:
            return super().verified(made, seed)
        except InvalidScheduleError as error:
            raise self.refused(f"is not valid any longer: {error}") from None

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
            raise self.refused("has lost all pieces of a block, and jobs' blocks are mixed")
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
        old: what it is for.
        demand: what is asked now.
        now: [V] id of each of its nodes in the network that there is now; −1 if it is gone.
    """
    same = len(old) == len(demand) and np.array_equal(old.job, demand.job)
    for before, after in (
        (old.contributors, demand.contributors),
        (old.destinations, demand.destinations),
    ):
        same = same and np.array_equal(before.offsets, after.offsets)
        ids = now[before.servers]
        order = np.lexsort((ids, before.owner))
        same = same and np.array_equal(ids[order], after.servers)
    if not same:
        raise OptionError(
            f"start_from: is a plan of {old.name}, in {len(old)} blocks, not of these jobs: "
            f"{demand.name}, in {len(demand)}, among the same servers"
        )


def _routes(
    old: Schedule, topology: Topology, now: NDArray[np.int64]
) -> tuple[list[NDArray[np.int64]], NDArray[np.bool_]]:
    """Nodes of each transfer's route as they are now, and which transfers have one."""
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
    """Some pieces of a plan, as a schedule of the blocks that they are of.

    Args:
        old: the plan.
        topology: the network now.
        demand: those blocks.
        now: [V] id of each of the plan's nodes.
        routes: [T] of each transfer.
        kept: [P] which pieces; some of each block.
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
    with contextlib.suppress(NoScheduleError):  # rounds in which links have room
        order = Order(event_seconds(made)[0], np.zeros(len(demand.jobs)))
        return InOrder(made).made(order)
    return made
