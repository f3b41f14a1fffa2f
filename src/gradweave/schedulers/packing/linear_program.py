"""The linear program over trees, solved by column generation."""

import abc
import dataclasses
import math

import numpy as np
from numpy.typing import NDArray

from gradweave.bounds.scale import are_alike, in_units
from gradweave.schedulers.packing.tuning import TUNING
from gradweave.schedules.schedule import Stage
from gradweave.stop import UNLIMITED, Stop
from gradweave.topology.topology import Topology


@dataclasses.dataclass(frozen=True, eq=False)
class Tree:
    """A tree that spans the servers, with its share of the gradient."""

    stage: Stage
    """Stage in which it is used: towards the root, or from it."""
    root: int
    """Rank of the root."""
    parent: NDArray[np.int64]
    """[N] rank of each server's parent; −1 at the root."""
    routes: tuple[tuple[int, ...], ...]
    """[N] links of each server's hop, in the order in which data passes; none at the root."""
    share: float = 0.0
    """Share of the gradient."""


@dataclasses.dataclass(frozen=True, eq=False)
class TreePacking:
    """Trees that carry the gradient, and the busiest link's seconds per byte."""

    seconds_per_byte: float
    """Time per byte with links as busy as possible, without latency."""
    trees: tuple[Tree, ...]
    """The trees; shares sum to one in each stage, and are equal per root in both stages."""


