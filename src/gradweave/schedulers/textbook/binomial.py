"""Binomial trees: the whole gradient to one server, and the sum back."""

import dataclasses
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from gradweave.errors import OptionError
from gradweave.schedule.schedule import COPY, REDUCE, Collective, Schedule
from gradweave.schedulers.scheduler import Scheduler, Traits, check_counts
from gradweave.schedulers.textbook.places import (
    Order,
    Partners,
    Places,
    check_order,
    check_partners,
)
from gradweave.schedulers.textbook.steps import Step, schedule_steps
from gradweave.stop import Stop
from gradweave.topology.topology import Topology

Stage = Literal["reduce_scatter", "all_gather"]


@dataclasses.dataclass(frozen=True)
class Binomial(Scheduler):
    """The gradient in one piece: reduced to a root along a binomial tree, then broadcast along it.

    ⌈log2 N⌉ steps a stage. In step s of the reduction each place whose lowest bit is s sends to the
    place without that bit; servers above the largest power of two send to the one that stands for
    them before that. Few rounds and few transfers, 2·(N−1) in all, each of the whole gradient.

    With ``radix=k`` it is a k-nomial tree, of ⌈logk N⌉ levels: each place is the child of the one
    whose lowest digit to the base k that is not 0 is 0, and no server is folded. So many children
    pay where a message arrives long after the next can be sent.

    Source: Thakur, Rabenseifner and Gropp 2005, sections 4.1 and 4.4 (binomial trees).
    """

    name: ClassVar[str] = "binomial"

    order: Order = "id"
    """Who stands at which place: ascending ids; near servers as partners (greedy); or the node ids
    given. The first is the root."""
    radix: int = 2
    """K: servers after a level of the tree, for each one before."""
    partners: Partners = "hypercube"
    """Which places are neighbours: see `Places.partner`. ``bine`` with radix 2 alone."""

    def __post_init__(self) -> None:
        check_order(self.order, self.name)
        check_partners(self.partners, self.name)
        check_counts(self, "radix", least=2)
        if self.radix > 2 and self.partners != "hypercube":
            raise OptionError(
                f"{self.name}: radix: expected 2 with partners=bine, got {self.radix}"
            )

    @property
    def traits(self) -> Traits:
        """What it is like, with these options."""
        return Traits(forwards=True, one_root=True)

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
    """The fold and the tree's steps, or the same reversed: the tree's steps and the unfold.

    Args:
        places: the servers in their places; the first is the root.
        stage: the reduction or the broadcast.
        partners: who is whose neighbour.
    """
    reached, levels = np.zeros(1, np.int64), []
    for s in range(places.exchanges)[::-1]:
        partner = places.partner(s, partners)[reached]
        levels.append((places.core[partner], places.core[reached]))
        reached = np.sort(np.concatenate([reached, partner]))
    return _along([(places.folded, places.stand_in), *levels[::-1]], stage)


def _knomial_steps(places: Places, stage: Stage, radix: int) -> list[Step]:
    """The steps of a k-nomial tree: one for each digit and its value, the larger ones first."""
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
    """Steps from the lower to the upper of each pair, or the other way in the reversed order."""
    steps, gathering = [], stage == "all_gather"
    for below, above in pairs[::-1] if gathering else pairs:
        source, target = (above, below) if gathering else (below, above)
        piece = np.zeros(len(below), np.int64)
        steps.append(Step(source, target, piece, COPY if gathering else REDUCE))
    return steps
