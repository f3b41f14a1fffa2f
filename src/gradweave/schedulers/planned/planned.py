"""Shares, trees and their order in time by a learned plan, in milliseconds."""

import dataclasses
import math
from typing import ClassVar, Literal

from gradweave.errors import NoScheduleError, OptionError
from gradweave.schedule.schedule import Collective, Schedule
from gradweave.schedulers.planned.decoding import Decoded, Proposal, Wiring, even, grow_trees, play
from gradweave.schedulers.scheduler import Scheduler, Traits
from gradweave.stop import Stop
from gradweave.topology.topology import Topology

MAX_SERVERS = 256
"""Trees of more would take too much room."""
PASSES = 2
"""How often each tree is grown."""
PIECES = 192
"""That the gradient is cut into, where there is time for so many."""
FEW, TREES = 16, 96
"""With more servers than a few, as many trees at most, since each then takes longer to grow."""
MAX_TRANSFERS = 9_000
"""That are played at a time: about 10 ms."""
MAX_SOUGHT = 6_000
"""What is gone through for a tree, see `_sought`, up to which trees are as many as pieces."""
SWINGS = 1
"""How often the order is mended."""
MAX_WORK = 42_000
"""About the microseconds up to which there is time for that."""

Plan = Literal["learned", "even"]


@dataclasses.dataclass(frozen=True)
class Planned(Scheduler):
    """Parts of any size over trees of any shape, as `packed`, without its programme and search.

    Trees are grown one after the other, each the cheapest at prices that rise with what links
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
    prices hang on what links carry alone."""
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

    def _make(self, topology: Topology, collective: Collective, seed: int, stop: Stop) -> Schedule:
        if topology.num_servers > MAX_SERVERS:
            raise NoScheduleError(
                f"planned: expected at most {MAX_SERVERS} servers, got {topology.num_servers}"
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


def decode(wiring: Wiring, proposal: Proposal) -> Decoded:
    """Grows a proposal's trees and plays them, in as many pieces as there is time for.

    Args:
        wiring: the network and the gradient.
        proposal: the plan.
    """
    servers = wiring.topology.num_servers
    each = len(wiring.stages) * (servers - 1)
    pieces = max(1, min(PIECES, MAX_TRANSFERS // each))
    many = servers <= FEW and _sought(wiring) <= MAX_SOUGHT
    trees = pieces if many else min(TREES, pieces)
    grove = grow_trees(wiring, proposal, trees, PASSES)
    cuts = max(1, pieces // len(grove.root))
    grown = len(grove.root) * PASSES * (_sought(wiring) + 4 * servers**2) / 80
    left = (MAX_WORK - grown) / (1 + 2 * SWINGS) - len(grove.root) * cuts * each
    return play(grove, proposal.order, cuts, SWINGS, 10 * left)


def _sought(wiring: Wiring) -> int:
    """What the search for ways goes through: links, from each server, at each rate."""
    return wiring.topology.num_servers * len(wiring.links.bandwidth) * len(wiring.rates.rate)
