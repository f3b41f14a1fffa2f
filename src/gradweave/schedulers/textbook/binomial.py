"""Binomial trees: the whole gradient is reduced to one server, and the sum broadcast."""

import dataclasses
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gradweave.common.stop import Stop
from gradweave.schedulers.scheduler import Scheduler, check_counts
from gradweave.schedulers.textbook.places import (
    Order,
    Partners,
    Places,
    check_order,
    check_partners,
)
from gradweave.schedulers.textbook.steps import Step, schedule_steps
from gradweave.schedules.schedule import COPY, REDUCE, Collective, Schedule, Stage
from gradweave.topology.topology import Topology


@dataclasses.dataclass(frozen=True)
class Binomial(Scheduler):
    """The gradient as one piece: reduced to a root along a binomial tree, then broadcast along it.

    A stage takes ⌈log2 N⌉ steps. In step s of the reduction, each place whose lowest set bit is bit
    s sends to the place without that bit; before that, servers above the largest power of two send
    to the servers that represent them. There are few rounds and few transfers, 2·(N−1) in all, each
    of the whole gradient.

    With ``radix=k`` it is a k-nomial tree with ⌈logk N⌉ levels: the parent of a place is the place
    with its lowest nonzero digit to the base k set to 0, and no server is folded. Many children pay
    off if a message arrives long after the next can be sent.

    Source: Thakur, Rabenseifner and Gropp 2005, sections 4.1 and 4.4 (binomial trees).
    """

    name: ClassVar[str] = "binomial"
    forwards: ClassVar[bool] = True
    one_root: ClassVar[bool] = True

    order: Order = "id"
    """Which server is at which place: ascending ids; near servers as partners (greedy); or the node
    ids given. The first is the root."""
    radix: int = 2
    """k: the factor by which each level multiplies the number of servers reached."""
    partners: Partners = "hypercube"
    """Which places are neighbours: see `Places.partner`. ``bine`` requires radix 2."""

    def __post_init__(self) -> None:
        check_order(self.order, self.name)
        check_partners(self.partners, self.radix, self.name)
        check_counts(self, "radix", least=2)

    def make(self, topology: Topology, collective: Collective, seed: int, stop: Stop) -> Schedule:
        """Makes the schedule; `schedule` verifies it."""
        places = Places.of(topology, self.order, self.name)
        steps: list[Step] = []
        for stage in ("reduce_scatter", "all_gather"):
            if collective in ("all_reduce", stage):
                steps += (
                    binomial_steps(places, stage, self.partners)
                    if self.radix == 2
                    else _knomial_steps(places, stage, self.radix)
                )
        rng = np.random.default_rng(seed)
        return schedule_steps(topology, collective, places.core[:1], steps, rng)


def binomial_steps(places: Places, stage: Stage, partners: Partners = "hypercube") -> list[Step]:
    """The fold and the tree's steps; for a broadcast reversed: the tree's steps and the unfold.

    Args:
        places: the servers in their places; the first is the root.
        stage: the reduction or the broadcast.
        partners: which places are partners.
    """
    reached, levels = np.zeros(1, np.int64), []
    for s in range(places.exchanges)[::-1]:
        partner = places.partner(s, partners)[reached]
        levels.append((places.core[partner], places.core[reached]))
        reached = np.sort(np.concatenate([reached, partner]))
    return _along([(places.folded, places.stand_in), *levels[::-1]], stage)


def _knomial_steps(places: Places, stage: Stage, radix: int) -> list[Step]:
    """The steps of a k-nomial tree: one for each digit and each of its values."""
    servers = np.concatenate([places.core, places.folded])
    place, pairs, unit = np.arange(len(servers)), [], 1
    while unit < len(servers):
        digit, lower = place // unit % radix, place % unit
        for value in range(1, radix):
            low = place[(lower == 0) & (digit == value)]
            pairs.append((servers[low], servers[low - value * unit]))
        unit *= radix
    return _along(pairs, stage)


def _along(pairs: list[tuple[NDArray, NDArray]], stage: Stage) -> list[Step]:
    """Steps from child to parent of each pair, or from parent to child in reversed order."""
    steps, gathering = [], stage == "all_gather"
    for below, above in pairs[::-1] if gathering else pairs:
        source, target = (above, below) if gathering else (below, above)
        piece = np.zeros(len(below), np.int64)
        steps.append(Step(source, target, piece, COPY if gathering else REDUCE))
    return steps
