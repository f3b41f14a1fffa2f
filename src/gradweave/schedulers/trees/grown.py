"""Grown trees: informed servers push the rarest piece; the trees emerge from the schedule."""

import dataclasses
import math
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from gradweave.bounds import free_trees
from gradweave.common.stop import Stop
from gradweave.errors import NoScheduleError
from gradweave.schedulers.hops import Hops
from gradweave.schedulers.problem import hop_table, integers
from gradweave.schedulers.scheduler import Scheduler, Traits, check_counts, from_all_gather
from gradweave.schedulers.trees.growing import Effort, search
from gradweave.schedulers.trees.steps import steps_allowed
from gradweave.schedules.schedule import COPY, Collective, Schedule, take_rows
from gradweave.topology.topology import Topology

if TYPE_CHECKING:
    from gradweave.schedulers.trees.growing_kernel import Growth


@dataclasses.dataclass(frozen=True)
class Tuning:
    """Constants of the search, chosen by hand unless noted. The rules of runs are in `growing`."""

    max_choices: int = 200_000_000
    """Hops times pieces above which a network is thinned to each server's nearest neighbours."""
    min_neighbours: int = 4
    """Fewest neighbours that are kept."""
    work: int = 150_000_000
    """Choices between pieces, over hops and rounds, that all restarts together make by default."""
    min_restarts: int = 8
    max_restarts: int = 5000
    """Limits of the resulting number of restarts."""
    spare: int = 8
    """In the first runs, slots offered over a server's link per transfer that it can carry in a
    round. With half as many, some networks need one more round; with all slots, as in later runs, a
    run takes up to 16 times as long, and now and then saves a round."""
    first_runs: int = 4
    """Number of first runs."""
    max_slots: int = 32
    """Most slots of a hop: transfers between two servers per round, however large the capacity."""


TUNING = Tuning()


@dataclasses.dataclass(frozen=True)
class Grown(Scheduler):
    """A randomised greedy all-gather on grown trees, restarted until it meets the lower bound.

    In each round, the receivers with the least slack choose first, among the pieces that a
    neighbour holds, the piece that the fewest of their neighbours hold; swaps then fill idle links.
    The reduce-scatter is the reversed all-gather.
    """

    name: ClassVar[str] = "grown"

    restarts: int | None = None
    """Most runs; the search stops at the bound. By default as many as about ten seconds take on one
    core, estimated from the network's size and not from the clock."""
    routes: int = 4
    """Shortest routes to look for between two servers: one by the pinned rule, others at random."""
    workers: int = 1
    """Threads that run restarts in parallel; the result does not depend on their number."""
    pieces_per_server: int = 1
    """Number of pieces that each server is the root of."""
    steps: int | None = None
    """Most steps in sequence that a piece makes in a stage: few if messages are small and latencies
    matter, often at the cost of more rounds; by default unlimited."""

    def __post_init__(self) -> None:
        check_counts(self, "restarts", "routes", "workers", "pieces_per_server", "steps")

    @property
    def traits(self) -> Traits:
        """The strategy's traits with these options."""
        return Traits(
            pieces_per_server=self.pieces_per_server,
            takes_pieces=True,
            takes_steps=self.steps is None,
        )

    def make(self, topology: Topology, collective: Collective, seed: int, stop: Stop) -> Schedule:
        """Makes the schedule; `schedule` verifies it."""
        return from_all_gather(self._all_gather, topology, collective, seed, stop)

    def _all_gather(self, topology: Topology, seed: int, stop: Stop) -> Schedule:
        root = np.repeat(np.arange(topology.num_servers), self.pieces_per_server)
        bound = free_trees(topology, "all_gather", pieces_per_server=self.pieces_per_server)
        hops = hops_for(topology, len(root), self.routes)
        most_steps = None if self.steps is None else steps_allowed(hops, root, self.steps)
        most = min(TUNING.max_slots, len(root))
        few, every = (len(hops.slots(topology.capacity, most, s)) for s in (TUNING.spare, math.inf))
        restarts = self.restarts or int(
            np.clip(
                TUNING.work // (every * len(root) * bound.rounds),
                TUNING.min_restarts,
                TUNING.max_restarts,
            )
        )
        runs = [
            (float(TUNING.spare), 0, min(TUNING.first_runs, restarts)),
            (math.inf, TUNING.first_runs, restarts),
        ]
        if few == every:
            runs = [(math.inf, 0, restarts)]
        best: tuple[GrowthSlots, NDArray[np.int64]] | None = None
        for spare, begin, end in runs:
            if best is not None and stop.reached():
                break
            slots = GrowthSlots.of(topology, root, hops, spare=spare, most_steps=most_steps)
            how = Effort(seed, end, self.workers, stop.at(bound.rounds), begin)
            transfers = search(slots.growth, how)
            if transfers is not None and (best is None or transfers[-1, 0] < best[1][-1, 0]):
                best = slots, transfers
            # Rounds count from 0, so the bound is met.
            if best is not None and best[1][-1, 0] < bound.rounds:
                break
        if best is None:
            raise NoScheduleError(f"grown: no all-gather of {topology.name!r} was completed")
        return schedule_from_slots(topology, *best)


