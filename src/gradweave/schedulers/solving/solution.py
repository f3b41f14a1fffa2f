"""The result of a search: a schedule, its bound and timing, and the outcome of each strategy."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gradweave.bounds import Bound, Distance, free_trees, with_certificates
from gradweave.bounds.classes import class_of
from gradweave.bounds.demands.job_objectives import ObjectiveBound
from gradweave.bounds.of_schedule import certified_rounds
from gradweave.bounds.seconds_bound import SecondsBound
from gradweave.common.drawn import Drawn
from gradweave.common.wording import counted
from gradweave.schedulers.repairing.kept import Kept
from gradweave.schedulers.scheduler import NEAR_BOUND, Strategy, to_spec
from gradweave.schedulers.solving.timing import Timing
from gradweave.schedules.objective import JobObjective, Objective
from gradweave.schedules.planned_for import planned_for
from gradweave.schedules.schedule import Collective, Schedule
from gradweave.topology.routes import hop_distances
from gradweave.topology.topology import Topology
from gradweave.topology.units import ROUNDING, format_seconds, format_size

Stopped = Literal["bound", "time", "tried", "interrupt"]
"""Why a search ended."""


@dataclasses.dataclass(frozen=True)
class Attempt:
    """The outcome of one strategy."""

    scheduler: Strategy
    rounds: int | None
    """Rounds of its schedule, or None if it found no schedule."""
    wall_s: float
    """Seconds that it took, excluding the first-run compilation of loops."""
    reason: str = ""
    """Why it found no schedule."""
    value: float | None = None
    """Value of the objective."""
    seconds: float | None = None
    """Time of its best variant, without barriers; None for the objective rounds."""
    barrier_seconds: float | None = None
    """The same with a barrier after each round."""
    pieces: int | None = None
    """Pieces of that variant."""
    overlapped: bool = False
    """Whether the stages of that variant overlap."""
    improved: bool = False
    """Whether its order, or the sizes or number of its pieces, were improved afterwards."""


@dataclasses.dataclass(frozen=True)
class RuntimeComparison:
    """A plan compared with the all-reduce that its runtime ships, predicted by one profile."""

    name: str
    """The runtime's name."""
    own: str
    """The runtime's algorithm, as a strategy's name."""
    own_s: float
    """Predicted seconds of the runtime's all-reduce."""
    plan_s: float
    """Predicted seconds of the best plan."""
    own_chosen: bool
    """Whether the runtime's all-reduce is as good, and therefore the answer."""


@dataclasses.dataclass(frozen=True)
class RepairComparison:
    """For seconds: a plan derived from the schedule before a fault, and a plan from scratch."""

    as_before_s: float | None
    """Seconds of the schedule before the fault, unchanged, on the changed network, or None if a
    link that it uses is lost."""
    repaired_s: float
    """Seconds of the repaired plan that keeps most among those that take at most
    `gradweave.schedulers.repairing.repaired_plans.RepairTuning.keep_within` longer than the fastest
    known plan; if there is none, of the fastest repaired plan."""
    anew_s: float | None
    """Seconds of the best plan from scratch, or None if the repaired plan is close enough to the
    bound that none was sought."""
    chosen: bool
    """Whether the repaired plan is the answer."""


