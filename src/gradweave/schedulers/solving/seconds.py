"""Searches for the fastest schedule, given the gradient's size, latencies and bandwidths."""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradweave.bounds.scale import has_equal_links
from gradweave.bounds.seconds_bound import seconds_bound
from gradweave.common import clock
from gradweave.common.stop import UNLIMITED, Stop
from gradweave.errors import NoScheduleError, OptionError
from gradweave.schedulers.improving.improve import improved, sums_at_roots
from gradweave.schedulers.packing.packed import Packed
from gradweave.schedulers.repairing.repair import Repair
from gradweave.schedulers.repairing.repaired_plans import RepairedPlan, most_kept, repaired_plans
from gradweave.schedulers.scheduler import NEAR_BOUND, Strategy
from gradweave.schedulers.solving.own import ALGORITHMS, own_schedule
from gradweave.schedulers.solving.pieces import piece_counts
from gradweave.schedulers.solving.solution import (
    Attempt,
    RepairComparison,
    RuntimeComparison,
    Solution,
    bound_for,
    kept_certificates,
)
from gradweave.schedulers.solving.strategy_search import Candidate, Goal, Portfolio, Search
from gradweave.schedulers.solving.timing import MAX_TIMED, Timing, is_slotted, timing_of
from gradweave.schedulers.solving.tuning import TUNING
from gradweave.schedulers.solving.variants import rated, refitted, split
from gradweave.schedulers.textbook.ring import Ring
from gradweave.schedulers.trees.steps import fewest_steps
from gradweave.schedules.compose import overlap
from gradweave.schedules.ready import ReadyAt, ready_times
from gradweave.schedules.schedule import (
    COPY,
    OWN,
    REDUCE,
    Collective,
    Provenance,
    Schedule,
    StatedBound,
)
from gradweave.simulator import Model, seconds, steps
from gradweave.simulator.runtime import IDEAL, Runtime
from gradweave.topology.groups import nested_groups
from gradweave.topology.topology import Topology
from gradweave.topology.units import format_seconds


def solve_for_seconds(
    topology: Topology,
    gradient_bytes: float,
    *,
    collective: Collective,
    strategies: Portfolio,
    first: Sequence[Strategy] = (),
    start_from: Schedule | None = None,
    seed: int,
    stop: Stop,
    progress: Callable[[str], None] = lambda _: None,
    ready_at_s: ReadyAt | None = None,
    runtime: Runtime = IDEAL,
    executor: Executor | None = None,
) -> Solution:
    """Implements `gradweave.solve` for ``objective="seconds"``.

    Each strategy's schedule is tried as it is, with overlapping stages, and with pieces cut into 2,
    4, … parts for as long as that pays. Strategies that can use several pieces per server are also
    tried with those. If capacities do not reflect bandwidths, merged trees are also tried with
    capacities that do. The fastest schedule in the event model wins, the first among equals. All
    coarser cuts of the winner are tried at the end, so that none of them is faster.

    Raises:
        OptionError: for a gradient without bytes, or strategies that are not comparable.
        NoScheduleError: if no strategy found a schedule.
    """
    if not 0 < gradient_bytes < math.inf:
        raise OptionError(
            f"solve: gradient_bytes: expected a finite number above 0, got {gradient_bytes}"
        )
    ready = ready_times(topology, ready_at_s)
    roots = {one.traits.one_root for one in strategies.usual}
    if collective != "all_reduce" and len(roots) > 1:
        raise OptionError(
            f"solve: schedules of a {collective} to one root and to all servers are not "
            "comparable; give strategies of one kind"
        )
    goal = Seconds(topology, collective, gradient_bytes, ready, runtime, stop)
    until = stop.part(1 - TUNING.reserved)
    stop = until if goal.equal_links else until.part(1 - TUNING.improving)
    search = Search(goal, seed, stop, progress)
    repairs = Repairs.of(goal, start_from, search)
    if repairs.enough:
        return goal.compared_with_own(repairs.kept_in(search))
    search.try_each((*(() if repairs.plans else first), *strategies.by_groups))
    if not (strategies.by_groups and goal.is_near(search.best)):
        search.try_each(strategies.usual, executor=executor)
        for scheduler in strategies.last_resort:
            if not stop.reached() and goal.leaves_bandwidth(search.best):
                search.try_each([scheduler])
        _cut_coarser(search, goal)
        if not repairs.plans:  # a repaired plan should keep transfers as they were
            search.improve(until.part(1 - TUNING.slotted) if goal.is_slotted(search) else until)
    progress("finding the lower bound on time")
    return goal.compared_with_own(repairs.kept_in(search))