@dataclasses.dataclass(frozen=True, eq=False)
class GrowthSlots:
    """A network's hops, each with a slot for every transfer that it carries per round."""

    hops: Hops
    hop: NDArray[np.int64]
    """[G] hop of each slot."""
    growth: "Growth"
    """The problem as arrays for the compiled search; its hops are slots of hops."""

    @staticmethod
    def of(
        topology: Topology,
        root: NDArray,
        hops: Hops,
        *,
        spare: float = math.inf,
        most: int = TUNING.max_slots,
        intake: NDArray | None = None,
        most_steps: NDArray[np.int16] | None = None,
    ) -> "GrowthSlots":
        """Gives each hop as many slots as its links can carry.

        Args:
            topology: the network.
            root: [P] rank of each piece's root.
            hops: the network's hops.
            spare: see `Hops.slots`.
            most: most slots of a hop.
            intake: [N] transfers that each server can take per round; `intake_of` the hops if not
                given.
            most_steps: see `Growth`; None for no limit.
        """
        from gradweave.schedulers.trees.growing_kernel import Growth

        hop = hops.slots(topology.capacity, min(most, len(root)), spare)
        links, first = take_rows(hops.links, hops.first_link, hop)
        # A link needs no more capacity than the slots over it, however large its capacity: each
        # unit has a slot in the arrays.
        capacity = np.minimum(topology.capacity, np.bincount(links, minlength=len(topology.source)))
        if intake is None:
            intake = intake_of(hops, capacity, topology.num_servers)
        growth = Growth(
            hop_table(hops.source[hop], hops.target[hop], links, first, topology.num_servers),
            integers(root),
            integers(capacity),
            integers(intake),
            np.zeros((0, 0), np.int16) if most_steps is None else most_steps,
        )
        return GrowthSlots(hops, hop, growth)


def hops_for(topology: Topology, pieces: int, routes: int) -> Hops:
    """The hops to grow trees on, thinned to nearby servers if there are too many.

    Args:
        topology: the network.
        pieces: P, number of pieces.
        routes: number of shortest routes to look for between two servers.
    """
    hops = Hops.of(topology, variants=routes)
    if len(hops.source) * pieces <= TUNING.max_choices:
        return hops
    nearest = max(TUNING.min_neighbours, TUNING.max_choices // (pieces * topology.num_servers))
    return Hops.of(topology, variants=routes, nearest=nearest)


def intake_of(hops: Hops, capacity: NDArray, servers: int) -> NDArray[np.float64]:
    """[N] intake of each server: the total capacity, or bandwidth, of its hops' last links."""
    last = hops.links[hops.first_link[1:] - 1]
    pairs = np.unique(np.stack([hops.target, last]), axis=1)
    return np.bincount(pairs[0], capacity[pairs[1]], minlength=servers).astype(np.float64)


def schedule_from_slots(
    topology: Topology, slots: GrowthSlots, transfers: NDArray[np.int64]
) -> Schedule:
    """The all-gather with given transfers.

    Args:
        topology: the network.
        slots: its hops.
        transfers: [T, 3] round, piece and slot.
    """
    hops, hop = slots.hops, slots.hop[transfers[:, 2]]
    nodes, offsets = take_rows(hops.route_nodes, hops.route_offsets, hop)
    return Schedule(
        topology=topology,
        collective="all_gather",
        root=topology.servers[slots.growth.root],
        round=transfers[:, 0],
        piece=transfers[:, 1],
        source=topology.servers[hops.source[hop]],
        target=topology.servers[hops.target[hop]],
        op=np.full(len(transfers), COPY, np.int8),
        route_nodes=nodes,
        route_offsets=offsets,
    )
