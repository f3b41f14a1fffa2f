"""Shares of the gradient for each root and order that minimise the busiest link's time."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradweave.schedulers.grid.tuning import TUNING


def least_time_shares(columns: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
    """Shares that sum to one, and the busiest link's seconds per byte.

    Among shares that take about the minimum time, the largest share is minimised, so that roots are
    as equal as possible.

    Args:
        columns: [K, L] seconds per byte for which each of K choices occupies each link.
    """
    unit = float(columns.mean(axis=0).max())
    # Links that look the same give the same row, up to the last bits: one constraint is enough.
    rows = np.unique(np.round((columns / unit).T, 12), axis=0)
    rows = rows[rows.any(axis=1)]
    least, _ = _solved(rows, None)
    _, share = _solved(rows, least * (1 + TUNING.slack))
    share = np.maximum(share, 0.0)
    share /= share.sum()
    return share, float((share @ columns).max())


def _solved(rows: NDArray, most: float | None) -> tuple[float, NDArray[np.float64]]:
    """The minimum time; or, if its maximum is given, the minimum of the largest share."""
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
