"""Recursive halving and doubling, and recursive doubling of the whole gradient: few rounds."""

import dataclasses
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gradweave.common.stop import Stop
from gradweave.schedulers.scheduler import Scheduler, check_counts
from gradweave.schedulers.textbook.binomial import binomial_steps
from gradweave.schedulers.textbook.places import (
    Order,
    Places,
    check_order,
)
from gradweave.schedulers.textbook.steps import Step, schedule_steps
from gradweave.schedules.schedule import COPY, REDUCE, Collective, Schedule
from gradweave.topology.topology import Topology

MAX_RADIX = 64
"""Largest number of servers that exchange all-to-all: no server has more links."""


@dataclasses.dataclass(frozen=True)
class HalvingDoubling(Scheduler):
    """Reduce-scatter by recursive halving, all-gather by recursive doubling: 2·log2 N exchanges.

    In each exchange of the halving, a server sends its partner the partner's half of the pieces:
    N/2 pieces first, 1 last; the doubling is the same backwards. If N is a power of two, each
    server sends 2·(N−1)/N of the gradient, as in a ring. For other N, the servers above the largest
    power of two are folded: each first sends all its pieces to the server that represents it, and
    at the end receives all of them back, which costs two more exchanges of the whole gradient.

    An exchange of several pieces takes several rounds. If partners are not neighbours, their flows
    share links, placed first fit. The largest exchange is the first, between places that differ in
    the lowest bit.

    Source: Thakur, Rabenseifner and Gropp 2005, section 4.4; distance doubling, vector halving.
    """

    name: ClassVar[str] = "halving_doubling"
    forwards: ClassVar[bool] = True

    order: Order = "id"
    """Which server is at which place: ascending ids; near servers as partners, nearest in the
    largest exchanges (greedy); or the node ids given."""

    def __post_init__(self) -> None:
        check_order(self.order, self.name)

    def make(self, topology: Topology, collective: Collective, seed: int, stop: Stop) -> Schedule:
        """Makes the schedule; `schedule` verifies it."""
        places = Places.of(topology, self.order, self.name)
        pieces = np.arange(topology.num_servers)
        pieces_of_place = _by_place(topology, places)
        scatter, gather = (
            _halving(places, pieces_of_place),
            _halving(places, pieces_of_place, doubling=True)[::-1],
        )
        folded, stand_in = places.folded, places.stand_in
        own = topology.rank[folded].astype(np.int64)[:, None]
        fold = Step.of(folded, stand_in, np.tile(pieces, (len(folded), 1)), REDUCE)
        if collective == "reduce_scatter":
            steps = [fold, *scatter, Step.of(stand_in, folded, own, COPY)]
        else:
            everything = np.tile(pieces, (len(folded), 1))
            if collective == "all_gather":
                everything[np.arange(len(folded)), own[:, 0]] = -1  # they hold it from the start
            unfold = Step.of(stand_in, folded, everything, COPY)
            if collective == "all_gather":
                steps = [Step.of(folded, stand_in, own, COPY), *gather, unfold]
            else:
                steps = [fold, *scatter, *gather, unfold]
        rng = np.random.default_rng(seed)
        return schedule_steps(topology, collective, topology.servers, steps, rng)


@dataclasses.dataclass(frozen=True)
class RecursiveDoubling(Scheduler):
    """The whole gradient as one piece: in each of log2 N exchanges, partners add up their sums.

    Nothing is scattered, so an all-reduce has one stage, in which every server sends log2 N times
    the gradient: the fewest rounds, but many bytes. Partners reduce into each other in the same
    round, so a program that runs it needs a buffer in addition to the gradient. Servers above the
    largest power of two are folded as in `HalvingDoubling`. A reduce-scatter or all-gather of one
    piece is a reduction to its root or a broadcast, by the binomial tree.

    With a larger ``radix``, groups of that many servers exchange all-to-all, in proportionally
    fewer exchanges (recursive multiplying). The links of each server must carry an exchange in one
    round, since all send the sums they held before. With as many as there are servers, all exchange
    with all: the whole all-reduce takes the time of one message. Each server adds in the order of
    the servers' ids, so that all end with bitwise identical sums; with ``order="near"`` and several
    exchanges they may differ.

    Source: Thakur, Rabenseifner and Gropp 2005, section 4.3; Ruefenacht, Bull and Booth,
        "Generalisation of recursive doubling for AllReduce", 2017, for the radix.
    """

    name: ClassVar[str] = "recursive_doubling"
    forwards: ClassVar[bool] = True
    one_root: ClassVar[bool] = True

    order: Order = "id"
    """See `HalvingDoubling.order`."""
    radix: int = 2
    """Size of the groups that exchange. The last exchange may have smaller groups."""

    def __post_init__(self) -> None:
        check_order(self.order, self.name)
        check_counts(self, "radix", least=2, most=MAX_RADIX)

    def make(self, topology: Topology, collective: Collective, seed: int, stop: Stop) -> Schedule:
        """Makes the schedule; `schedule` verifies it."""
        places = Places.of(topology, self.order, self.name)
        if collective == "all_reduce":
            places = places.of_radix(self.radix)
            if self.radix > 2 and self.order == "id":  # the same order of sums in every exchange
                places = dataclasses.replace(places, core=np.sort(places.core))
            beside = np.zeros(len(places.folded), np.int64)
            steps = [
                Step(places.folded, places.stand_in, beside, REDUCE),
                *_exchanges(places, self.radix),
                Step(places.stand_in, places.folded, beside, COPY),
            ]
        else:
            steps = binomial_steps(places, collective)
        rng = np.random.default_rng(seed)
        return schedule_steps(topology, collective, places.core[:1], steps, rng)


def _by_place(topology: Topology, places: Places) -> NDArray[np.int64]:
    """[2^k, 1 or 2] the pieces of each place: its server's, and those of a folded server or −1."""
    of_core = topology.rank[places.core].astype(np.int64)
    of_folded = np.full(topology.num_nodes, -1, np.int64)
    of_folded[places.stand_in] = topology.rank[places.folded]
    if not len(places.folded):
        return of_core[:, None]
    return np.stack([of_core, of_folded[places.core]], axis=1)


def _halving(places: Places, pieces_of_place: NDArray, *, doubling: bool = False) -> list[Step]:
    """The exchanges of the halving; for the doubling the same with directions reversed, last first.

    In exchange s, a server sends its partner the pieces of all places that agree with the partner's
    in bits 0 … s.
    """
    place = np.arange(len(places.core))
    steps = []
    for s in range(places.exchanges):
        partner = place ^ (1 << s)
        higher = np.arange(len(place) >> (s + 1)) << (s + 1)
        low = (place if doubling else partner) & ((2 << s) - 1)
        pieces = pieces_of_place[low[:, None] | higher].reshape(len(place), -1)
        op = COPY if doubling else REDUCE
        steps.append(Step.of(places.core, places.core[partner], pieces, op))
    return steps


def _exchanges(places: Places, radix: int) -> list[Step]:
    """Exchanges of the whole gradient between partners, one per digit to the base `radix`.

    Places that differ in one digit exchange all-to-all.
    """
    steps = []
    for group in places.exchanging(radix):
        sends, gets = np.nonzero(~np.eye(group.shape[1], dtype=bool))
        source, target = (places.core[group[:, side]].T.ravel() for side in (sends, gets))
        piece = np.zeros(len(sends) * len(group), np.int64)
        steps.append(Step(source, target, piece, REDUCE, together=len(sends)))
    return steps
