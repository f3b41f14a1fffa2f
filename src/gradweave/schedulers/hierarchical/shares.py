"""How much of the gradient each root has in each order: the least time of the busiest link."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradweave.schedulers.hierarchical.tuning import TUNING


def least_time_shares(columns: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
    """Shares that sum to one, and the seconds of the busiest link for each byte.

    Of those that take about the least time the largest share is made small, so that roots are
    alike where they can be.

    Args:
        columns: [K, L] seconds for which each of K choices holds each link, for a byte.
    """
    unit = float(columns.mean(axis=0).max())
    rows = np.unique(np.round((columns / unit).T, 12), axis=0)
    rows = rows[rows.any(axis=1)]
    least, _ = _solved(rows, None)
    _, share = _solved(rows, least * (1 + TUNING.slack))
    share = np.maximum(share, 0.0)
    share /= share.sum()
    return share, float((share @ columns).max())


def _solved(rows: NDArray, most: float | None) -> tuple[float, NDArray[np.float64]]:
    """The least time, or where the most that it may be is given the least largest share."""
    from ortools.linear_solver import pywraplp

    solver: Any = pywraplp.Solver.CreateSolver("GLOP")
    share = [solver.NumVar(0.0, 1.0, "") for _ in range(rows.shape[1])]
    longest = solver.NumVar(0.0, solver.infinity(), "")
    solver.Add(solver.Sum(share) == 1.0)
    for row in rows:
        held = solver.RowConstraint(-solver.infinity(), 0.0 if most is None else most, "")
        for place in np.flatnonzero(row).tolist():
            held.SetCoefficient(share[place], float(row[place]))
        if most is None:
            held.SetCoefficient(longest, -1.0)
    if most is not None:
        for one in share:
            solver.Add(one <= longest)
    solver.Minimize(longest)
    solver.Solve()
    return float(longest.solution_value()), np.array([one.solution_value() for one in share])
