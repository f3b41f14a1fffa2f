"""Lower bounds for objectives of several jobs: weighted links treated as one machine.

With lengths of links (`DemandLengths`) the network acts as a machine that offers a fixed amount of
length times bytes per second, and each job needs some minimum of it in any schedule. The optimum
for jobs on one preemptive machine, in any order, is known exactly.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from gradweave.bounds.bound import Name
from gradweave.bounds.classes import class_of
from gradweave.bounds.demands.demand_lengths import DemandLengths
from gradweave.bounds.demands.link_windows import FEMTOSECONDS, NEVER, least_idle
from gradweave.bounds.seconds_bound import SecondsBound
from gradweave.common.wording import counted
from gradweave.errors import OptionError
from gradweave.schedules.objective import Objective
from gradweave.topology.topology import Floats
from gradweave.topology.units import format_seconds

PARTS = 1 << 20
"""Number of equal parts into which each job's weight is divided among machines."""
MAX_CUTS = 200
"""Number of times that inequalities are added to the linear program over jobs' end times."""
TOLERANCE = 1e-9
"""Violation, relative to the right side, above which an inequality is added."""


@dataclasses.dataclass(frozen=True, eq=False)
class Machine:
    """The jobs' end times as limited by one set of link lengths."""

    lengths: DemandLengths
    """Link lengths for all jobs together."""

    @functools.cached_property
    def takes(self) -> tuple[Fraction, ...]:
        """[jobs] minimum seconds of the machine that each job needs; exact."""
        offered = self.lengths.offered
        return tuple(
            Fraction(used) / offered if offered else Fraction(0)
            for used in self.lengths.used_by_job
        )

    @functools.cached_property
    def wait(self) -> Fraction:
        """Minimum seconds from when the machine finishes with a job until the job ends."""
        counts = self.lengths.length > 0
        if not counts.any():
            return Fraction(0)
        idle = least_idle(self.lengths.topology, self.lengths.demand)[counts]
        used = idle[idle != NEVER]
        return Fraction(int(used.min()) if used.size else 0, FEMTOSECONDS)

    @functools.cached_property
    def ready(self) -> tuple[Fraction, ...]:
        """[jobs] seconds before which the machine cannot work on each job; exact."""
        return tuple(map(Fraction, self.lengths.demand.ready_at_s.tolist()))

    def least_sum(self, weight: Sequence[Fraction]) -> Fraction:
        """The minimum weighted sum of end times; exact if all jobs are ready from the start.

        Weights may be split: the minimum for one part plus the minimum for the other is at most the
        minimum for their sum. So the smallest weight, which all jobs have in common and whose
        minimum is exact, may be treated separately.

        Args:
            weight: [jobs] at least 0.
        """
        jobs = [job for job, takes in enumerate(self.takes) if takes and weight[job]]
        each = {job: weight[job] for job in jobs}
        total = sum(
            (
                w * (self.wait if self.takes[job] else self.ready[job])
                for job, w in enumerate(weight)
            ),
            Fraction(0),
        )
        if not jobs:
            return total
        if len({self.ready[job] for job in jobs}) == 1:
            return total + self._by_weight(each)
        least = min(each.values())
        rest = {job: one - least for job, one in each.items() if one > least}
        apart = least * self._by_time_left(jobs) + self._by_weight(rest)
        return total + max(self._by_weight(each), apart)

    def _by_weight(self, weight: Mapping[int, Fraction]) -> Fraction:
        """A lower bound on Σ weight · end: a job ends at least half its takes after its middle.

        The machine always runs the ready job with the largest ratio of weight to takes (Smith's
        rule). No other order has a smaller weighted sum of the middles of the jobs' machine times.

        Args:
            weight: by job, above 0.

        Source: Smith 1956; Goemans, "Improved approximation algorithms for scheduling with release
            dates", 1997.
        """
        rate = {job: one / self.takes[job] for job, one in weight.items()}
        spans = self._spans(list(weight), lambda job, left: -rate[job])
        ends = {job: self.takes[job] / 2 for job in weight}
        for job, since, until in spans:
            ends[job] += (until - since) * (since + until) / 2 / self.takes[job]
        return sum((one * ends[job] for job, one in weight.items()), Fraction(0))

    def _by_time_left(self, jobs: Sequence[int]) -> Fraction:
        """The minimum sum of end times, with shortest remaining processing time first.

        Source: Schrage, "A proof of the optimality of the shortest remaining processing time
            discipline", 1968.
        """
        spans = self._spans(jobs, lambda job, left: left)
        return sum({job: until for job, _, until in spans}.values(), Fraction(0))

    def _spans(
        self, jobs: Sequence[int], place: Callable[[int, Fraction], Fraction]
    ) -> list[tuple[int, Fraction, Fraction]]:
        """The intervals in which the machine runs each job, by a priority rule.

        Args:
            jobs: jobs that need machine time.
            place: (job, remaining seconds) -> priority; the job with the smallest value runs.
        """
        left = {job: self.takes[job] for job in jobs}
        coming = sorted({self.ready[job] for job in jobs})
        now, spans = Fraction(0), []
        while left:
            here = [job for job in left if self.ready[job] <= now]
            later = [since for since in coming if since > now]
            if not here:
                now = later[0]
                continue
            job = min(here, key=lambda one: (place(one, left[one]), one))
            until = min([now + left[job], *later[:1]])
            spans.append((job, now, until))
            left[job] -= until - now
            now = until
            if not left[job]:
                del left[job]
        return spans

    def last_end(self, jobs: Sequence[int]) -> Fraction:
        """A lower bound on when the last of some jobs ends."""
        begun = min(self.ready[job] for job in jobs)
        return begun + sum((self.takes[job] for job in jobs), Fraction(0)) + self.wait