class LinearProgram(abc.ABC):
    """A linear program over trees that are generated as needed (column generation).

    Trees of root r carry w_r in each stage, Σ w = 1, over links that carry their bandwidths in each
    of W windows of time; the length of the last window is minimised. A link of one unit of
    bandwidth carries the whole gradient in one unit of time. Subclasses do the pricing: they find
    the cheapest trees at given duals, and decide when the time is close enough to the bound.

    Args:
        topology: the network.
        stages: the stages that have trees.
        lengths: lengths of the windows before the last, in units of time.
        unit_bytes_per_s: unit of bandwidth (see `gradweave.bounds.scale`).
        least_share: minimum share of each root.
    """

    def __init__(
        self,
        topology: Topology,
        stages: tuple[Stage, ...],
        lengths: NDArray[np.float64],
        unit_bytes_per_s: float,
        least_share: float = 0.0,
    ) -> None:
        from ortools.linear_solver import pywraplp

        self._topology, self._stages = topology, stages
        (self._bandwidth,) = in_units(topology, (unit_bytes_per_s,))
        self._dear = math.inf if are_alike(topology) else TUNING.max_dual
        solver = self._solver = pywraplp.Solver.CreateSolver("CLP")
        infinity, servers = solver.infinity(), topology.num_servers
        self._time = solver.NumVar(0, infinity, "")
        solver.Objective().SetCoefficient(self._time, 1.0)
        # One row per link, window by window.
        self._on_link = [
            solver.Constraint(-infinity, float(room))
            for length in (*lengths.tolist(), 0.0)
            for room in length * self._bandwidth
        ]
        last = self._on_link[-len(self._bandwidth) :]
        for row, bandwidth in zip(last, self._bandwidth.tolist(), strict=True):
            row.SetCoefficient(self._time, -bandwidth)
        shares = self._shares = [solver.NumVar(least_share, 1, "") for _ in range(servers)]
        together = solver.Constraint(1.0, 1.0)
        self._of_root = {
            stage: [solver.Constraint(0.0, infinity) for _ in shares] for stage in stages
        }
        for rank, share in enumerate(shares):
            together.SetCoefficient(share, 1.0)
            for rows in self._of_root.values():
                rows[rank].SetCoefficient(share, -1.0)
        self._trees: list[Tree] = []
        self._carried: list = []  # the variable of each tree
        self._solution: list[float] = []  # its value in the last solution
        self._link_duals: NDArray | None = None  # [W, L] of a byte, once solved
        self._root_duals: dict[Stage, list[float]] = {}

    def run(self, tolerance: float, stop: Stop = UNLIMITED) -> None:
        """Adds trees until the program's time is near the bound.

        Args:
            tolerance: relative gap to stop at.
            stop: when to stop in any case.
        """
        for _ in range(TUNING.max_steps):
            self._solve()
            if self._is_near(tolerance) or stop.reached():
                return
            duals = self._duals()
            smoothed = TUNING.smoothing * self._best_duals + (1 - TUNING.smoothing) * duals
            if not self._add_columns(smoothed) and not self._add_columns(duals):
                return  # no tree improves the program, within float precision

    _best_duals: NDArray
    """[W, L] duals that prove the best known bound."""

    @abc.abstractmethod
    def _is_near(self, tolerance: float) -> bool:
        """Whether the time of the last solution is near the bound."""

    @abc.abstractmethod
    def _add_columns(self, duals: NDArray) -> bool:
        """Adds the cheapest roots' trees at duals [W, L]; returns whether any improves."""

    def _duals(self) -> NDArray:
        """[W, L] the program's duals in the last solution."""
        assert self._link_duals is not None
        return self._relative(self._link_duals, self._length)

    def _relative(self, duals: NDArray, paid: float) -> NDArray:
        """Duals scaled to mean one, each capped relative to what the whole gradient pays."""
        return relative(np.minimum(duals, self._dear * paid))

    def _by_bandwidth(self) -> NDArray:
        """[L] duals proportional to the seconds per byte on each link."""
        with np.errstate(divide="ignore"):
            return np.minimum(1 / self._bandwidth, self._dear)

    def _largest_share(self) -> object:
        """A variable that no root's share exceeds."""
        largest = self._solver.NumVar(0, 1, "")
        for share in self._shares:
            self._solver.Add(share <= largest)
        return largest

    def _solve(self) -> None:
        if self._solver.Solve() != self._solver.OPTIMAL:
            raise ArithmeticError("packing: the linear program was not solved")
        self._solution = [variable.solution_value() for variable in self._carried]
        self._length = self._time.solution_value()
        self._root_shares = np.array([share.solution_value() for share in self._shares])
        duals = np.maximum([-row.dual_value() for row in self._on_link], 0.0)
        self._link_duals = duals.reshape(-1, len(self._bandwidth))
        for stage in self._stages:
            self._root_duals[stage] = [row.dual_value() for row in self._of_root[stage]]

    def _add(self, tree: Tree, rows: NDArray, times: NDArray, cost: float = 0.0) -> None:
        """Adds a tree if it improves the program: if it costs less than its root's dual.

        Args:
            tree: the tree.
            rows: rows of `_on_link` for each link of its routes; repeated if several hops pass a
                link.
            times: load on each of them, relative to its bytes.
            cost: additional cost in the objective.
        """
        rows, where = np.unique(rows, return_inverse=True)
        times = np.bincount(where, times)
        if self._link_duals is not None:
            reduced = float(self._link_duals.reshape(-1)[rows] @ times) + cost
            if reduced >= self._root_duals[tree.stage][tree.root] - 1e-12:
                return
        variable = self._solver.NumVar(0, self._solver.infinity(), "")
        self._of_root[tree.stage][tree.root].SetCoefficient(variable, 1.0)
        for row, taken in zip(rows.tolist(), times.tolist(), strict=True):
            self._on_link[row].SetCoefficient(variable, taken)
        self._solver.Objective().SetCoefficient(variable, cost)
        self._trees.append(tree)
        self._carried.append(variable)

    def _packing(self, seconds_per_byte: float, *most: NDArray) -> TreePacking:
        """The trees in use in the last solution.

        Args:
            seconds_per_byte: seconds per byte of the packing.
            most: [N] further limits on the share of each root, in addition to those of both stages.
        """
        carried = {stage: np.zeros(self._topology.num_servers) for stage in self._stages}
        # Trees added after the last solution are unused.
        used = [pair for pair in zip(self._trees, self._solution, strict=False) if pair[1] > 0]
        for tree, share in used:
            carried[tree.stage][tree.root] += share
        # If bandwidth is left over, a stage's trees may carry more than their root's share.
        rooted = np.minimum.reduce([*carried.values(), *most])
        return TreePacking(
            seconds_per_byte,
            tuple(
                dataclasses.replace(
                    tree, share=share * rooted[tree.root] / carried[tree.stage][tree.root]
                )
                for tree, share in used
            ),
        )


def relative(duals: NDArray) -> NDArray:
    """Duals scaled to mean one, all positive."""
    return duals / max(float(duals.mean()), 1e-300) + TUNING.min_dual
