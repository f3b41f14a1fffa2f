"""The minimum time of a demand by constraint programming, with its proof."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gradweave.bounds.demands.demand_bound import demand_bound, demand_rounds
from gradweave.bounds.prices import Unit
from gradweave.common import clock
from gradweave.common.stop import Stop
from gradweave.errors import OptionError
from gradweave.schedulers.carriers import Carrier, Plan, TreePair
from gradweave.schedulers.exact.demand_model import DemandModel, Moved, Sent
from gradweave.schedulers.exact.model import Effort
from gradweave.schedulers.ordering.cuts import Cut
from gradweave.schedulers.ordering.pieces import Ordered, Pieces
from gradweave.schedulers.scheduler import DemandStrategy, check_counts
from gradweave.schedules.demand import Demand
from gradweave.schedules.schedule import DEMAND, Schedule
from gradweave.simulator.seconds import event_seconds
from gradweave.topology.topology import Topology

SAME = 1e-5
"""Relative excess of a time over the proved bound up to which it counts as optimal: seconds are
counted in ticks."""


@dataclasses.dataclass(frozen=True, eq=False)
class DemandProof:
    """A verified schedule, and a bound on all schedules with as many equal pieces."""

    schedule: Schedule | None
    """None if no schedule is below the requested time, or none was found within the effort."""
    unit: Unit
    time: float
    """Seconds in the event model, or rounds, of the schedule; infinite without a schedule."""
    least: float
    """Lower bound for all schedules with as many equal pieces, moved along trees; infinite if it is
    proved that none is below the requested time."""
    wall_s: float

    @property
    def decided(self) -> bool:
        """Whether the schedule is proved optimal, or proved not to exist."""
        return self.time <= self.least * (1 + SAME)


@dataclasses.dataclass(frozen=True)
class ExactDemand(DemandStrategy):
    """Minimises seconds by constraint programming, over all schedules with that many equal pieces.

    CP-SAT chooses, for all pieces at once, the trees or paths, the routes over switches, and the
    start of each transfer. A block with several contributors and several destinations is summed at
    one server, chosen optimally, and copied from there. Use it for a few servers. With one worker
    the result depends on the seed alone, unless a time limit cuts the search off.

    In seconds, a transfer has the full bandwidth of its route's slowest link. Schedules in which
    several transfers share a link in one round, as capacities above 1 allow, are excluded, and may
    be faster.

    Times are counted in ticks and rounded down. A tick is at most a ten-millionth of the duration
    of all transfers in sequence, or longer if it divides all times.
    """

    name: ClassVar[str] = "exact"

    pieces: int = 1
    """Number of equal pieces of each block."""
    unit: Unit = "seconds"
    """``rounds`` minimises rounds, in which a link carries as many pieces as its capacity."""
    workers: int = 1
    """CP-SAT's workers; with more than one, results vary from run to run."""
    effort: float = 60.0
    """Most deterministic time of CP-SAT; a unit took one to three seconds."""
    max_hops: int = 3_000
    """Most hops of all pieces together; a larger model is refused."""

    def __post_init__(self) -> None:
        check_counts(self, "pieces", most=64)
        check_counts(self, "workers", most=256)
        check_counts(self, "max_hops")
        if self.unit not in ("seconds", "rounds"):
            raise OptionError(f"exact: unit: expected seconds or rounds, got {self.unit!r}")
        if not 0 < self.effort <= 1e9:
            raise OptionError(f"exact: effort: expected more than 0 units, got {self.effort:g}")

    def make(self, topology: Topology, demand: Demand, seed: int, stop: Stop) -> Schedule:
        """Makes the schedule; `schedule` verifies it."""
        found, _ = self._proved(topology, demand, seed, stop)
        if found is None:
            raise self.refused("no schedule within the effort or time; give more, or fewer pieces")
        return found

    def prove(
        self,
        topology: Topology,
        demand: Demand,
        *,
        below: float = math.inf,
        seed: int = 0,
        time_limit: float | None = None,
    ) -> DemandProof:
        """Finds a schedule and a bound.

        Args:
            topology: the network.
            demand: the blocks to sum and move.
            below: seconds, or rounds: search only for schedules below this value.
            seed: the only source of every random choice.
            time_limit: seconds after which to return the best known result.

        Raises:
            NoScheduleError: if the model would be too large.

        >>> import gradweave as gw
        >>> whole = gw.schedules.collective("broadcast", range(4), 4, root=0)
        >>> proof = ExactDemand(unit="rounds").prove(gw.topology.star(4), whole)
        >>> proof.time, proof.decided
        (2.0, True)
        """
        begun = clock.now()
        demand.check_servers(topology)
        found, least = self._proved(topology, demand, seed, Stop.after(time_limit), below)
        schedule, time = found and self.verified(found, seed), math.inf
        if schedule is not None:
            rounds = self.unit == "rounds"
            time = float(schedule.rounds if rounds else event_seconds(schedule)[1].max())
        return DemandProof(schedule, self.unit, time, least, clock.now() - begun)

    def _proved(
        self, topology: Topology, demand: Demand, seed: int, stop: Stop, below: float = math.inf
    ) -> tuple[Schedule | None, float]:
        """The schedule, if there is one, and the lower bound in the unit."""
        least = self._bound(topology, demand)
        model = DemandModel(topology, demand, self.pieces, self.unit, self.max_hops, least, below)
        answer = model.solve(Effort(seed, self.workers, self.effort, stop))
        made = None if answer.moved is None else self._schedule(topology, demand, answer.moved)
        return made, float(max(answer.least * model.tick_s, least))

    def _bound(self, topology: Topology, demand: Demand) -> float:
        """A lower bound for any schedule."""
        if self.unit == "seconds":
            return demand_bound(topology, demand).seconds * (1 - 1e-9)
        if not demand.unicast:
            return 0.0
        counted = dataclasses.replace(demand, bytes=np.full(len(demand), self.pieces))
        return demand_rounds(topology, counted).rounds

    def _schedule(self, topology: Topology, demand: Demand, moved: Sequence[Moved]) -> Schedule:
        """The schedule that a solution of the model describes."""
        block = np.repeat(np.arange(len(demand)), self.pieces)
        made = [_carrier(topology, demand, int(b), m) for b, m in zip(block, moved, strict=True)]
        if self.unit == "rounds":
            return _in_rounds(topology, demand, block, made)
        size = np.repeat(demand.bytes / self.pieces, self.pieces)
        carriers = tuple(carrier for carrier, _ in made)
        plan = Plan(topology, demand, block, carriers, size, demand_bound(topology, demand))
        most = max(len(carrier.routes) for carrier in carriers)
        start = np.full((len(made), most), np.inf)
        for number, (_, starts) in enumerate(made):
            start[number, : len(starts)] = starts
        cut = Cut(np.arange(len(made)), np.zeros(len(made), np.int64), size / size.sum())
        return Pieces(plan).schedule(Ordered(cut, start.reshape(-1), math.inf))


