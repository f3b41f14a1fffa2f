"""Shares, trees and their order in time by a learned plan, in milliseconds."""

import dataclasses
import math
from typing import ClassVar, Literal

from gradweave.common.lazy import LazyModule
from gradweave.common.stop import Stop
from gradweave.errors import NoScheduleError, OptionError
from gradweave.schedulers.greedy.decoding import EFFORT_S, Decoded, Wiring, decode
from gradweave.schedulers.greedy.tuning import TUNING
from gradweave.schedulers.scheduler import Scheduler, Traits
from gradweave.schedules.schedule import Collective, Schedule
from gradweave.topology.topology import Topology

Plan = Literal["learned", "even"]
_TRAINED = LazyModule("gradweave.learning.policies.plan")
"""The trained policy. It is loaded by name, since `learning` imports the strategies."""


@dataclasses.dataclass(frozen=True)
class Planned(Scheduler):
    """Parts of any size over trees of any shape, like `packed`, without a linear program.

    Trees are grown one after the other, each the cheapest at duals that rise with link loads. Then
    each link takes the first transfer, in a fixed order, that is ready and fits. The plan
    determines the share that each server roots, which links are expensive from the start, how flat
    trees are, and the weights of the order.
    """

    name: ClassVar[str] = "planned"

    gradient_bytes: float = math.inf
    """Gradient size to plan for; if infinite, latencies do not count."""
    plan: Plan = "learned"
    """``learned``: the trained policy's plan. ``even``: all servers root equal shares, and duals
    depend on link loads only."""
    effort: float = EFFORT_S
    """Approximate seconds of one core. From twice the default on, plans are drawn at random around
    the first, and the best is taken; with many servers, when few could be drawn, the first plan
    gets more trees instead. The limit counts work, so that machines differ in time, not in the
    schedule."""
    weights: str | None = None
    """File of weights made by `benchmarks/plan_training.py`; by default the shipped weights."""

    def __post_init__(self) -> None:
        if not self.gradient_bytes > 0:
            raise OptionError(
                f"planned: gradient_bytes: expected more than 0, got {self.gradient_bytes:g}"
            )
        if not 0 < self.effort < math.inf:
            raise OptionError(
                f"planned: effort: expected a finite number above 0, got {self.effort:g}"
            )
        if self.plan not in ("learned", "even"):
            raise OptionError(f"planned: plan: expected learned or even, got {self.plan!r}")

    @property
    def traits(self) -> Traits:
        """The strategy's traits with these options."""
        return Traits(own_pieces=True, takes_size=math.isinf(self.gradient_bytes))

    def make(self, topology: Topology, collective: Collective, seed: int, stop: Stop) -> Schedule:
        """Makes the schedule; `schedule` verifies it."""
        if topology.num_servers > TUNING.max_servers:
            raise NoScheduleError(
                f"planned: expected at most {TUNING.max_servers} servers, "
                f"got {topology.num_servers}"
            )
        return self.decode(topology, collective, seed, stop).schedule()

    def decode(
        self,
        topology: Topology,
        collective: Collective = "all_reduce",
        seed: int = 0,
        stop: Stop | None = None,
    ) -> Decoded:
        """The transfers and their start times, without the schedule's columns.

        Args:
            topology: the network.
            collective: a stage, or both.
            seed: the seed of random plans.
            stop: ends the search.
        """
        from gradweave.schedulers.greedy.decisions import less_full, plain, proposal_of
        from gradweave.schedulers.greedy.search import search

        wiring = Wiring(topology, collective, self.gradient_bytes)
        learned = self.plan == "learned"
        first = (
            _TRAINED.decided(wiring, _TRAINED.read_weights(self.weights))
            if learned
            else plain(wiring)
        )
        if learned and topology.num_servers > TUNING.trained_servers:
            first = less_full(wiring, [first, plain(wiring)])
        if self.effort < TUNING.search_from * EFFORT_S:
            return decode(wiring, proposal_of(wiring, first), self.effort)
        return search(wiring, first, self.effort, seed, stop or Stop())
