"""A strategy for demands: everything goes straight to its destination."""

import dataclasses
from typing import ClassVar

from gradweave.schedulers import DemandStrategy, Direct
from gradweave.schedules import Schedule


@dataclasses.dataclass(frozen=True)
class Straight(DemandStrategy):
    """Each block goes straight from its contributors to its destinations."""

    name: ClassVar[str] = "straight"

    def make(self, topology, demand, seed, stop) -> Schedule:
        """Makes the schedule; `schedule` verifies it."""
        return Direct().make(topology, demand, seed, stop)
