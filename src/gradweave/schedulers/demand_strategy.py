"""The protocol of strategies for demands."""

import abc
import dataclasses
from typing import ClassVar

from gradweave.bounds.seconds_bound import SecondsBound
from gradweave.errors import NoScheduleError
from gradweave.schedulers.scheduler import Strategy, Traits
from gradweave.schedules.demand import Demand
from gradweave.schedules.schedule import Schedule
from gradweave.stop import Stop
from gradweave.topology.topology import Topology


@dataclasses.dataclass(frozen=True)
class DemandStrategy(Strategy):
    """One strategy for demands.

    A subclass defines `name` and `make`. Callers use `schedule`, which verifies the result.
    """

    forwards: ClassVar[bool] = False
    """Whether its routes may pass through servers of the job."""
    time_share: ClassVar[float] = 1.0
    """Its share of a search's time, relative to that of other strategies."""

    @property
    def traits(self) -> Traits:
        """The strategy's traits: whether it forwards."""
        return Traits(forwards=self.forwards)

    def schedule(
        self,
        topology: Topology,
        demand: Demand,
        *,
        seed: int = 0,
        time_limit: float | None = None,
    ) -> Schedule:
        """Makes a fast schedule, and verifies it.

        Args:
            topology: the network.
            demand: the blocks to sum and move.
            seed: the only source of every random choice.
            time_limit: seconds after which to return the best found so far.

        Raises:
            NoScheduleError: if the strategy finds none, or does not support the demand.
            InvalidScheduleError: if the strategy has a bug: its schedule does not verify.
        """
        return self.schedule_until(topology, demand, Stop.after(time_limit), seed=seed)

    def schedule_until(
        self, topology: Topology, demand: Demand, stop: Stop, *, seed: int = 0
    ) -> Schedule:
        """As `schedule`, within the time that a caller's search has left."""
        demand.check_servers(topology)
        return self.verified(self.make(topology, demand, seed, stop), seed)

    def bounded(
        self, topology: Topology, demand: Demand, stop: Stop, *, seed: int = 0
    ) -> tuple[Schedule, SecondsBound | None]:
        """As `schedule_until`, with the bound that its search has proved, if it proves any."""
        return self.schedule_until(topology, demand, stop, seed=seed), None

    @abc.abstractmethod
    def make(self, topology: Topology, demand: Demand, seed: int, stop: Stop) -> Schedule:
        """Makes the schedule; `schedule` verifies it and adds its provenance.

        Args:
            topology: the network.
            demand: the blocks to sum and move, by servers of the network.
            seed: the only source of every random choice.
            stop: when to return the best found so far; one schedule is made in any case.

        Raises:
            NoScheduleError: if the strategy finds none, or does not support the demand.
        """

    def refused(self, why: str) -> NoScheduleError:
        """The error for a demand that the strategy does not support."""
        return NoScheduleError(f"{self.name}: {why}")