def _in_rounds(
    topology: Topology,
    demand: Demand,
    block: NDArray[np.int64],
    made: Sequence[tuple[Carrier, list[int]]],
) -> Schedule:
    """The schedule with its transfers in the rounds found.

    Args:
        topology: the network.
        demand: the blocks to sum and move.
        block: [P] block of each piece, ascending.
        made: [P] each piece's transfers and their rounds.
    """
    rows = []
    for piece, (carrier, rounds) in enumerate(made):
        for number, links, op in zip(rounds, carrier.routes, carrier.ops, strict=True):
            nodes = int(topology.source[links[0]]), *topology.target[list(links)].tolist()
            rows.append((number, piece, op, nodes))
    plain = Schedule.from_rows(topology, rows, root=[carrier.root for carrier, _ in made])
    return plain.replace(collective=DEMAND, demand=demand, block=block)


def _carrier(
    topology: Topology, demand: Demand, block: int, moved: Moved
) -> tuple[Carrier, list[int]]:
    """A piece's transfers and the ticks at which they start."""
    rank = topology.rank
    servers = np.union1d(demand.servers_of(int(demand.job[block])), demand.relays)
    group = rank[servers].astype(np.int64)
    place = {server: number for number, server in enumerate(servers.tolist())}
    trees = TreePair(
        group,
        place[moved.root],
        _parents(moved.sums, place, towards=True),
        np.isin(servers, demand.contributors[block]),
        _parents(moved.copies, place, towards=False),
        np.isin(servers, demand.destinations[block]),
    )
    # Both trees may have a hop between the same two servers. So each tree is asked for its hops by
    # itself, and their starts are noted in the order of the whole carrier.
    sent: list[Sent] = []
    root = servers == moved.root
    for part, hops in (
        (dataclasses.replace(trees, wanted=root), moved.sums),
        (dataclasses.replace(trees, given=root), moved.copies),
    ):
        known = {(int(rank[one.hop.source]), int(rank[one.hop.target])): one for one in hops}
        part.carrier(topology, _noting(known, sent))
    following = iter(sent)
    carrier = trees.carrier(topology, lambda _source, _target: next(following).hop.links)
    return carrier, [one.start for one in sent]


def _noting(
    known: dict[tuple[int, int], Sent], sent: list[Sent]
) -> Callable[[int, int], tuple[int, ...]]:
    """Records the hops that a tree asks for, in the tree's order."""

    def route(source: int, target: int) -> tuple[int, ...]:
        sent.append(known[source, target])
        return sent[-1].hop.links

    return route


def _parents(hops: Sequence[Sent], place: dict[int, int], *, towards: bool) -> NDArray[np.int64]:
    """[G] the place of each server's successor towards the root; −1 if it has none."""
    parent = np.full(len(place), -1)
    for one in hops:
        below, up = one.hop.source, one.hop.target
        if not towards:
            below, up = up, below
        parent[place[below]] = place[up]
    return parent
