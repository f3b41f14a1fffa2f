"""Shares, trees and their order in time by a plan, in milliseconds."""

import dataclasses
import math
from typing import ClassVar

from gradweave.errors import NoScheduleError, OptionError
from gradweave.schedule.schedule import Collective, Schedule
from gradweave.schedulers.planned.decoding import Decoded, Wiring, even, grow_trees, play
from gradweave.schedulers.scheduler import Scheduler
from gradweave.topology.topology import Topology

MAX_SERVERS = 256
"""Trees of more would take too much room."""
PASSES = 2
"""How often each tree is grown."""
TREES, PIECES = 96, 192
"""Trees that are grown, and pieces that they are cut into, where there is time for so many."""
MAX_TRANSFERS = 12_000
"""Of one attempt: about 20 ms."""


@dataclasses.dataclass(frozen=True)
class Planned(Scheduler):
    """Parts of any size over trees of any shape, as `packed`, without its programme and search.

    Trees are grown one after the other, each the cheapest at prices that rise with what links
    carry; then each link takes, of what is ready and fits, what is first by a fixed order.
    """

    name: ClassVar[str] = "planned"
    own_pieces: ClassVar[bool] = True

    gradient_bytes: float = math.inf
    """Size of the gradient for which it is fast; for one beyond all measure, latencies do not
    count."""

    def __post_init__(self) -> None:
        if not self.gradient_bytes > 0:
            raise OptionError(
                f"planned: gradient_bytes: expected more than 0, got {self.gradient_bytes:g}"
            )

    def _make(
        self, topology: Topology, collective: Collective, seed: int, time_limit: float | None
    ) -> Schedule:
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
        proposal = even(topology)
        each = 2 * (topology.num_servers - 1)
        pieces = max(1, min(PIECES, MAX_TRANSFERS // each))
        grove = grow_trees(wiring, proposal, min(TREES, pieces), PASSES)
        return play(grove, proposal.order, max(1, pieces // len(grove.root)))