@dataclasses.dataclass(frozen=True)
class Solution(Drawn):
    """A verified schedule, its lower bounds, and the record of the search."""

    schedule: Schedule
    scheduler: Strategy
    """The strategy that found it."""
    objective: Literal["rounds", "seconds"] | JobObjective
    """The quantity that the search minimised: `value`, `bound`, `gap` and `optimal` refer to it."""
    attempts: tuple[Attempt, ...] = ()
    wall_s: float = 0.0
    """Seconds of the whole search, excluding the first-run compilation of loops."""
    rounds_bound: Bound | None = None
    """The lower bound on rounds; None for jobs."""
    timing: Timing | None = None
    """The schedule's time and the lower bound on it: for the objective seconds; also if rounds do
    not determine the time, the gradient's size is known and the network is not too large."""
    kept: Kept | None = None
    """If the search started from a schedule: how much of it this schedule has kept."""
    repair: RepairComparison | None = None
    """The same for the objective seconds: the time that keeping transfers costs."""
    runtime: RuntimeComparison | None = None
    """If a runtime was given: its all-reduce compared with the best plan."""
    stopped: Stopped = "tried"
    """Why the search ended: the ``bound`` is met (in seconds, nearly), the ``time`` limit is used
    up, all strategies have been ``tried``, each for as long as it took or its share of that limit,
    or an ``interrupt`` ended it."""

    judge: Objective | None = dataclasses.field(default=None, repr=False)
    """For jobs: the objective with its weights."""
    job_seconds: NDArray[np.float64] = dataclasses.field(
        default_factory=lambda: np.empty(0), repr=False, compare=False
    )
    """[jobs] when each job ends, in the event model or, if one was given, on the runtime; empty for
    a collective among all servers."""
    makespan_bound: SecondsBound | None = dataclasses.field(default=None, repr=False)
    """For jobs: the lower bound on the time until the last one ends."""
    of_objective: ObjectiveBound | None = dataclasses.field(default=None, repr=False)
    """For jobs: the lower bound on `value`; None for the makespan, which has `makespan_bound`."""

    @property
    def rounds(self) -> int:
        """Rounds of the schedule."""
        return self.schedule.rounds

    @property
    def seconds(self) -> float:
        """Seconds until the last job ends; for a collective among all servers, its timing's."""
        return float(self.job_seconds.max()) if self.judge else self._timed.seconds

    @property
    def value(self) -> float:
        """The objective's value: rounds, (weighted) seconds, or for ``fair`` a ratio."""
        if self.judge is not None:
            return self.judge.value(self.job_seconds)
        return self.rounds if self.objective == "rounds" else self._timed.seconds

    @property
    def bound(self) -> Bound | SecondsBound | ObjectiveBound:
        """The lower bound on the objective, for the schedules that the bound names."""
        found = self.of_objective or self.makespan_bound
        found = found or (self.rounds_bound if self.objective == "rounds" else self._timed.bound)
        assert found is not None  # each search states the bound of its objective
        return found

    @property
    def least(self) -> float:
        """The lower bound on `value` as a number."""
        bound = self.bound
        if isinstance(bound, Bound):
            return bound.rounds
        return bound.value if isinstance(bound, ObjectiveBound) else bound.seconds

    @property
    def gap(self) -> float:
        """How far the schedule may be from the optimum: its value over the bound, minus one."""
        return max(0.0, self.value / self.least - 1) if self.least > 0 else 0.0

    @property
    def optimal(self) -> bool:
        """Whether the schedule meets `bound`, so that no schedule covered by the bound is better.

        For jobs: nearly meets it, so that further search is not worth it. Few rounds say nothing
        about seconds, above all if links have different bandwidths.
        """
        return self.gap <= NEAR_BOUND if self.judge else self.objective in self.optimal_in

    @property
    def optimal_in(self) -> tuple[str, ...]:
        """The units in which it is optimal: ``rounds``, ``seconds``, both or neither."""
        if self.rounds_bound is None:
            return ("seconds",) * self.optimal
        timed = self.timing is not None and self.timing.optimal
        fewest = self.rounds == self.rounds_bound.rounds
        return ("rounds",) * fewest + ("seconds",) * timed

    def certified(self) -> Schedule:
        """The schedule with the certificates of its bounds; of the time if that was minimised."""
        if self.makespan_bound is not None:
            return with_certificates(self.schedule, bound=self.makespan_bound)
        size = planned_for(self.schedule).gradient_bytes
        known = None if self.timing is None else self.timing.bound
        return (
            self.schedule if size is None else with_certificates(self.schedule, size, bound=known)
        )

    def __str__(self) -> str:
        schedule = self.schedule
        return "\n".join(
            (
                f"{schedule.name} on {schedule.topology.name}: {counted(self.rounds, 'round')}, "
                f"{counted(schedule.num_transfers, 'transfer')}, by {to_spec(self.scheduler)}",
                self._verdict,
                f"verified; {self._evidence}",
            )
        )

    @property
    def _verdict(self) -> str:
        """The objective's value and its bound, with the bound's condition."""
        bound = self.bound
        if isinstance(bound, Bound):
            value, least = counted(self.rounds, "round"), counted(bound.rounds, "round")
            if not self.scheduler.traits.rounds_compare:
                return f"{value}, of pieces that compare with no bound"
        elif self.judge is not None and self.objective != "makespan":
            shown = format_seconds if self.judge.in_seconds else "{:.4g}".format
            value, least = f"{self.objective} {shown(self.value)}", shown(self.least)
        else:
            demand = self.schedule.demand
            size = self._timed.gradient_bytes if demand is None else demand.total_bytes
            value, least = format_seconds(self.value), format_seconds(self.least)
            value += f" for {format_size(size)}"
        of_objective = isinstance(bound, ObjectiveBound)
        of_class = class_of(bound.holds_unless) if of_objective else bound.holds_for
        of_class = of_class or " for every schedule"
        if self.gap < ROUNDING:
            return f"{value}, optimal: equal to the lower bound{of_class}"
        return f"{value}, {self.gap:.2%} above the lower bound of {least}{of_class}"

    @property
    def _evidence(self) -> str:
        """Whether the bound is certified, and what to do next."""
        units = {one["claim"]["unit"] for one in self.schedule.certificates}
        if ("rounds" if self.objective == "rounds" else "seconds") in units:
            return "the bound's certificate is in the schedule, for gradweave-check"
        return "the bound is not certified: gw.bound(solution) adds certificates if it can"

    @property
    def _timed(self) -> Timing:
        assert self.timing is not None  # the objective seconds always has one
        return self.timing


def bound_for(
    topology: Topology,
    collective: Collective,
    schedulers: Sequence[Strategy],
    *,
    parts: int = 1,
    overlap: bool = False,
) -> Bound:
    """The bound that holds for all given strategies, with the freedoms that their options allow.

    Args:
        topology: the network.
        collective: a stage, or both.
        schedulers: the strategies. If one of them moves everything as one piece with one root, or
            chooses its number of pieces, only the distance that one contribution must go bounds the
            rounds.
        parts: number of parts that each piece is cut into afterwards.
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
    """The certificates of a bound on rounds, for the file of a schedule that it holds for.

    Args:
        bound: a bound from `bound_for`.
        schedule: a schedule of the same network and collective.
        pieces_per_server: the number of pieces that the bound is for.
    """
    found = certified_rounds(schedule.topology, bound, schedule.collective, pieces_per_server)
    return tuple(one.certificate for one in found)


def _distance(topology: Topology, forwarding_servers: bool) -> Bound:
    """The most transfers that a contribution needs to reach a server, one per round."""
    hops = hop_distances(topology)
    source, target = divmod(int(hops.argmax()), len(hops))
    transfers = 1 if forwarding_servers else int(hops[source, target])
    ends = int(topology.servers[source]), int(topology.servers[target])
    return Bound(transfers, "depth", (Distance(*ends, transfers),)).on(topology)
