"""Plans one group's collective with the strategies for a collective among all servers."""

import dataclasses
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gradweave.schedulers.scheduler import DemandStrategy, Scheduler, to_spec
from gradweave.schedulers.solving.seconds import solve_for_seconds
from gradweave.schedules.demand import Demand, Sets
from gradweave.schedules.schedule import DEMAND, Collective, Schedule
from gradweave.stop import Stop
from gradweave.topology.subnetwork import subnetwork
from gradweave.topology.topology import Topology


@dataclasses.dataclass(frozen=True)
class Group(DemandStrategy):
    """An all-reduce, all-gather or reduce-scatter of one group, on the network of its servers.

    It is planned as `gradweave.solve` plans it among all servers. In an all-gather or
    reduce-scatter, all servers have equal parts.
    """

    name: ClassVar[str] = "group"
    forwards: ClassVar[bool] = True
    time_share: ClassVar[float] = 2.0

    scheduler: Scheduler | None = None
    """The only scheduler to try; by default those that `gradweave.solve` tries for seconds."""

    def options(self) -> dict[str, Any]:
        """The scheduler's specification, as written to schedule files."""
        return {"scheduler": self.scheduler and to_spec(self.scheduler)}

    def make(self, topology: Topology, demand: Demand, seed: int, stop: Stop) -> Schedule:
        """Makes the schedule; `schedule` verifies it."""
        collective, of_root = self.collective(demand)
        alone, nodes = subnetwork(topology, demand.servers)
        if not alone.is_server[topology.is_server[nodes]].all():
            raise self.refused("the group's routes pass through other servers")
        found = solve_for_seconds(
            alone,
            float(demand.total_bytes),
            collective=collective,
            schedulers=self.scheduler and (self.scheduler,),
            first=(),
            seed=seed,
            stop=stop,
            progress=lambda _: None,
        ).schedule
        return _lifted(found, topology, nodes, demand, of_root)

    def collective(self, demand: Demand) -> tuple[Collective, NDArray[np.int64]]:
        """The collective that a demand is among its servers, and the block of each server's part.

        Raises:
            NoScheduleError: if it is no collective that schedulers plan.
        """
        count = len(demand.servers)
        given, wanted = demand.contributors, demand.destinations
        if len(demand.jobs) == 1 and np.ptp(demand.bytes) <= 1:  # division may leave a byte over
            if len(demand) == 1 and given.sizes[0] == wanted.sizes[0] == count:
                return "all_reduce", np.zeros(count, np.int64)
            if self._parts_for_all(given, wanted, demand.servers):
                return "all_gather", np.argsort(given.servers)
            if self._parts_for_all(wanted, given, demand.servers):
                return "reduce_scatter", np.argsort(wanted.servers)
        raise self.refused("needs a single all-reduce, all-gather or reduce-scatter in equal parts")

    def _parts_for_all(self, one: Sets, every: Sets, servers: NDArray[np.int64]) -> bool:
        """Whether the sets of `one` are single servers, and each set of `every` is all of them."""
        alike = (one.sizes == 1).all() and (every.sizes == len(servers)).all()
        return bool(alike) and np.array_equal(np.sort(one.servers), servers)


def _lifted(
    schedule: Schedule,
    topology: Topology,
    nodes: NDArray[np.integer],
    demand: Demand,
    of_root: NDArray[np.int64],
) -> Schedule:
    """Translates a schedule on a group's network to the whole network, for a demand.

    Args:
        schedule: among all servers of the group's network.
        topology: the whole network.
        nodes: for each node of the group's network, its id in the whole network.
        demand: the group's demand.
        of_root: [N] block of each of the group's ranks.
    """
    block = of_root[schedule.topology.rank[schedule.root]]
    order = np.argsort(block, kind="stable")
    name = np.empty(len(order), np.int64)
    name[order] = np.arange(len(order))
    return Schedule(
        topology=topology,
        collective=DEMAND,
        root=nodes[schedule.root[order]],
        round=schedule.round,
        piece=name[schedule.piece],
        source=nodes[schedule.source],
        target=nodes[schedule.target],
        op=schedule.op,
        route_nodes=nodes[schedule.route_nodes],
        route_offsets=schedule.route_offsets,
        shares=schedule.weights[order],
        demand=demand,
        block=block[order],
    )
