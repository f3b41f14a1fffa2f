"""Plans all jobs of a demand together: one linear program, then pieces by event simulation."""

import contextlib
import dataclasses
from typing import ClassVar

import numpy as np

from gradweave.bounds.demands.demand_bound import demand_bound
from gradweave.bounds.seconds_bound import SecondsBound
from gradweave.common.stop import UNLIMITED, Stop
from gradweave.errors import NoScheduleError, OptionError
from gradweave.schedulers.carriers import Plan, even_plan
from gradweave.schedulers.demand_tuning import TUNING
from gradweave.schedulers.ordering.pieces import Pieces
from gradweave.schedulers.packing.joint_program import plan
from gradweave.schedulers.packing.stages import Stages
from gradweave.schedulers.scheduler import DemandStrategy
from gradweave.schedulers.textbook.runtimes import Chain, Direct
from gradweave.schedulers.trees.disjoint_trees import disjoint_carriers
from gradweave.schedules.demand import Demand
from gradweave.schedules.schedule import Schedule
from gradweave.topology.topology import Topology

SIMPLE = (Chain(), Direct())
"""Strategies whose carriers the program starts with. Behind switches, if evenly divided blocks on
the carriers of one strategy already meet the bound on the busiest link, no others are sought: a
solution of the program would use fewer carriers and needlessly load ports, which would then wait
for each other."""


@dataclasses.dataclass(frozen=True)
class Joint(DemandStrategy):
    """Trees and paths of all blocks at once, which minimise the busiest link's load.

    A linear program divides every block among trees, or paths over servers that relay, and every
    link among the jobs. The amount on each carrier is cut into pieces, which follow each other as
    soon as their links are free.
    """

    name: ClassVar[str] = "joint"

    residual: float = 0.0
    """Weight of the bandwidth that a transfer leaves unusable behind switches, relative to the
    bandwidth it uses; see `gradweave.schedulers.packing.paths.PathCosts`."""
    order: tuple[int, ...] = ()
    """[jobs] position of each job, if some must end before others; by default all jobs are planned
    together."""
    weight: tuple[float, ...] = ()
    """[jobs] weight of each job's end in that case; 1 if not given."""

    def __post_init__(self) -> None:
        if self.weight and len(self.weight) != len(self.order):
            raise OptionError(f"joint: weight: expected {len(self.order)}, one per job in order")
        if not 0 <= self.residual < np.inf:
            raise OptionError(
                f"joint: residual: expected a number of at least 0, got {self.residual:g}"
            )

    def make(self, topology: Topology, demand: Demand, seed: int, stop: Stop) -> Schedule:
        """Makes the schedule; `schedule` verifies it."""
        return _in_pieces(self.plan(topology, demand, stop), stop)

    def bounded(
        self, topology: Topology, demand: Demand, stop: Stop, *, seed: int = 0
    ) -> tuple[Schedule, SecondsBound | None]:
        """The schedule, and the bound that the program's duals prove."""
        found = self.plan(topology, demand, stop)
        besides = []
        for stage, lengths in enumerate(found.lengths[:-1]):
            jobs = np.flatnonzero(self._stages(demand).of_job <= stage).tolist()
            one = demand_bound(topology, demand.of_jobs(jobs), lengths=lengths)
            besides.append(one.lengths)
        bound = dataclasses.replace(found.bound, besides=tuple(besides))
        return self.verified(_in_pieces(found, stop), seed), bound

    def _stages(self, demand: Demand) -> Stages:
        jobs = len(demand.jobs)
        if not self.order:
            return Stages.one(jobs)
        if len(self.order) != jobs:
            raise self.refused(f"has an order of {len(self.order)} jobs, not {jobs}")
        return Stages.in_order(self.order, self.weight or (1.0,) * jobs, TUNING.max_stages)

    def plan(self, topology: Topology, demand: Demand, stop: Stop = UNLIMITED) -> Plan:
        """Trees and paths, with the bytes of each.

        Args:
            topology: the network.
            demand: the blocks to sum and move.
            stop: when to stop the program and the steps after it.
        """
        part = stop.part(TUNING.planning)
        known = [list(disjoint_carriers(topology, demand, part.part(TUNING.planning)))]
        for simple in SIMPLE:
            with contextlib.suppress(NoScheduleError):
                known.append(list(simple.carriers(topology, demand)))
        if len(topology.switches) and not self.order and not self.residual:
            for carriers in known:
                if len({block for block, _ in carriers}) == len(demand):
                    even = even_plan(topology, demand, carriers)
                    if even.busiest_s <= even.bound.seconds_of_parts * (1 + TUNING.tolerance):
                        return even
        first = [one for carriers in known for one in carriers]
        stages = self._stages(demand)
        return plan(topology, demand, residual=self.residual, first=first, stages=stages, stop=part)


def _in_pieces(plan: Plan, stop: Stop) -> Schedule:
    pieces = Pieces(plan)
    return pieces.schedule(pieces.fastest(stop))
