"""All jobs of a demand planned together: one linear program, and pieces in event time."""

import contextlib
import dataclasses
from typing import ClassVar

import numpy as np

from gradweave.errors import NoScheduleError, OptionError
from gradweave.schedule.demand import Demand
from gradweave.schedule.schedule import Schedule
from gradweave.schedulers.demands.joint_program import plan
from gradweave.schedulers.demands.pieces import Pieces
from gradweave.schedulers.demands.strategy import DemandStrategy
from gradweave.schedulers.demands.textbook import Chain, Direct
from gradweave.schedulers.demands.tuning import TUNING
from gradweave.stop import Stop
from gradweave.topology.topology import Topology

SIMPLE = (Chain(), Direct())
"""Strategies whose carriers the program begins with: where these load no link longer than it must
be, no others are sought, and one chain has no gaps that many trees would leave."""


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

    def __post_init__(self) -> None:
        if not 0 <= self.residual < np.inf:
            raise OptionError(
                f"joint: residual: expected a number of at least 0, got {self.residual:g}"
            )

    def make(self, topology: Topology, demand: Demand, seed: int, stop: Stop) -> Schedule:
        """Makes the schedule; `schedule` verifies it."""
        first = []
        for simple in SIMPLE:
            with contextlib.suppress(NoScheduleError):
                first += simple.carriers(topology, demand)
        found = plan(
            topology, demand, residual=self.residual, first=first, stop=stop.part(TUNING.planning)
        )
        pieces = Pieces(found, np.zeros(topology.num_servers))
        return pieces.schedule(pieces.fastest(stop))
