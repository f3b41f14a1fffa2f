"""Windows in which sequences of compositions are searched, and the duals that make it short."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradweave.placement.bound.duals import (
    FAR_NS,
    MAX_WALKED,
    SHARES,
    Columns,
    GroupDuals,
    Window,
)
from gradweave.placement.problem import Problem
from gradweave.stop import Stop

MAX_ROUNDS = 60
"""Sequences that a window's linear program gets, at most."""
FEW_ROUNDS = 8
"""As many where compositions are few."""
NEAR, FEW = 0.97, 200
"""Share of the goal that a window's linear program proves before its sequences are searched; of so
few compositions they are anyhow."""
ENOUGH = 1e-3
"""How near the linear program's optimum duals end its rounds, relative to it."""
MAX_FAILURES = 3
"""Windows that need too long a search, before the goal is given up."""


class SequenceSearch:
    """Looks for a certificate of a goal: windows that are cut in two until each is proved."""

    def __init__(
        self, problem: Problem, classes: NDArray[np.int64], goal_ns: int, stop: Stop
    ) -> None:
        self.classes, self.goal_ns, self.stop = classes, goal_ns, stop
        self.columns = Columns(problem, classes)
        self.times = np.unique(self.columns.data_ns)
        self.widths = np.array([one.width for one in self.columns.levels.levels], np.int64)
        self.walks: list[NDArray[np.int64]] = []
        self.failures = 0

    def duals(self) -> GroupDuals | None:
        """The certificate; None where a window cannot be proved."""
        windows = [Window(0, (0,) * len(self.columns.sizes))]
        waiting = [(0, len(self.times))]
        while waiting:
            if self.stop.reached():
                return None
            first, end = waiting.pop()
            since = int(self.times[first])
            if since >= self.goal_ns:  # whatever the pipelines take
                windows.append(Window(since, (0,) * len(self.columns.sizes)))
                continue
            window = self._proved(since, end)
            if window is not None:
                windows.append(window)
            elif end - first > 1 and self.failures < MAX_FAILURES:
                middle = (first + end) // 2
                waiting += [(middle, end), (first, middle)]
            else:
                return None
        return GroupDuals(self.classes, tuple(windows), self.goal_ns)

    def _proved(self, since: int, end: int) -> Window | None:
        """A window's duals, if they prove the goal."""
        limit = int(self.times[end]) if end < len(self.times) else None
        count, goal = self.columns.within(limit), self.goal_ns - since
        if self.columns.least(np.zeros(len(self.columns.sizes), np.int64), limit) >= goal:
            return Window(since, (0,) * len(self.columns.sizes))
        if count > MAX_WALKED:
            return None
        duals, by_runs, value = self._multipliers(count)
        if count > FEW and value < goal - (1 - NEAR) * self.goal_ns:
            return None
        found = self.columns.searched(duals, by_runs, count, goal)
        self.failures += found is None
        if found is None or found < goal:
            return None
        return Window(since, tuple(duals.tolist()), tuple(by_runs.tolist()))

    def _multipliers(self, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
        """Duals of classes, shares by runs, and what they prove of the first compositions.

        Each round adds the sequence that costs least by the duals so far to a linear program over
        duals and shares; every other time they are taken half way from the best ones, since those
        of few sequences are far off.
        """
        from gradweave.placement.bound.walks_kernel import least_walk

        columns = self.columns
        taken = columns.taken[:count]
        repeats = np.where(taken > 0, columns.sizes // np.maximum(taken, 1), columns.groups)
        caps = np.minimum(repeats.min(axis=1), columns.groups)
        duals = np.zeros(len(columns.sizes), np.int64)
        by_runs = np.zeros(len(self.widths), np.int64)
        best = (duals, by_runs, -FAR_NS)
        walks = [walk for walk in self.walks if walk.max() < count]
        for tried in range(MAX_ROUNDS if count > FEW else FEW_ROUNDS):
            edges, own, constant = columns.divided(by_runs, count)
            value, walk = least_walk(edges, own - taken @ duals, caps, columns.groups)
            if value >= FAR_NS:  # no sequence at all
                return duals, by_runs, self.goal_ns
            value = int(value) + constant + int(duals @ columns.sizes)
            if value > best[2]:
                best = duals, by_runs, value
            walks.append(walk)
            solved = self._solve(walks, count)
            if solved is None or solved[2] - best[2] < ENOUGH * abs(solved[2]):
                break
            duals, by_runs, _ = solved
            if tried % 2 == 0:
                duals, by_runs = (duals + best[0]) // 2, (by_runs + best[1]) // 2
        self.walks = walks[-200:]
        return best

    def _solve(
        self, walks: list[NDArray[np.int64]], count: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], float] | None:
        """The linear program of some sequences: duals, shares by runs, and its optimum."""
        from ortools.math_opt.python import mathopt

        columns, model = self.columns, mathopt.Model()
        edges, scale = columns.boundaries(count), 1e9
        low = columns.levels.least + np.cumsum(self.widths) - self.widths
        most = float(columns.groups * (low[-1] + self.widths[-1])) / scale if len(low) else 1.0
        upper = 0.0 if columns.spare else most
        duals = [model.add_variable(lb=-most, ub=upper) for _ in columns.sizes]
        shares = [model.add_variable(lb=0.0, ub=1.0) for _ in self.widths]
        least = model.add_variable()
        for walk in walks:
            between = edges[walk[:-1], walk[1:]]
            by_boundaries = np.clip(between[:, None] - low, 0, self.widths).sum(axis=0)
            by_runs = (self.widths[:, None] // columns.caps[:, walk]).sum(axis=1) - self.widths
            cost: Any = float(between.sum()) / scale
            for share, more in zip(shares, (by_runs - by_boundaries).tolist(), strict=True):
                cost += more / scale * share
            for dual, used in zip(duals, columns.taken[walk].sum(axis=0).tolist(), strict=True):
                cost -= used * dual
            model.add_linear_constraint(least <= cost)
        sizes = columns.sizes.tolist()
        model.maximize(least + sum(size * dual for size, dual in zip(sizes, duals, strict=True)))
        result: Any = mathopt.solve(model, mathopt.SolverType.GLOP)
        if not result.has_primal_feasible_solution():
            return None
        found = np.rint([value * scale for value in result.variable_values(duals)])
        parts = np.rint([value * SHARES for value in result.variable_values(shares)])
        return found.astype(np.int64), parts.astype(np.int64), result.objective_value() * scale