@dataclasses.dataclass(frozen=True, eq=False)
class ObjectiveBound:
    """A lower bound on an objective's value over all schedules built from trees, and the reason.

    In a weighted sum, each part of a job's weight is charged either to one machine or to the job's
    bound alone. For the largest delay, either some jobs are charged to one machine, or one job to
    its bound alone.
    """

    objective: Objective
    alone: tuple[SecondsBound, ...]
    """[jobs] the bound of each job alone, counted from when it is ready."""
    machines: tuple[Machine, ...]
    shares: tuple[tuple[int, ...], ...]
    """[machines, jobs] parts of each job's weight, out of `PARTS`; for the largest delay, one for
    each job that is charged to the machine."""

    @functools.cached_property
    def exact(self) -> Fraction:
        """The proved value, recounted from lengths and shares."""
        return self._of_sum() if self.objective.sums else self._of_largest()

    @property
    def value(self) -> float:
        """The proved value as a float."""
        return float(self.exact)

    def _of_sum(self) -> Fraction:
        weight = [Fraction(one) for one in self.objective.weight.tolist()]
        left, total = [PARTS] * len(weight), Fraction(0)
        for machine, share in zip(self.machines, self.shares, strict=True):
            part = [w * s / PARTS for w, s in zip(weight, share, strict=True)]
            total += machine.least_sum(part)
            left = [a - b for a, b in zip(left, share, strict=True)]
        if min(left) < 0 or any(one < 0 for share in self.shares for one in share):
            raise OptionError("objective: expected shares of weights of at least 0, one in all")
        ends = map(_alone_end, self.alone)
        return total + sum(
            (w * a / PARTS * end for w, a, end in zip(weight, left, ends, strict=True)), Fraction(0)
        )

    def _of_largest(self) -> Fraction:
        found = [self._delay(job, _alone_end(one)) for job, one in enumerate(self.alone)]
        for machine, share in zip(self.machines, self.shares, strict=True):
            jobs = [job for job, counts in enumerate(share) if counts]
            last = machine.last_end(jobs)
            found.append(min(self._delay(job, last) for job in jobs))
        return max(found)

    def _delay(self, job: int, end: Fraction) -> Fraction:
        since, scale = self.objective.since_s[job], self.objective.scale_s[job]
        return (end - Fraction(float(since))) / Fraction(float(scale))

    @property
    def holds_unless(self) -> frozenset[str]:
        """Liberties that void the bound if a schedule takes one; see `gradweave.bounds.classes`."""
        lengths = (one.lengths for one in (*self.alone, *self.machines))
        return frozenset().union(*(one.holds_unless for one in lengths))

    def reason(self, name: Name = str) -> str:
        """The certificate in words.

        Args:
            name: (node id) -> display name.
        """
        jobs = len(self.alone)
        if not self.machines:
            return f"{counted(jobs, 'job')} end no sooner than each would alone"
        charged = max(self.machines, key=lambda one: sum(one.takes))
        takes = format_seconds(float(sum(charged.takes)))
        way = "in the best order" if self.objective.sums else "one after the other"
        more = len(self.machines) - 1
        return f"{charged.lengths.reason(name)}: {takes} for {counted(jobs, 'job')} {way}" + (
            f"; and {counted(more, 'more such argument')}" if more else ""
        )

    def __str__(self) -> str:
        least = f"at least {self.value:.6g}{class_of(self.holds_unless)}"
        return f"{least}, since {self.reason()}"


