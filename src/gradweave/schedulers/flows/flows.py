"""Point-to-point messages along flows that minimise the busiest link's load."""

import dataclasses
import math
from typing import ClassVar

from gradweave.bounds.seconds_bound import SecondsBound
from gradweave.common.stop import Stop
from gradweave.schedulers.scheduler import DemandStrategy
from gradweave.schedules.demand import Demand
from gradweave.schedules.schedule import Schedule
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
    ) -> tuple[Schedule, SecondsBound | None]:
        """The schedule, and the bound that the flow's link lengths prove."""
        from gradweave.schedulers.flows.unicast import plan_unicast

        if not demand.unicast:
            raise self.refused("needs blocks of one contributor and one destination")
        left = None if math.isinf(stop.seconds_left) else max(stop.seconds_left, 1e-3)
        found = plan_unicast(topology, demand, seed=seed, time_limit=left)
        assert isinstance(found.bound, SecondsBound), "asked for in seconds"
        return self.verified(found.schedule, seed), found.bound
