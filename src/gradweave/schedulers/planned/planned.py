"""Shares, trees and their order in time by a learned plan, in milliseconds."""

import dataclasses
import math
from typing import ClassVar, Literal

from gradweave.errors import NoScheduleError, OptionError
from gradweave.schedule.schedule import Collective, Schedule
from gradweave.schedulers.planned.decoding import EFFORT_S, Decoded, Wiring, decode
from gradweave.schedulers.planned.tuning import TUNING
from gradweave.schedulers.scheduler import Scheduler, Traits
from gradweave.stop import Stop
from gradweave.topology.topology import Topology

Plan = Literal["learned", "even"]


@dataclasses.dataclass(frozen=True)
class Planned(Scheduler):
    """Parts of any size over trees of any shape, as `packed`, without a linear program.

    Trees are grown one after the other, each the cheapest at duals that rise with what links
    carry; then each link takes, of what is ready and fits, what is first by a fixed order. The plan
    says what each server roots, which links are dear from the start, how flat trees are, and what
    counts how much in the order.
    """

    name: ClassVar[str] = "planned"

    gradient_bytes: float = math.inf
    """Size of the gradient for which it is fast; for one beyond all measure, latencies do not
    count."""
    plan: Plan = "learned"
    """Whose plan it is: the trained policy's; or the even one, in which all servers root alike and
    duals depend on what links carry alone."""
    effort: float = EFFORT_S
    """Seconds of one core, about. By twice the default and more, plans are drawn around the first
    one, and the best is taken; among many servers, where few could be drawn, the first has more
    trees instead. What is counted is work: machines differ in time, not in the schedule."""
    weights: str | None = None
    """File of weights made by `gradweave.learning.plans`; the shipped ones if not given."""

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
        """What it is like, with these options."""
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
        """The transfers and their times, without the schedule's columns.

        Args:
            topology: the network.
            collective: a stage, or both.
            seed: of the plans that are drawn.
            stop: ends the drawing.
        """
        from gradweave.schedulers.planned.policy import (
            decided,
            less_full,
            plain,
            proposal_of,
            read_weights,
        )
        from gradweave.schedulers.planned.search import search

        wiring = Wiring(topology, collective, self.gradient_bytes)
        learned = self.plan == "learned"
        first = decided(wiring, read_weights(self.weights)) if learned else plain(wiring)
        if learned and topology.num_servers > TUNING.trained_servers:
            first = less_full(wiring, [first, plain(wiring)])
        if self.effort < TUNING.search_from * EFFORT_S:
            return decode(wiring, proposal_of(wiring, first), self.effort)
        return search(wiring, first, self.effort, seed, stop or Stop())
