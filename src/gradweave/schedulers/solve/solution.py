"""The result of a search: a schedule, its bound and timing, and the outcome of each strategy."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from gradweave.bounds import Bound, Distance, certify_rounds, free_trees
from gradweave.drawn import Drawn
from gradweave.schedule.schedule import Collective, Schedule
from gradweave.schedulers.scheduler import Scheduler
from gradweave.schedulers.solve.kept import Kept
from gradweave.schedulers.solve.seconds_bound import Timing
from gradweave.topology.routes import hop_distances
from gradweave.topology.topology import Topology

Stopped = Literal["bound", "time", "tried", "interrupt"]
"""Why a search ended."""


@dataclasses.dataclass(frozen=True)
class Attempt:
    """The outcome of one strategy."""

    scheduler: Scheduler
    rounds: int | None
    """Rounds of its schedule; None where it found none."""
    wall_s: float
    """Seconds that it took, without the compiling of loops that a first run does."""
    reason: str = ""
    """Why it found none."""
    seconds: float | None = None
    """For the objective seconds: time of its best variant, without barriers."""
    barrier_seconds: float | None = None
    """The same with a barrier after each round."""
    pieces: int | None = None
    """Pieces of that variant."""
    overlapped: bool = False
    """Whether that variant's stages were made to overlap."""


@dataclasses.dataclass(frozen=True)
class RuntimeComparison:
    """A plan beside the all-reduce that its runtime has itself, both predicted by one profile."""

    name: str
    """Of the runtime."""
    own: str
    """Its algorithm, as a strategy's name."""
    own_s: float
    """Seconds that takes."""
    plan_s: float
    """Seconds that the best plan takes."""
    own_chosen: bool
    """Whether the runtime's own is as good, and so the answer."""


@dataclasses.dataclass(frozen=True)
class RepairComparison:
    """For seconds: a plan made of the schedule before a fault, beside one from scratch."""

    as_before_s: float | None
    """Seconds of the schedule before, in its own order, on the network as it is now; None where a
    link that it uses is lost."""
    repaired_s: float
    """Seconds of the repaired plan that keeps most: of those that take at most
    `gradweave.schedulers.solve.repaired_plans.RepairTuning.keep_within` longer than the fastest
    plan known; where none does, of the fastest repaired one."""
    anew_s: float | None
    """Seconds of the best plan from scratch; None where none was sought, since the repaired one is
    as near the least time possible."""
    chosen: bool
    """Whether the repaired plan is the answer."""


@dataclasses.dataclass(frozen=True)
class Solution(Drawn):
    """A verified schedule, how good it can be at best, and how it was found."""

    schedule: Schedule
    bound: Bound
    scheduler: Scheduler
    """The strategy that found it."""
    attempts: tuple[Attempt, ...]
    wall_s: float
    """Seconds that all took, without the compiling of loops that a first run does."""
    timing: Timing | None = None
    """The schedule's time beside the least possible: for the objective seconds, and wherever
    rounds do not tell the time, the gradient's size is known and the network is not too large."""
    kept: Kept | None = None
    """Where the search started from a schedule: what this one has kept of it."""
    repair: RepairComparison | None = None
    """The same for the objective seconds: what keeping them costs."""
    runtime: RuntimeComparison | None = None
    """Where a runtime was given: its own all-reduce beside the best plan."""
    stopped: Stopped = "tried"
    """Why the search ended: the ``bound`` is met (in seconds, nearly), the ``time`` limit is used
    up, all strategies have been ``tried``, each for as long as it took or its share of that
    limit, or an ``interrupt`` ended it."""

    @property
    def rounds(self) -> int:
        """Rounds of the schedule."""
        return self.schedule.rounds

    @property
    def gap(self) -> float:
        """How far the schedule may be from the best possible: rounds over the bound, less one."""
        return self.rounds / self.bound.rounds - 1

    @property
    def optimal(self) -> bool:
        """Whether the schedule meets its bound, which proves that none has fewer rounds.

        Of its time that says nothing, above all where links have different bandwidths.
        """
        return self.rounds == self.bound.rounds

    @property
    def optimal_in(self) -> tuple[str, ...]:
        """What is proved to be the least possible: ``rounds``, ``seconds``, both or neither."""
        timed = self.timing is not None and self.timing.optimal
        return ("rounds",) * self.optimal + ("seconds",) * timed


def bound_for(
    topology: Topology,
    collective: Collective,
    schedulers: Sequence[Scheduler],
    *,
    parts: int = 1,
    overlap: bool = False,
) -> Bound:
    """The bound that holds for all of some strategies, with the freedoms that their options give.

    Args:
        topology: the network.
        collective: a stage, or both.
        schedulers: the strategies. Of one piece with one root, or as many as a strategy likes, only
            the distance that one must go bounds the rounds.
        parts: how many each piece is cut into afterwards.
        overlap: whether the stages are made to overlap afterwards.
    """
    all_traits = [scheduler.traits for scheduler in schedulers]
    forwarding = any(one.forwards for one in all_traits)
    if not all(one.rounds_compare for one in all_traits):
        return _distance(topology, forwarding)
    return free_trees(
        topology,
        collective,
        overlap=overlap or any(one.overlaps for one in all_traits),
        aggregating_switches=any(one.aggregates for one in all_traits),
        forwarding_servers=forwarding,
        pieces_per_server=parts * min(one.pieces_per_server for one in all_traits),
    )


def kept_certificates(
    bound: Bound, schedule: Schedule, pieces_per_server: int
) -> tuple[Mapping[str, Any], ...]:
    """What proves a bound on rounds, for the file of a schedule that it holds for.

    Args:
        bound: of `bound_for`.
        schedule: of the same network and collective.
        pieces_per_server: that the bound is for.
    """
    found = certify_rounds(
        schedule.topology, bound, schedule.collective, pieces_per_server=pieces_per_server
    )
    return () if found is None else (found.certificate,)


def _distance(topology: Topology, forwarding_servers: bool) -> Bound:
    """The most transfers that a contribution needs to reach a server, one a round."""
    hops = hop_distances(topology)
    source, target = divmod(int(hops.argmax()), len(hops))
    transfers = 1 if forwarding_servers else int(hops[source, target])
    ends = int(topology.servers[source]), int(topology.servers[target])
    return Bound(transfers, "depth", (Distance(*ends, transfers),))
