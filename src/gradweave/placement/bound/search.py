"""Search for strong bounds: all sequences of groups, or duals for each range of DataP."""

import bisect
import dataclasses
import heapq
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradweave.common.stop import Stop
from gradweave.placement.bound.duals import (
    MAX_COMPOSITIONS,
    NS,
    Columns,
    GroupDuals,
    Window,
    step_ns,
)
from gradweave.placement.bound.levels import classings, levels_of
from gradweave.placement.bound.sequences import (
    MAX_LOOKED,
    Sequences,
    SequenceSearch,
    alike,
    countable,
)
from gradweave.placement.problem import Problem

MAX_CLASSINGS = 6
"""Number of divisions into classes that are tried."""
MAX_LINEAR_PROGRAMS = 300
"""Number of linear programs that are solved for one division into classes."""
TOLERANCE = 1e-4
"""Relative distance between a bound and the best of its windows at which the search ends."""
MAX_ROUNDS = 60
"""Number of times that a linear program gets new columns."""
MAX_UNASKED = 50_000_000
"""Prefixes of sequences that are explored if no time limit is given, which takes seconds."""
GOALS = (0.25, 0.5, 0.75, 1.0)
"""Goals of the sequence search, as fractions of the way from the bound by duals to the cost. They
are tried in turn as long as each search finishes; each takes several times as long as the last."""


@dataclasses.dataclass(frozen=True, eq=False)
class PlacementBound:
    """A lower bound on every placement's cost in the exchange model, and the reason."""

    seconds: float
    certificate: GroupDuals | Sequences
    """The certificate; its `nanoseconds` recounts the bound from nothing else."""
    cheaper: NDArray[np.int64] | None = None
    """[S, D] device ranks of a placement that is cheaper than the given one, if the proof found
    one. It is optimal if all boundaries carry equally many bytes and the devices of a class are
    alike."""

    def __str__(self) -> str:
        return f"at least {self.seconds:.4g} s: {self.certificate}"


def placement_bound(
    problem: Problem, *, cost_s: float | None = None, time_limit: float | None = None
) -> PlacementBound:
    """A lower bound on the exchange model's cost.

    If the cost of a placement is given, an exhaustive search over sequences of groups (`Sequences`)
    usually meets it, for sixteen devices that all differ or dozens in a few regions. Otherwise the
    bound comes from a linear program (`GroupDuals`). That is often tight if regions are alike
    inside, and weak if many devices differ.

    Args:
        problem: the placement problem.
        cost_s: cost of a known placement: a bound that meets it ends the search. Sequences are
            searched only if it is given.
        time_limit: seconds after which the best bound so far is returned; with a limit, sequences
            are searched for longer.
    """
    stop = Stop.after(time_limit)
    enough = None if cost_s is None else int(cost_s * NS)
    best = _by_duals(problem, enough, stop)
    if enough is None or best.seconds * NS >= enough * (1 - TOLERANCE):
        return best
    most = MAX_UNASKED if time_limit is None else MAX_LOOKED
    classes = alike(problem)
    if not countable(problem, classes):
        classes = best.certificate.classes
        if not countable(problem, classes):
            return best
    search = SequenceSearch(problem, classes)
    # Each term of the sum is rounded down.
    first, most_ns = int(best.seconds * NS), enough - problem.stages - problem.data - 2
    for share in GOALS:
        goal = first + round(share * (most_ns - first))
        found = None if stop.reached() else search.least(goal, most, stop)
        if found is None:
            break
        if found.ns > best.seconds * NS:
            best = PlacementBound(found.ns / NS, Sequences(classes, found.ns), found.devices)
        if found.ns < goal:
            break
    return best


def _by_duals(problem: Problem, enough: int | None, stop: Stop) -> PlacementBound:
    """The best bound by duals over several divisions into classes."""
    best: PlacementBound | None = None
    levels = levels_of(step_ns(problem))
    choices = classings(levels, problem.devices, problem.data, MAX_COMPOSITIONS)
    for tried, classes in enumerate(choices):
        if best is not None and (tried >= MAX_CLASSINGS or stop.reached()):
            break
        duals = _Search(Columns(problem, classes), enough, stop).duals(classes)
        proved = duals.nanoseconds(problem)
        if best is None or proved / NS > best.seconds:
            best = PlacementBound(proved / NS, duals)
        if enough is not None and proved >= enough * (1 - TOLERANCE):
            break
    assert best is not None
    return best