def objective_bound(
    objective: Objective, alone: Sequence[SecondsBound], lengths: Sequence[DemandLengths]
) -> ObjectiveBound:
    """The largest lower bound on an objective that the given lengths prove together.

    Args:
        objective: the objective over the jobs.
        alone: [jobs] the bound of each job alone.
        lengths: link lengths for all jobs; any lengths prove some bound.
    """
    machines = [Machine(one) for one in lengths if one.offered and one.used]
    best = ObjectiveBound(objective, tuple(alone), (), ())
    if objective.sums:
        whole = (PARTS,) * len(alone)
        tried = [_divided(objective, alone, machines)]
        tried += [((machine,), (whole,)) for machine in machines]
        found = [ObjectiveBound(objective, tuple(alone), *one) for one in tried]
        return max([best, *found], key=lambda one: one.exact)
    for machine in machines:
        found = _charged(objective, alone, machine, best.exact)
        if found is not None and found.exact > best.exact:
            best = found
    return best


def _alone_end(bound: SecondsBound) -> Fraction:
    """Seconds before which a job cannot have ended; exact."""
    distance_s = Fraction(bound.seconds_by("distance"))
    return Fraction(bound.since_s) + max(distance_s, bound.lengths.time)


def _charged(
    objective: Objective, alone: Sequence[SecondsBound], machine: Machine, value: Fraction
) -> ObjectiveBound | None:
    """The jobs for which a machine proves the largest delay, if it exceeds a known value.

    Assume that no delay exceeds the value. The jobs that are ready no sooner than one job and must
    end no later than another then have too little time in between, so they prove a larger value.
    The step repeats with that value.
    """
    best = None
    while True:
        ends = [
            Fraction(float(since)) + value * Fraction(float(scale))
            for since, scale in zip(objective.since_s, objective.scale_s, strict=True)
        ]
        late, chosen = Fraction(0), None
        for begun in set(machine.ready):
            for end in set(ends):
                jobs = [
                    job
                    for job in range(len(ends))
                    if machine.ready[job] >= begun and ends[job] <= end and machine.takes[job]
                ]
                if jobs and machine.last_end(jobs) - end > late:
                    late, chosen = machine.last_end(jobs) - end, jobs
        if chosen is None:
            return best
        share = tuple(int(job in chosen) for job in range(len(ends)))
        found = ObjectiveBound(objective, tuple(alone), (machine,), (share,))
        if found.exact <= value:
            return best
        best, value = found, found.exact


