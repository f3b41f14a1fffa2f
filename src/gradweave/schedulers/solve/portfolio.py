"""Several strategies, cheap ones first, until the bound is met."""

import dataclasses
from typing import ClassVar

from gradweave.schedule.schedule import Collective, Schedule
from gradweave.schedulers.scheduler import Scheduler
from gradweave.schedulers.solve.order import DEFAULT
from gradweave.schedulers.solve.rounds import solve_for_rounds
from gradweave.stop import Stop
from gradweave.topology.topology import Topology


@dataclasses.dataclass(frozen=True)
class Portfolio(Scheduler):
    """What `solve` tries by default, as one strategy: `gradweave.schedulers.DEFAULT` in turn.

    Stops at the lower bound. With a time limit, each member gets what is left.
    """

    name: ClassVar[str] = "portfolio"

    def _make(self, topology: Topology, collective: Collective, seed: int, stop: Stop) -> Schedule:
        solution = solve_for_rounds(topology, collective, DEFAULT, seed, stop)
        return solution.schedule
