"""Binomial trees: the whole gradient to one server, and the sum back."""

import dataclasses
from typing import ClassVar, Literal

import numpy as np

from gradweave.schedule.schedule import COPY, REDUCE, Collective, Schedule
from gradweave.schedulers.scheduler import Scheduler, Traits
from gradweave.schedulers.textbook.places import Order, Places, check_order
from gradweave.schedulers.textbook.steps import Step, schedule_steps
from gradweave.stop import Stop
from gradweave.topology.topology import Topology


@dataclasses.dataclass(frozen=True)
class Binomial(Scheduler):
    """The gradient in one piece: reduced to a root along a binomial tree, then broadcast along it.

    ⌈log2 N⌉ steps a stage. In step s of the reduction each place whose lowest bit is s sends to the
    place without that bit; servers above the largest power of two send to the one that stands for
    them before that. Few rounds and few transfers, 2·(N−1) in all, each of the whole gradient.

    Source: Thakur, Rabenseifner and Gropp 2005, sections 4.1 and 4.4 (binomial trees).
    """

    name: ClassVar[str] = "binomial"

    order: Order = "id"
    """Who stands at which place: ascending ids; near servers as partners (greedy); or the node ids
    given. The first is the root."""

    def __post_init__(self) -> None:
        check_order(self.order, self.name)

    @property
    def traits(self) -> Traits:
        """What it is like, with these options."""
        return Traits(forwards=True, one_root=True)

    def _make(self, topology: Topology, collective: Collective, seed: int, stop: Stop) -> Schedule:
        places = Places.of(topology, self.order, self.name)
        steps: list[Step] = []
        if collective != "all_gather":
            steps += binomial_steps(places, "reduce_scatter")
        if collective != "reduce_scatter":
            steps += binomial_steps(places, "all_gather")
        rng = np.random.default_rng(seed)
        return schedule_steps(topology, collective, places.core[:1], steps, rng)


def binomial_steps(places: Places, stage: Literal["reduce_scatter", "all_gather"]) -> list[Step]:
    """The fold and the tree's steps, or the same reversed: the tree's steps and the unfold.

    Args:
        places: the servers in their places; the first is the root.
        stage: the reduction or the broadcast.
    """
    gathering = stage == "all_gather"
    place = np.arange(len(places.core))
    pairs = [(places.folded, places.stand_in)]
    for s in range(places.exchanges):
        low = place[place & ((2 << s) - 1) == (1 << s)]
        pairs.append((places.core[low], places.core[low ^ (1 << s)]))
    steps = []
    for below, above in pairs[::-1] if gathering else pairs:
        source, target = (above, below) if gathering else (below, above)
        piece = np.zeros(len(below), np.int64)
        steps.append(Step(source, target, piece, COPY if gathering else REDUCE))
    return steps
