"""The sizes of a schedule's pieces, chosen for the order of its transfers."""

import dataclasses
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from gradweave.common.stop import Stop
from gradweave.schedulers.improving.tuning import TUNING


@dataclasses.dataclass(frozen=True, eq=False)
class CriticalChains:
    """The time of a schedule, and the chains of transfers that end near it."""

    seconds: float
    per_byte: NDArray[np.float64]
    """[E, P] seconds per byte of each piece, on chains of transfers that end last."""
    ends: NDArray[np.float64]
    """[E] seconds at which each chain ends."""


def resized(
    size: NDArray[np.float64],
    group: NDArray[np.int64],
    simulate: Callable[[NDArray[np.float64]], CriticalChains],
    stop: Stop,
    least_reach: float = TUNING.least_reach,
) -> tuple[NDArray[np.float64], float]:
    """Sizes for which the transfers, in the same order, end sooner; and the seconds.

    While the order of transfers stays the same, each chain of transfers takes a time that is linear
    in the sizes, and the last chain to end decides. A linear program chooses sizes within a region
    around the incumbent that minimise the end of its chains; these are simulated, and their chains
    join the program. The region grows when the prediction comes true, and shrinks when it does not.

    Args:
        size: [P] bytes of each piece.
        group: [P] number of the group of each piece; the bytes of each group stay the same.
        simulate: times the transfers for given sizes.
        stop: when to end.
        least_reach: the smallest region in which to search, relative to the size of a piece.

    Source: a cutting-plane method with a trust region in the maximum norm (Marsten, Hogan and
        Blankenship, "The boxstep method for large-scale optimization", 1975).
    """
    best = simulate(size)
    program = _Program(size, group)
    program.add(best, size)
    reach, usual = TUNING.reach, size.mean()
    while reach > least_reach and not stop.reached():
        step = reach * np.maximum(size, TUNING.usual * usual)
        found = program.solved(np.maximum(size - step, 0.0), size + step)
        if found is None:
            break
        sizes, predicted = found
        if predicted >= best.seconds * (1 - TUNING.least_gain):
            break
        tried = simulate(sizes)
        program.add(tried, sizes)
        if tried.seconds < best.seconds:
            true = (best.seconds - tried.seconds) / (best.seconds - predicted)
            size, best = sizes, tried
            reach *= TUNING.wider if true > TUNING.as_predicted else 1.0
        else:
            reach /= 2
    return size, best.seconds


class _Program:
    """The linear program over sizes that minimises the end of the chains added so far."""

    def __init__(self, size: NDArray[np.float64], group: NDArray[np.int64]) -> None:
        from ortools.linear_solver import pywraplp

        solver = self._solver = pywraplp.Solver.CreateSolver("GLOP")
        # Rows are added and limits move: the last basis stays feasible for the dual alone.
        solver.SetSolverSpecificParametersAsString("use_dual_simplex: true")
        self._bytes = float(size.sum())
        self._sizes = [solver.NumVar(0.0, 1.0, "") for _ in size]
        self._time = solver.NumVar(-solver.infinity(), solver.infinity(), "")
        solver.Objective().SetCoefficient(self._time, 1.0)
        for one in np.unique(group):
            of_group = np.flatnonzero(group == one)
            whole = float(size[of_group].sum()) / self._bytes
            row = solver.Constraint(whole, whole)
            for piece in of_group.tolist():
                row.SetCoefficient(self._sizes[piece], 1.0)
        self._unit: float = 0.0
        self._chains = set[bytes]()

    def add(self, chains: CriticalChains, size: NDArray[np.float64]) -> None:
        """Adds a lower bound on the time for each chain, linear in the sizes."""
        self._unit = self._unit or chains.seconds
        constant = (chains.ends - chains.per_byte @ size) / self._unit
        for chain, seconds in zip(chains.per_byte, constant.tolist(), strict=True):
            key = chain.tobytes() + np.float64(seconds).tobytes()
            if key in self._chains:
                continue
            self._chains.add(key)
            row = self._solver.Constraint(-self._solver.infinity(), -seconds)
            row.SetCoefficient(self._time, -1.0)
            for piece in np.flatnonzero(chain).tolist():
                weight = float(chain[piece]) * self._bytes / self._unit
                row.SetCoefficient(self._sizes[piece], weight)

    def solved(
        self, least: NDArray[np.float64], most: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], float] | None:
        """[P] bytes within limits, and the predicted seconds."""
        for size, low, high in zip(self._sizes, least.tolist(), most.tolist(), strict=True):
            size.SetBounds(low / self._bytes, high / self._bytes)
        if self._solver.Solve() != self._solver.OPTIMAL:
            return None
        values = np.array([one.solution_value() for one in self._sizes])
        return np.maximum(values, 0.0) * self._bytes, self._time.solution_value() * self._unit
