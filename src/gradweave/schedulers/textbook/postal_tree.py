"""Small broadcasts and reductions: one tree, grown by arrival times of messages."""

import dataclasses
from typing import ClassVar

import numpy as np

from gradweave.common.stop import Stop
from gradweave.errors import NoScheduleError
from gradweave.schedulers.carriers import TreePair, even_plan
from gradweave.schedulers.ordering.pieces import Pieces
from gradweave.schedulers.scheduler import DemandStrategy, check_counts
from gradweave.schedulers.textbook.postal import tree_by_arrival
from gradweave.schedules.demand import Demand
from gradweave.schedules.schedule import Schedule
from gradweave.topology.topology import Topology


@dataclasses.dataclass(frozen=True)
class PostalTree(DemandStrategy):
    """A tree for a broadcast or a reduction, grown by arrival times of messages.

    Each server is informed by the server that can do so first, in an order that is improved by
    moving single servers. See `gradweave.schedulers.Postal`.
    """

    name: ClassVar[str] = "postal_tree"
    time_share: ClassVar[float] = 0.1

    tries: int = 200
    """Number of moves to try."""

    def __post_init__(self) -> None:
        check_counts(self, "tries", least=0)

    def make(self, topology: Topology, demand: Demand, seed: int, stop: Stop) -> Schedule:
        """Makes the schedule; `schedule` verifies it."""
        rank = topology.rank.astype(np.int64)
        given, wanted = rank[demand.contributors[0]], rank[demand.destinations[0]]
        if len(demand) > 1 or 1 not in (len(given), len(wanted)):
            raise self.refused("needs one broadcast or one reduction")
        group, towards = rank[demand.servers_of(0)], len(wanted) == 1
        root, size = int(wanted[0] if towards else given[0]), float(demand.bytes[0])
        try:
            tree = tree_by_arrival(
                topology, root, group, towards, size, tries=self.tries, seed=seed
            )
        except NoScheduleError as error:
            raise self.refused(str(error)) from None
        # In the order of arrival: of messages that are equally urgent, the first goes first.
        group = np.array([root, *tree])
        number = {server: place for place, server in enumerate(group.tolist())}
        place = np.array([-1, *(number[up] for up, _ in tree.values())])

        def route(source: int, target: int) -> tuple[int, ...]:
            return tree[source if towards else target][1]

        gives, wants = np.isin(group, given), np.isin(group, wanted)
        carrier = TreePair(group, 0, place, gives, place, wants).carrier(topology, route)
        pieces = Pieces(even_plan(topology, demand, [(0, carrier)]))
        return pieces.schedule(pieces.fastest(stop))
