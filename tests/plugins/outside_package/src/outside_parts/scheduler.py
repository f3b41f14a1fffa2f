"""A strategy: one server collects, one transfer a round, and sends the sum to all."""

import dataclasses
from typing import ClassVar

import gradweave as gw
from gradweave.errors import NoScheduleError
from gradweave.schedulers import Scheduler, Traits
from gradweave.schedules import COPY, REDUCE, Schedule


@dataclasses.dataclass(frozen=True)
class PassAlong(Scheduler):
    """One server collects all gradients, one transfer a round, and hands the sum out."""

    name: ClassVar[str] = "pass_along"

    last: bool = False
    """Whether the last server collects, not the first."""

    @property
    def traits(self) -> Traits:
        """One root; what goes to it may pass through other servers."""
        return Traits(forwards=True, one_root=True)

    def make(self, topology, collective, seed, stop) -> Schedule:
        """Makes the schedule; `schedule` verifies it."""
        if topology.num_servers < 2:
            raise NoScheduleError(f"{self.name}: a server alone has nothing to reduce")
        root = int(topology.servers[-1 if self.last else 0])
        others = [server for server in topology.servers.tolist() if server != root]
        routes = [gw.topology.shortest_route(topology, server, root) for server in others]
        rows = []
        if collective != "all_gather":
            rows += [(REDUCE, route) for route in routes]
        if collective != "reduce_scatter":
            rows += [(COPY, route[::-1]) for route in routes]
        rows = [(number, 0, op, route) for number, (op, route) in enumerate(rows)]
        return Schedule.from_rows(topology, rows, collective=collective, root=[root])
