"""All jobs of a demand planned together: one linear program, and pieces in event time."""

import contextlib
import dataclasses
from typing import ClassVar

import numpy as np

from gradweave.bounds.demands import DemandBound, demand_bound
from gradweave.errors import NoScheduleError, OptionError
from gradweave.schedule.demand import Demand
from gradweave.schedule.schedule import Schedule
from gradweave.schedulers.demands.carriers import Plan, even_plan
from gradweave.schedulers.demands.disjoint_trees import disjoint_carriers
from gradweave.schedulers.demands.joint_program import plan
from gradweave.schedulers.demands.pieces import Pieces
from gradweave.schedulers.demands.stages import Stages
from gradweave.schedulers.demands.strategy import DemandStrategy
from gradweave.schedulers.demands.textbook import Chain, Direct
from gradweave.schedulers.demands.tuning import TUNING
from gradweave.stop import UNLIMITED, Stop
from gradweave.topology.topology import Topology

SIMPLE = (Chain(), Direct())
"""Strategies whose carriers the program begins with. Behind switches, where those of one, blocks
divided evenly, load no link longer than it must be, no others are sought: a solution of the program
would have fewer, and load ports needlessly, which then wait for each other."""


@dataclasses.dataclass(frozen=True)
class Joint(DemandStrategy):
    """Trees and paths of all blocks at once, so that no link carries longer than it must.

    A linear program divides every block among trees, or paths over servers that relay, and every
    link among the jobs. What each carries is cut into pieces, which follow each other as soon as
    their links are free.
    """

    name: ClassVar[str] = "joint"

    residual: float = 0.0
    """Weight of the bandwidth that a transfer leaves unusable behind switches, beside what it uses;
    see `gradweave.schedulers.unequal.paths.Paths`."""
    order: tuple[int, ...] = ()
    """[jobs] place of each job, of which the first are to end before others; all together, if not
    given."""
    weight: tuple[float, ...] = ()
    """[jobs] of each job's end then; one, if not given."""

    def __post_init__(self) -> None:
        if self.weight and len(self.weight) != len(self.order):
            raise OptionError(f"joint: weight: expected {len(self.order)}, one for each place")
        if not 0 <= self.residual < np.inf:
            raise OptionError(
                f"joint: residual: expected a number of at least 0, got {self.residual:g}"
            )

    def make(self, topology: Topology, demand: Demand, seed: int, stop: Stop) -> Schedule:
        """Makes the schedule; `schedule` verifies it."""
        return _in_pieces(self.plan(topology, demand, stop), stop)

    def bounded(
        self, topology: Topology, demand: Demand, stop: Stop, *, seed: int = 0
    ) -> tuple[Schedule, DemandBound | None]:
        """The schedule, and what the program's duals prove."""
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
        """Trees and paths, with what each carries.

        Args:
            topology: the network.
            demand: what is to be summed and moved.
            stop: of the program and of what follows.
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