def consists_of_groups(topology: Topology, ready_at_s: NDArray[np.float64]) -> bool:
    """Whether a network of unequal links consists of groups, and no server is late."""
    unequal = not has_equal_links(topology) and not ready_at_s.any()
    return bool(unequal and nested_groups(topology))


class Seconds(Goal):
    """Minimises time in the event model for a gradient of a given size.

    Args:
        topology: the network.
        collective: a stage, or both.
        gradient_bytes: size of the whole gradient.
        ready_at_s: [N] seconds at which each server's gradient is ready.
        runtime: the runtime that will run the schedule. Strategies are given the network as the
            runtime presents it; schedules are timed, and returned, on the network itself.
        stop: when the answer is due: what is left of the time is for the bound.
    """

    collective: Collective

    def __init__(
        self,
        topology: Topology,
        collective: Collective,
        gradient_bytes: float,
        ready_at_s: NDArray[np.float64],
        runtime: Runtime = IDEAL,
        stop: Stop = UNLIMITED,
    ) -> None:
        self.runtime, self.network, self._stop = runtime, topology, stop
        topology = topology if runtime is IDEAL else runtime.planned(topology)
        # Chooses the fastest among equally short routes, for a gradient with one piece per server.
        topology = dataclasses.replace(
            topology, message_bytes=gradient_bytes / topology.num_servers
        )
        self.topology, self.collective, self.name = topology, collective, repr(topology.name)
        self.gradient_bytes, self.ready_at_s = gradient_bytes, ready_at_s
        self.rated, self.equal_links = rated(topology), has_equal_links(topology)
        self._whole = collective == "all_reduce"
        self.piece_counts, bound = (1,), None
        few = topology.num_nodes <= MAX_TIMED
        if few:
            self.piece_counts = piece_counts(topology, collective, gradient_bytes)
        if few or consists_of_groups(topology, ready_at_s):
            least_network, start_s = runtime.least(self.network)
            bound = seconds_bound(
                least_network, collective, gradient_bytes, ready_at_s=ready_at_s
            ).later(start_s)
        # Not the bound itself: its arguments are functions, which cannot go to other processes.
        self._least = bound.seconds if bound else 0.0
        self._bytes_limit = bound is not None and bound.kind == "bandwidth"

    @property
    def target(self) -> float:
        """Slightly above the lower bound on time."""
        return self._least * (1 + NEAR_BOUND)

    def is_near(self, best: Candidate | None) -> bool:
        """Whether the best is so close to the bound that long searches are not worth it."""
        many = self.topology.num_servers >= TUNING.many_servers
        near = TUNING.near_of_many if many else TUNING.near
        return best is not None and best.value <= self._least * (1 + near)

    def is_slotted(self, search: Search) -> bool:
        """Whether a bound over slots of time follows, for which time must be left."""
        if search.best is None or not self._least or self.ready_at_s.any():
            return False
        gap = search.best.value / self._least - 1
        return is_slotted(self.topology, gap, search.stop.seconds_left)

    def leaves_bandwidth(self, best: Candidate | None) -> bool:
        """Whether bandwidth limits the time, and the best is still far above the bound."""
        if not self._bytes_limit:
            return False
        return best is None or best.value > self._least * (1 + TUNING.far)

    def so_far(self, best: Candidate) -> str:
        """The best time so far and the bound, for progress lines."""
        least = f", at least {format_seconds(self._least)}" if self._least else ""
        return f"; {format_seconds(best.value)} so far{least}"

    def attempt(self, found: Candidate, wall_s: float) -> Attempt:
        """The outcome of a strategy, with the times of its best variant."""
        return Attempt(
            found.scheduler,
            found.schedule.rounds,
            wall_s,
            value=found.value,
            seconds=found.value,
            barrier_seconds=self.seconds_of(found.schedule, "rounds"),
            pieces=found.schedule.pieces,
            overlapped=found.overlapped,
            improved=found.improved,
        )

    def candidates(
        self, scheduler: Strategy, seed: int, stop: Stop, best: Candidate | None
    ) -> Iterator[Candidate]:
        """The variants of a strategy's schedules, until one of a schedule is good enough."""
        content, to_beat = stop.at(self.target), math.inf if best is None else best.value
        least = math.inf
        for schedule, used, changed in self._schedules(scheduler, seed, stop):
            for candidate in self.variants(schedule, used, stop, to_beat, changed):
                least = min(least, candidate.value)
                yield candidate
            if content.reached(least):
                return

    def _schedules(
        self, scheduler: Strategy, seed: int, stop: Stop
    ) -> Iterator[tuple[Schedule, Strategy, bool]]:
        """A strategy's schedules: as given, with more pieces per server, for rated capacities.

        The last ones are then changed to fit the real capacities, as the flag says.
        """
        scheduler = self._for_this_gradient(scheduler)
        traits, schedulers = scheduler.traits, [scheduler]
        if traits.takes_pieces:
            schedulers += [
                _in_pieces(scheduler, count)
                for count in self.piece_counts
                if count > traits.pieces_per_server
                and count * self.topology.num_servers**2 <= TUNING.max_piece_transfers
            ]
        for each in schedulers:
            schedule = self.schedule(each, self.topology, seed, stop)
            yield schedule, each, False
            yield from self._in_fewer_steps(each, schedule, seed, stop)
        if self.rated is not None and not traits.one_root and not traits.own_pieces:
            for each in schedulers:
                made = self.schedule(each, self.rated, seed, stop)
                yield refitted(made, self.topology), each, True

    def schedule(self, scheduler: Strategy, topology: Topology, seed: int, stop: Stop) -> Schedule:
        """One schedule of a strategy, made within the strategy's share of the time."""
        if scheduler.traits.own_pieces:
            stop = stop.part(TUNING.own_share)
        elif not self.equal_links:
            stop = stop.part(TUNING.other_share)
        return scheduler.schedule_until(topology, self.collective, stop, seed=seed)

    def _for_this_gradient(self, scheduler: Strategy) -> Strategy:
        """The strategy with the gradient's size and ready times filled in."""
        if scheduler.traits.takes_size:
            size: dict[str, float] = {"gradient_bytes": self.gradient_bytes}
            scheduler = dataclasses.replace(scheduler, **size)
        if scheduler.traits.takes_ready_times and self.ready_at_s.any():
            ready: dict[str, tuple[float, ...]] = {"ready_at_s": tuple(self.ready_at_s.tolist())}
            scheduler = dataclasses.replace(scheduler, **ready)
        return scheduler

    def _in_fewer_steps(
        self, scheduler: Strategy, schedule: Schedule, seed: int, stop: Stop
    ) -> Iterator[tuple[Schedule, Strategy, bool]]:
        """Grown trees with fewer steps in sequence: the minimum, or one more.

        They are tried only if the latencies and overheads saved would be worth it. This is SCCL's
        trade-off between latency and bandwidth.
        """
        network = self.topology
        if not scheduler.traits.takes_steps or network.num_servers > TUNING.max_stepped_servers:
            return
        least, stages = fewest_steps(network), 2 if self._whole else 1
        link_s = float((network.latency_s + network.overhead_s).max())
        hop_s = link_s * int(np.diff(schedule.route_offsets).max() - 1)
        duration_s = self.seconds_of(schedule)
        restarts = min(
            scheduler.options()["restarts"] or TUNING.stepped_restarts, TUNING.stepped_restarts
        )
        for fewer in range(least, min(least + 2, steps(schedule) // stages)):
            saved_s = (steps(schedule) - stages * fewer) * hop_s
            if saved_s < TUNING.min_parts_gain * duration_s or stop.reached():
                break
            options: dict[str, int] = {"steps": fewer, "restarts": restarts}
            with_fewer = dataclasses.replace(scheduler, **options)
            yield self.schedule(with_fewer, network, seed, stop), with_fewer, False

    def variants(
        self,
        schedule: Schedule,
        scheduler: Strategy,
        stop: Stop,
        best: float,
        changed: bool = False,
    ) -> Iterator[Candidate]:
        """A schedule as it is and with overlapping stages, each in ever finer parts.

        Args:
            schedule: as a strategy made it.
            scheduler: the strategy.
            stop: after which no more variants are started.
            best: the smallest value of other strategies so far, infinite if there is none; variants
                that cannot come near it are skipped.
            changed: whether the schedule was changed after it was verified.
        """
        staged = (schedule.op == REDUCE).any() and (schedule.op == COPY).any()
        staged &= sum(schedule.stages.values()) == schedule.rounds  # otherwise they overlap already
        few = schedule.num_transfers <= TUNING.max_overlapped_transfers
        for overlapping in (False, True):
            if overlapping and (stop.reached() or not (self._whole and staged and few)):
                break
            base = overlap(schedule) if overlapping else schedule
            parts, last = 1, math.inf
            while parts == 1 or parts * base.num_transfers <= TUNING.max_transfers:
                begun = clock.now()
                candidate = self.cut(base, scheduler, parts, overlapping, changed)
                if candidate.value > last * (1 - TUNING.min_parts_gain):
                    break
                yield candidate
                if not scheduler.traits.one_root and candidate.value > TUNING.hopeless * best:
                    return
                next_s = 2 * (clock.now() - begun)  # the next cut has twice as many transfers
                if next_s >= stop.seconds_left or parts == TUNING.max_parts:
                    break
                parts, last = 2 * parts, candidate.value

    def cut(
        self, base: Schedule, scheduler: Strategy, parts: int, overlapped: bool, changed: bool
    ) -> Candidate:
        """A schedule with its pieces cut into parts, timed."""
        cut = split(base, parts)
        changed |= overlapped or parts > 1
        return Candidate(cut, scheduler, self.seconds_of(cut), base, parts, overlapped, changed)

    @property
    def least(self) -> float:
        """Lower bound on the seconds of any schedule; 0 if it is not known."""
        return self._least

    def improvable(self, found: Candidate) -> bool:
        """Whether pieces may get other sizes: if all links are alike, equal pieces stay equal."""
        others = found.scheduler.traits.own_pieces or not self.equal_links
        return others and sums_at_roots(found.schedule)

    def improvements(
        self, start: Candidate, seed: int, stop: Stop, turns: int | None
    ) -> Iterator[Candidate]:
        """The same transfers in other orders and sizes."""
        size, ready = self.gradient_bytes, self.ready_at_s
        schedules = improved(
            start.schedule, size, seed=seed, stop=stop, ready_at_s=ready, turns=turns
        )
        for schedule in schedules:
            value = self.seconds_of(schedule)
            yield Candidate(schedule, start.scheduler, value, schedule, changed=True, improved=True)

    def seconds_of(self, schedule: Schedule, model: Model = "events") -> float:
        """Seconds of a schedule on the runtime."""
        if self.runtime is not IDEAL and model == "events":
            on_network = schedule.replace(topology=self.network)
            return self.runtime.seconds(on_network, self.gradient_bytes, self.ready_at_s)
        return seconds(schedule, self.gradient_bytes, model, ready_at_s=self.ready_at_s)

    def solution(self, best: Candidate, seed: int) -> Solution:
        """The best candidate, verified, with its bounds."""
        traits = best.scheduler.traits
        options = dict(best.scheduler.options())
        options |= {"overlap": True} if best.overlapped else {}
        options |= {"parts": best.parts} if best.parts > 1 else {}
        options |= {"improved": True} if best.improved else {}
        options |= self._request()
        compare = traits.rounds_compare and not best.improved
        # An improved schedule chooses its pieces itself, like `Packed`: bounds that count pieces do
        # not hold for it.
        bound = bound_for(
            self.topology,
            self.collective,
            [best.scheduler, *([Packed()] if best.improved else [])],
            parts=best.parts,
            overlap=best.overlapped,
        )
        stated = StatedBound(bound.rounds, bound.kind, True, bound.holds_for) if compare else None
        schedule = best.schedule.replace(
            topology=self.network,
            scheduler=Provenance(best.scheduler.name, options, seed),
            bound=stated,
        )
        if compare:
            pieces = best.parts * traits.pieces_per_server
            schedule = schedule.replace(certificates=kept_certificates(bound, schedule, pieces))
        if best.changed:
            best.scheduler.check(schedule)
        return Solution(
            schedule,
            best.scheduler,
            "seconds",
            rounds_bound=bound,
            timing=self._timing(schedule, self.seconds_of(schedule)),
        )

    def _request(self) -> dict[str, Any]:
        """What was asked for, as `planned_for` and `planned_ready_times` read it in a file."""
        late = {"ready_at_s": self.ready_at_s.tolist()} if self.ready_at_s.any() else {}
        there = {"runtime": self.runtime.name} if self.runtime is not IDEAL else {}
        return late | {"objective": "seconds", "gradient_bytes": self.gradient_bytes} | there

    def _timing(self, schedule: Schedule, seconds_there: float) -> Timing:
        """A schedule's time on the runtime, with the lower bound there."""
        if self.runtime is IDEAL:
            return self._timing_of(schedule)
        network, start_s = self.runtime.least(self.network)
        on_it = schedule.replace(topology=network)
        there = self._timing_of(on_it)
        return dataclasses.replace(there, seconds=seconds_there, bound=there.bound.later(start_s))

    def _timing_of(self, schedule: Schedule) -> Timing:
        left_s = self._stop.seconds_left
        return timing_of(schedule, self.gradient_bytes, self.ready_at_s, seconds_left=left_s)

    def compared_with_own(self, found: Solution) -> Solution:
        """Compares the solution with the runtime's all-reduce; returns that if it is as good."""
        if self.runtime is IDEAL or self.collective != "all_reduce":
            return found
        own = own_schedule(self.network, self.runtime, self.gradient_bytes)
        if own is None or found.timing is None:
            return found
        own_s = self.runtime.own_seconds(own, self.gradient_bytes, self.ready_at_s)
        plan_s = found.timing.seconds
        chosen = own_s <= plan_s * (1 + TUNING.own_worth)
        beside = RuntimeComparison(self.runtime.name, own.scheduler.name, own_s, plan_s, chosen)
        if not chosen:
            return dataclasses.replace(found, runtime=beside)
        options = dict(own.scheduler.options) | self._request() | {OWN: True}
        own = own.replace(scheduler=Provenance(own.scheduler.name, options, None))
        bound = bound_for(self.network, self.collective, [Ring()])
        return dataclasses.replace(
            found,
            schedule=own,
            rounds_bound=bound,
            scheduler=ALGORITHMS[own.scheduler.name],
            timing=self._timing(own, own_s),
            runtime=beside,
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Repairs:
    """Plans derived from a schedule before a fault; none without such a schedule."""

    plans: Sequence[RepairedPlan]
    scheduler: Strategy
    enough: bool
    """Whether a plan is so close to the bound that no search from scratch is needed."""

    @classmethod
    def of(cls, goal: Seconds, start_from: Schedule | None, search: Search) -> "Repairs":
        """Makes the plans, and records the fastest as an attempt of the search."""
        if start_from is None:
            return cls((), Packed(), False)
        begun, size = clock.now(), goal.gradient_bytes
        scheduler = Repair(start_from, gradient_bytes=size)
        plans = repaired_plans(
            start_from,
            goal.topology,
            goal.collective,
            size,
            seconds_of=goal.seconds_of,
            ready_at_s=goal.ready_at_s,
            stop=search.stop.part(TUNING.own_share),
            least_s=goal.least,
        )
        if not plans:
            return cls((), scheduler, False)
        repairs = cls(plans, scheduler, most_kept(plans, goal.least) is not None)
        found = repairs._candidate(min(plans, key=lambda plan: plan.seconds))
        search.add(goal.attempt(found, clock.now() - begun), found)
        return repairs

    def kept_in(self, search: Search) -> Solution:
        """The search's solution: the plan that keeps most, if it is nearly as fast as the best.

        Raises:
            NoScheduleError: as `Search.solution`.
        """
        if not self.plans or search.best is None:
            return search.solution()
        fastest = min(self.plans, key=lambda plan: plan.seconds)
        best = most_kept(self.plans, search.best.value)
        if best is not None:
            search.best = self._candidate(best)
        others = (one.seconds for one in search.attempts if one.scheduler is not self.scheduler)
        beside = RepairComparison(
            next((plan.seconds for plan in self.plans if plan.as_before), None),
            (best or fastest).seconds,
            min((one for one in others if one is not None), default=None),
            best is not None,
        )
        return dataclasses.replace(search.solution(), repair=beside)

    def _candidate(self, plan: RepairedPlan) -> Candidate:
        return Candidate(plan.schedule, self.scheduler, plan.seconds, plan.schedule, changed=True)


def _cut_coarser(search: Search, goal: Seconds) -> None:
    """Tries the best schedule's coarser cuts: fewer pieces per server, then fewer parts.

    The search doubles the number of parts, and chooses the number of pieces by the bottleneck, so
    a number in between may be faster.
    """
    best, stop = search.best, search.stop
    if best is None or stop.at(goal.target).reached(best.value):
        return
    started, known = clock.now(), best
    for scheduler in _in_fewer_pieces(best.scheduler, goal.piece_counts):
        if stop.reached():
            break
        with contextlib.suppress(NoScheduleError):
            made = goal.schedule(scheduler, goal.topology, search.seed, stop)
            for candidate in goal.variants(made, scheduler, stop, math.inf):
                best = min(best, candidate, key=lambda one: one.value)
    finest, base = best, best.base
    # All coarser cuts together have about parts² / 2 times as many transfers as the base.
    step = max(1, finest.parts**2 * base.num_transfers // (2 * TUNING.max_recut_transfers))
    for parts in range(finest.parts - 1, 0, -step):
        if stop.reached():
            break
        candidate = goal.cut(base, finest.scheduler, parts, finest.overlapped, finest.changed)
        best = min(best, candidate, key=lambda one: one.value)
    if best is not known:
        search.add(goal.attempt(best, clock.now() - started), best)


def _in_fewer_pieces(scheduler: Strategy, tried: Sequence[int]) -> list[Strategy]:
    """A strategy with fewer pieces: divisors of its number of pieces, and smaller powers of 2."""
    count = scheduler.traits.pieces_per_server if scheduler.traits.takes_pieces else 1
    return [
        _in_pieces(scheduler, fewer)
        for fewer in range(count - 1, 1, -1)
        if fewer not in tried and (count % fewer == 0 or fewer.bit_count() == 1)
    ]


def _in_pieces(scheduler: Strategy, count: int) -> Strategy:
    """A strategy with `count` pieces per server, and its restarts divided by as many."""
    changes: dict[str, int] = {"pieces_per_server": count}
    if restarts := scheduler.options().get("restarts"):
        changes["restarts"] = max(1, restarts // count)
    return dataclasses.replace(scheduler, **changes)
