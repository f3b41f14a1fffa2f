"""Messages from server to server along the flows that load the busiest link least."""

import dataclasses
import math
from typing import ClassVar

from gradweave.bounds.demands import DemandBound, demand_bound
from gradweave.schedule.demand import Demand
from gradweave.schedule.schedule import Schedule
from gradweave.schedulers.demands.strategy import DemandStrategy
from gradweave.stop import Stop
from gradweave.topology.topology import Topology


@dataclasses.dataclass(frozen=True)
class Flows(DemandStrategy):
    """An all-to-all, a scatter, a gather or any messages, as `plan_unicast` plans them."""

    name: ClassVar[str] = "flows"

    def make(self, topology: Topology, demand: Demand, seed: int, stop: Stop) -> Schedule:
        """Makes the schedule; `schedule` verifies it."""
        return self.bounded(topology, demand, stop, seed=seed)[0]

    def bounded(
        self, topology: Topology, demand: Demand, stop: Stop, *, seed: int = 0
    ) -> tuple[Schedule, DemandBound | None]:
        """The schedule, and what the flow's lengths of links prove."""
        from gradweave.schedulers.demands.unicast import plan_unicast

        if not demand.unicast:
            raise self.refused("is for blocks of one contributor and one destination")
        left = None if math.isinf(stop.seconds_left) else max(stop.seconds_left, 1e-3)
        found = plan_unicast(topology, demand, seed=seed, time_limit=left)
        proved = demand_bound(topology, demand, lengths=found.flow.length)
        return self.verified(found.schedule, seed), proved