def _divided(
    objective: Objective, alone: Sequence[SecondsBound], machines: Sequence[Machine]
) -> tuple[tuple[Machine, ...], tuple[tuple[int, ...], ...]]:
    """Machines, with the shares of weights that maximise the sum of their bounds."""
    duals = _ends_program(objective, alone, machines)
    weight = objective.weight
    shares = np.rint(np.maximum(duals, 0.0) / weight * PARTS).astype(np.int64)
    over = np.maximum(shares.sum(axis=0) - PARTS, 0)
    if len(shares):
        shares[shares.argmax(axis=0), np.arange(len(weight))] -= over
    kept = [number for number in range(len(machines)) if shares[number].any()]
    return (
        tuple(machines[number] for number in kept),
        tuple(tuple(shares[number].tolist()) for number in kept),
    )


def _ends_program(
    objective: Objective, alone: Sequence[SecondsBound], machines: Sequence[Machine]
) -> NDArray[np.float64]:
    """[machines, jobs] the part of each job's weight that the duals give to each machine.

    The linear program has one end time per job. Let S be jobs that are all ready from r on, with
    machine times p. Then Σ p·(end − wait − p/2) ≥ p(S)·(r + p(S)/2); violated inequalities are
    added.

    Source: Queyranne, "Structure of a simple scheduling polyhedron", 1993.
    """
    from ortools.linear_solver import pywraplp

    least = np.array([float(_alone_end(one)) for one in alone])
    unit = float(least.max())
    takes = np.array([[float(one) for one in each.takes] for each in machines]) / unit
    takes = takes.reshape(len(machines), len(alone))
    waits = np.array([float(each.wait) for each in machines]) / unit
    ready = np.array([float(one) for one in machines[0].ready]) / unit if machines else np.zeros(0)
    solver = pywraplp.Solver.CreateSolver("GLOP")
    infinity = solver.infinity()
    ends = [solver.NumVar(end / unit, infinity, "") for end in least.tolist()]
    for end, weight in zip(ends, objective.weight.tolist(), strict=True):
        solver.Objective().SetCoefficient(end, weight)
    rows: list[tuple[int, list[int], object]] = []
    known: set[tuple[int, tuple[int, ...]]] = set()
    for _ in range(MAX_CUTS):
        if solver.Solve() != solver.OPTIMAL:
            break
        now = np.array([end.solution_value() for end in ends])
        added = False
        for number in range(len(machines)):
            for jobs in _violated(takes[number], waits[number], ready, now):
                if (number, tuple(sorted(jobs))) in known:
                    continue
                known.add((number, tuple(sorted(jobs))))
                row = solver.Constraint(
                    _right_side(takes[number][jobs], waits[number], ready[jobs].min()), infinity
                )
                for job in jobs:
                    row.SetCoefficient(ends[job], float(takes[number][job]))
                rows.append((number, jobs, row))
                added = True
        if not added:
            break
    worth = np.zeros((len(machines), len(alone)))
    for number, jobs, row in rows:
        worth[number][jobs] += row.dual_value() * takes[number][jobs]  # pyright: ignore
    return worth


def _right_side(takes: Floats, wait: float, ready: float) -> float:
    total = takes.sum()
    return float(total * (ready + total / 2) + (takes**2).sum() / 2 + wait * total)


def _violated(takes: Floats, wait: float, ready: Floats, ends: Floats) -> list[list[int]]:
    """For each release time, the later jobs whose inequality is violated most."""
    found = []
    for since in np.unique(ready):
        late = np.flatnonzero((ready >= since) & (takes > 0))
        late = late[np.argsort((ends - takes / 2)[late], kind="stable")]
        worst, jobs = 0.0, None
        for count in range(1, len(late) + 1):
            some = late[:count]
            right = _right_side(takes[some], wait, float(ready[some].min()))
            lacks = right - float(takes[some] @ ends[some])
            if lacks > max(worst, TOLERANCE * right):
                worst, jobs = lacks, some.tolist()
        if jobs is not None:
            found.append(jobs)
    return found
