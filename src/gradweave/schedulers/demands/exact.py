"""The least time of a demand by constraint programming, or a proof that there is no less."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gradweave import clock
from gradweave.bounds.demands import demand_bound
from gradweave.bounds.unicast import Unit, unicast
from gradweave.errors import OptionError
from gradweave.schedule.demand import Demand
from gradweave.schedule.schedule import DEMAND, Schedule
from gradweave.schedulers.demands.carriers import Carrier, Plan, Trees
from gradweave.schedulers.demands.exact_model import DemandModel, Moved, Sent
from gradweave.schedulers.demands.pieces import Ordered, Pieces
from gradweave.schedulers.demands.strategy import DemandStrategy
from gradweave.schedulers.demands.unicast import messages_of
from gradweave.schedulers.exact.model import Effort
from gradweave.schedulers.scheduler import check_counts
from gradweave.schedulers.unequal.cuts import Cut
from gradweave.simulate.seconds import event_seconds
from gradweave.stop import Stop
from gradweave.topology.topology import Topology

SAME = 1e-5
"""By how much more than what was proved a time may be that counts as the least, since seconds are
counted in ticks."""


@dataclasses.dataclass(frozen=True, eq=False)
class DemandProof:
    """A verified schedule, and what was proved about all in pieces of its size."""

    schedule: Schedule | None
    """None where none takes less than was asked for, or none was found within the effort."""
    unit: Unit
    time: float
    """Seconds of the event model, or rounds, of the schedule; infinite where there is none."""
    least: float
    """No schedule of as many equal pieces, moved along trees, takes less; infinite where none takes
    less than was asked for."""
    wall_s: float

    @property
    def decided(self) -> bool:
        """Whether it takes the least time possible; or, where there is none, that is proved."""
        return self.time <= self.least * (1 + SAME)


@dataclasses.dataclass(frozen=True)
class ExactDemand(DemandStrategy):
    """The least seconds of all schedules in some equal pieces, proved by constraint programming.

    CP-SAT chooses, for all pieces at once, the trees or paths, the routes over switches, and when
    each transfer starts. A block with several contributors and several destinations is summed up at
    one server, whichever is best, and copied from there. For a few servers. With one worker the
    result depends on the seed alone, unless a time limit cuts the search off.

    In seconds a transfer has all of the bandwidth of its route's scarcest link: schedules in which
    several share a link in one round, as capacities above 1 allow, are left out, and may be faster.

    Times are counted in ticks, about a millionth of what all transfers in a row take, rounded down.
    """

    name: ClassVar[str] = "exact"

    pieces: int = 1
    """Equal pieces of each block."""
    unit: Unit = "seconds"
    """``rounds``: the fewest rounds, in which a link takes its capacity of pieces."""
    workers: int = 1
    """CP-SAT's workers; with more than one, results vary from run to run."""
    effort: float = 60.0
    """Most deterministic time; a unit took one to three seconds."""
    max_hops: int = 3_000
    """Hops that all pieces may take together; a larger question is refused in one line."""

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
        """Finds a schedule, and says what was proved.

        Args:
            topology: the network.
            demand: what is to be summed and moved.
            below: seconds, or rounds: ask only for a schedule that takes less.
            seed: every random choice depends on it alone.
            time_limit: seconds after which to return what is known.

        Raises:
            NoScheduleError: where the question is too large.

        >>> import gradweave as gw
        >>> whole = gw.schedule.collective("broadcast", range(4), 4, root=0)
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
        """The schedule, if there is one, and the least time in the unit."""
        least = self._bound(topology, demand)
        model = DemandModel(topology, demand, self.pieces, self.unit, self.max_hops, least, below)
        answer = model.solve(Effort(seed, self.workers, self.effort, stop))
        made = None if answer.moved is None else self._schedule(topology, demand, answer.moved)
        return made, float(max(answer.least * model.tick_s, least))

    def _bound(self, topology: Topology, demand: Demand) -> float:
        """What any schedule takes at least."""
        if self.unit == "seconds":
            return demand_bound(topology, demand).seconds * (1 - 1e-9)
        if not demand.unicast:
            return 0.0
        messages = messages_of(topology, demand)
        counted = dataclasses.replace(messages, amount=np.full(len(messages), self.pieces))
        return math.ceil(unicast(counted, "rounds").time)

    def _schedule(self, topology: Topology, demand: Demand, moved: Sequence[Moved]) -> Schedule:
        """The schedule of a solution."""
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
    """The schedule whose transfers are in the rounds that were found.

    Args:
        topology: the network.
        demand: what is to be summed and moved.
        block: [P] of each piece, ascending.
        made: [P] each piece's transfers, and their rounds.
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
    """A piece's transfers, and the ticks at which they start."""
    rank = topology.rank
    servers = np.union1d(demand.servers_of(int(demand.job[block])), demand.relays)
    group = rank[servers].astype(np.int64)
    place = {server: number for number, server in enumerate(servers.tolist())}
    trees = Trees(group, place[moved.root])
    if moved.sums:
        trees = dataclasses.replace(
            trees,
            towards=_parents(moved.sums, place, towards=True),
            given=np.isin(servers, demand.contributors[block]),
        )
    if moved.copies:
        trees = dataclasses.replace(
            trees,
            away=_parents(moved.copies, place, towards=False),
            wanted=np.isin(servers, demand.destinations[block]),
        )
    sent: list[Sent] = []
    for part, hops in (
        (dataclasses.replace(trees, away=None), moved.sums),
        (dataclasses.replace(trees, towards=None), moved.copies),
    ):
        known = {(int(rank[one.hop.source]), int(rank[one.hop.target])): one for one in hops}
        part.carrier(topology, _noting(known, sent))
    following = iter(sent)
    carrier = trees.carrier(topology, lambda _source, _target: next(following).hop.links)
    return carrier, [one.start for one in sent]


def _noting(
    known: dict[tuple[int, int], Sent], sent: list[Sent]
) -> Callable[[int, int], tuple[int, ...]]:
    """Notes the hops that a tree asks for, in its order."""

    def route(source: int, target: int) -> tuple[int, ...]:
        sent.append(known[source, target])
        return sent[-1].hop.links

    return route


def _parents(hops: Sequence[Sent], place: dict[int, int], *, towards: bool) -> NDArray[np.int64]:
    """[G] the place of each server's next one towards the root; −1 where there is none."""
    parent = np.full(len(place), -1)
    for one in hops:
        below, up = one.hop.source, one.hop.target
        if not towards:
            below, up = up, below
        parent[place[below]] = place[up]
    return parent
