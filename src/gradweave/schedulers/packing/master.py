"""A linear program over carriers, whose columns are generated as they are needed."""

import abc

import numpy as np
from numpy.typing import NDArray

from gradweave.common.stop import Stop
from gradweave.schedulers.packing.tuning import TUNING

SMOOTHING = 0.5
"""Share of the best duals in the duals used for pricing (Wentges 1997). With the program's duals
alone, which jump from step to step, more steps are needed."""
LEAST_GAIN = 1e-12
"""Minimum reduced cost by which a new carrier must improve on its demand's dual."""


class Master(abc.ABC):
    """The master program of a column generation.

    Each column is a carrier of one demand: x_j is the amount that it carries. In every window of
    time w, a link l has room for b_l·(length_w + T), with a variable T or none; the program
    minimises the weighted sum of all T and of the carriers' costs, such that the carriers of each
    demand carry at least what it asks for. Subclasses do the pricing: they find the cheapest
    carriers at given duals, and decide when the objective is close enough to its bound.

    Args:
        bandwidth: [L] of each link.
        lengths: [W] fixed length of each window.
        timed: [W] number of the variable T by which the window is longer; −1 for none.
        weights: weight of each T in the objective.

    Source: column generation (Dantzig and Wolfe 1960) with smoothed duals (Wentges 1997).
    """

    def __init__(
        self,
        bandwidth: NDArray[np.float64],
        lengths: NDArray[np.float64],
        timed: list[int],
        weights: list[float],
    ) -> None:
        from ortools.linear_solver import pywraplp

        solver = self._solver = pywraplp.Solver.CreateSolver("CLP")
        infinity = solver.infinity()
        self._bandwidth = bandwidth
        self._times = [solver.NumVar(0, infinity, "") for _ in weights]
        for time, weight in zip(self._times, weights, strict=True):
            solver.Objective().SetCoefficient(time, weight)
        # One row per link, window by window.
        self._on_link = []
        for length, number in zip(lengths.tolist(), timed, strict=True):
            rows = [solver.Constraint(-infinity, room) for room in (length * bandwidth).tolist()]
            if number >= 0:
                for row, room in zip(rows, bandwidth.tolist(), strict=True):
                    row.SetCoefficient(self._times[number], -room)
            self._on_link += rows
        self._demands: list = []
        self._carried: list = []  # the variable of each column
        self._amounts: list[float] = []  # its value in the last solution
        self._lengths: list[float] = []  # the values of T
        self._duals: NDArray[np.float64] | None = None  # [W, L] once solved
        self._demand_duals: list[float] = []

    def _ask(self, least: float) -> int:
        """Adds a demand for at least an amount; returns its number."""
        self._demands.append(self._solver.Constraint(least, self._solver.infinity()))
        return len(self._demands) - 1

    def generate(self, max_steps: int, stop: Stop) -> None:
        """Adds carriers until the objective is near its bound.

        Args:
            max_steps: most steps.
            stop: when to stop in any case.
        """
        self._solve()
        if self._best_duals is None:
            self._best_duals = self._prices()
        for step in range(max_steps):
            if self._is_near(step) or stop.reached():
                return
            duals = self._prices()
            # At smoothed duals no carrier may improve although one does at the program's own duals
            # ("mispricing"). Only the latter prove that the program is optimal.
            smoothed = SMOOTHING * self._best_duals + (1 - SMOOTHING) * duals
            if not self._add_columns(smoothed) and not self._add_columns(duals):
                return  # no carrier improves the program, within float precision
            self._solve()

    _best_duals: NDArray[np.float64] | None = None
    """[W, L] duals that prove the best known bound; at first those of the first solution, if
    none are known."""

    @abc.abstractmethod
    def _is_near(self, steps: int) -> bool:
        """Whether the last solution is near the bound, after a number of steps."""

    @abc.abstractmethod
    def _add_columns(self, duals: NDArray[np.float64]) -> bool:
        """Adds the cheapest carriers at duals [W, L]; returns whether any improves."""

    def _prices(self) -> NDArray[np.float64]:
        """[W, L] the duals of the last solution, as pricing takes them."""
        assert self._duals is not None
        return self._duals

    def _solve(self) -> None:
        if self._solver.Solve() != self._solver.OPTIMAL:
            raise ArithmeticError("the linear program over carriers was not solved")
        self._amounts = [variable.solution_value() for variable in self._carried]
        self._lengths = [time.solution_value() for time in self._times]
        # A row `load ≤ room` of a minimisation has a dual of at most 0, whose negative is the price
        # of the link. Rounding in the solver can give it the wrong sign.
        duals = np.maximum([-row.dual_value() for row in self._on_link], 0.0)
        self._duals = duals.reshape(-1, len(self._bandwidth))
        self._demand_duals = [row.dual_value() for row in self._demands]

    def _add(
        self,
        demand: int,
        rows: NDArray[np.int64],
        loads: NDArray[np.float64],
        cost: float = 0.0,
        *,
        windows: int = 1,
        always: bool = False,
    ) -> bool:
        """Adds a carrier if it improves the program: if it costs less than its demand's dual.

        Args:
            demand: number of the demand that it serves.
            rows: a row of `_on_link` for each link of its routes; repeated if several transfers
                pass a link.
            loads: load on each of them, relative to its amount.
            cost: its cost in the objective.
            windows: in how many windows, from that of the rows on, it loads the links.
            always: whether to add it in any case.

        Returns:
            Whether it was added.
        """
        # Several transfers may pass a link. SetCoefficient overwrites, so their loads are added
        # first.
        distinct, where = np.unique(rows, return_inverse=True)
        loads = np.bincount(where, loads).astype(np.float64)
        rows = distinct + len(self._bandwidth) * np.arange(windows)[:, None]
        if self._duals is not None and not always:
            reduced = float(self._duals.reshape(-1)[rows].sum(axis=0) @ loads) + cost
            if reduced >= self._demand_duals[demand] - LEAST_GAIN:
                return False
        variable = self._solver.NumVar(0, self._solver.infinity(), "")
        self._demands[demand].SetCoefficient(variable, 1.0)
        for of_window in rows.tolist():
            for row, load in zip(of_window, loads.tolist(), strict=True):
                self._on_link[row].SetCoefficient(variable, load)
        self._solver.Objective().SetCoefficient(variable, cost)
        self._carried.append(variable)
        return True


def relative(duals: NDArray) -> NDArray:
    """Duals scaled to mean one, all positive."""
    return duals / max(float(duals.mean()), 1e-300) + TUNING.min_dual