class _Search:
    """Windows of DataP with their duals; splits the weakest window as long as it can."""

    def __init__(self, columns: Columns, enough: int | None, stop: Stop) -> None:
        self.columns, self.enough, self.stop = columns, enough, stop
        self.times = np.unique(columns.data_ns)
        self.found: dict[int, tuple[int, NDArray[np.int64]]] = {}
        self.kept: list[int] = []

    def duals(self, classes: NDArray[np.int64]) -> GroupDuals:
        """The certificate: windows start at values of DataP that some composition has."""
        times = self.times
        starts = [0]
        heap = [(self._proved(0, len(times)), 0, len(times))]
        while True:
            proved, first, end = heap[0]
            single = end - first == 1
            met = self.enough is not None and proved >= self.enough
            stopped = len(self.found) >= MAX_LINEAR_PROGRAMS or self.stop.reached()
            if single or met or stopped:
                break
            heapq.heappop(heap)
            middle = (first + end) // 2
            bisect.insort(starts, middle)
            heapq.heappush(heap, (self._proved(first, middle), first, middle))
            heapq.heappush(heap, (self._proved(middle, end), middle, end))
        ends = [*starts[1:], len(times)]
        windows = [
            Window(int(times[start]), tuple(self._solved(end)[1].tolist()))
            for start, end in zip(starts, ends, strict=True)
        ]
        if times[0] > 0:  # no composition has a smaller DataP
            windows.insert(0, Window(0, (0,) * len(self.columns.sizes)))
        return GroupDuals(classes, tuple(windows))

    def _proved(self, first: int, end: int) -> int:
        return int(self.times[first]) + self._solved(end)[0]

    def _solved(self, end: int) -> tuple[int, NDArray[np.int64]]:
        """The best bound and duals for the compositions with the smallest DataP."""
        if end not in self.found:
            limit = int(self.times[end]) if end < len(self.times) else None
            self.found[end] = self._generate(limit)
        return self.found[end]

    def _generate(self, limit: int | None) -> tuple[int, NDArray[np.int64]]:
        """Column generation: compositions with negative reduced cost enter the program."""
        columns = self.columns
        count = columns.within(limit)
        cost, taken = columns.cost_ns[:count], columns.taken[:count]
        used = [one for one in self.kept if one < count] or [int(np.argmin(cost))]
        chosen = np.zeros(len(columns.sizes), np.int64)
        best = columns.least(chosen, limit)
        for _ in range(MAX_ROUNDS):
            solved = self._solve(cost[used], taken[used])
            if solved is None:
                break
            duals, constant = solved
            proved = columns.least(duals, limit)
            if proved > best:
                best, chosen = proved, duals
            reduced = cost - taken @ duals - constant
            new = np.argsort(reduced, kind="stable")[:8]
            new = [one for one in new.tolist() if reduced[one] < -2 and one not in used]
            if not new:
                break
            used += new
        self.kept = list(dict.fromkeys([*used[-200:]]))
        return best, chosen

    def _solve(
        self, cost: NDArray[np.int64], taken: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], float] | None:
        """Duals and constant of the program with some columns, or None if the solver finds none.

        The program may use a class more or less often than it has devices, but each device too
        many or too few costs more than any pipelines do.
        """
        from ortools.math_opt.python import mathopt

        columns = self.columns
        scale = float(max(columns.cost_ns.max(), 1))
        model: Any = mathopt.Model()
        spare = columns.spare > 0
        rows = [
            model.add_linear_constraint(lb=-np.inf if spare else float(size), ub=float(size))
            for size in columns.sizes.tolist()
        ]
        total = model.add_linear_constraint(lb=float(columns.groups), ub=float(columns.groups))
        goal: list[Any] = []
        dear = 4.0 * columns.groups
        for row in rows:
            for sign in (1.0, -1.0):
                one = model.add_variable(lb=0.0)
                row.set_coefficient(one, sign)
                goal.append(dear * one)
        for own, column in zip(cost.tolist(), taken.tolist(), strict=True):
            one = model.add_variable(lb=0.0)
            total.set_coefficient(one, 1.0)
            for row, amount in zip(rows, column, strict=True):
                if amount:
                    row.set_coefficient(one, float(amount))
            goal.append(own / scale * one)
        model.minimize(sum(goal))
        result: Any = mathopt.solve(model, mathopt.SolverType.GLOP)
        if not result.has_dual_feasible_solution():  # for example if it is ill-conditioned
            return None
        values = result.dual_values()
        duals = np.rint([values[row] * scale for row in rows]).astype(np.int64)
        return duals, float(values[total]) * scale
