"""Shares, trees and their order in time by a learned plan, in milliseconds."""

import dataclasses
import math
from typing import ClassVar, Literal

from gradweave.errors import NoScheduleError, OptionError
from gradweave.schedule.schedule import Collective, Schedule
from gradweave.schedulers.planned.decoding import (
    Decoded,
    Proposal,
    Wiring,
    even,
    grow_trees,
    simulate,
)
from gradweave.schedulers.planned.tuning import TUNING
from gradweave.schedulers.scheduler import Scheduler, Traits
from gradweave.stop import Stop
from gradweave.topology.topology import Topology

Plan = Literal["learned", "even"]
EFFORT_S = 0.05
"""Seconds of one core, about, in which a plan is decoded."""


@dataclasses.dataclass(frozen=True)
class Planned(Scheduler):
    """Parts of any size over trees of any shape, as `packed`, without linear program and search.

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
    weights: str | None = None
    """File of weights made by `gradweave.learning.plans`; the shipped ones if not given."""

    def __post_init__(self) -> None:
        if not self.gradient_bytes > 0:
            raise OptionError(
                f"planned: gradient_bytes: expected more than 0, got {self.gradient_bytes:g}"
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
        return self.decode(topology, collective).schedule()

    def decode(self, topology: Topology, collective: Collective = "all_reduce") -> Decoded:
        """The transfers and their times, without the schedule's columns.

        Args:
            topology: the network.
            collective: a stage, or both.
        """
        wiring = Wiring(topology, collective, self.gradient_bytes)
        return decode(wiring, self._proposal(wiring))

    def _proposal(self, wiring: Wiring) -> Proposal:
        from gradweave.schedulers.planned.policy import propose, read_weights

        if self.plan == "even":
            return even(wiring.topology)
        return propose(wiring, read_weights(self.weights))


def decode(wiring: Wiring, proposal: Proposal, effort_s: float = EFFORT_S) -> Decoded:
    """Grows a proposal's trees and simulates them, in as many pieces as there is time for.

    Args:
        wiring: the network and the gradient.
        proposal: the plan.
        effort_s: seconds of one core, about, that this may take.
    """
    many = wiring.topology.num_servers <= TUNING.few_servers
    many = many and path_steps(wiring) <= TUNING.max_path_steps
    trees = TUNING.trees if many else TUNING.max_trees
    each = len(wiring.stages) * (wiring.topology.num_servers - 1)
    trees = min(trees * proposal.fewer, 1e6 * effort_s / (4 * TUNING.transfer_us * each))
    trees = max(1, round(trees))
    grove = grow_trees(wiring, proposal, trees, TUNING.passes)
    whole = simulate(grove, proposal.order, 1)
    transfers = len(grove.root) * each
    left = 1e6 * effort_s - grown_us(wiring, len(grove.root))

    def work_us(cuts: int) -> float:
        blocked = (whole.tried - transfers) * cuts**TUNING.tries_power
        return TUNING.transfer_us * transfers * cuts + TUNING.try_us * blocked

    left -= work_us(1)
    simulations = 1 + 2 * TUNING.improvements
    cuts = next((n for n in TUNING.cuts if simulations * work_us(n) <= left), 0)
    if not cuts:
        return whole
    return simulate(grove, proposal.order, cuts, TUNING.improvements)


def grown_us(wiring: Wiring, trees: int) -> float:
    """Microseconds, about, in which so many trees grow."""
    each = path_steps(wiring) + 4 * wiring.topology.num_servers**2
    return trees * TUNING.passes * each * TUNING.path_steps_us


def path_steps(wiring: Wiring) -> int:
    """Steps of the search for paths for one tree: links, from each server, at each rate."""
    return wiring.topology.num_servers * len(wiring.links.bandwidth) * len(wiring.rates.rate)
