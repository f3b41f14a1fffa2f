"""The linear program over trees, solved by column generation."""

import abc
import dataclasses
import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gradweave.bounds.scale import are_alike, in_units
from gradweave.schedulers.unequal.tuning import TUNING
from gradweave.stop import UNLIMITED, Stop
from gradweave.topology.topology import Topology

Stage = Literal["reduce_scatter", "all_gather"]


@dataclasses.dataclass(frozen=True, eq=False)
class Tree:
    """A tree that spans the servers, and how much of the gradient it carries."""

    stage: Stage
    """Leads to the root, or from it."""
    root: int
    """Rank of the server."""
    parent: NDArray[np.int64]
    """[N] rank of each server's next one towards the root; −1 at the root."""
    routes: tuple[tuple[int, ...], ...]
    """[N] links of each server's hop, in the order in which the data passes; none at the root."""
    share: float = 0.0
    """Of the gradient."""


@dataclasses.dataclass(frozen=True, eq=False)
class TreePacking:
    """Trees that carry the gradient, and how long the busiest link takes for each byte of it."""

    seconds_per_byte: float
    """With all links busy as far as possible; latency left out."""
    trees: tuple[Tree, ...]
    """For each stage, shares that sum to one; for each root the same sum in both stages."""


class LinearProgram(abc.ABC):
    """A linear program over trees that is given its trees as they are needed: column generation.

    Trees of root r carry w_r in each stage, Σ w = 1, over links that carry their bandwidths in each
    of W windows of time; the length of the last window is minimised. A link of a unit of
    bandwidth carries the whole gradient in one unit of time. Subclasses price:
    they say which trees are cheapest at given duals, and when the time is near enough.

    Args:
        topology: the network.
        stages: whose trees there are.
        lengths: of the windows before the last, in units of time.
        unit_bytes_per_s: of bandwidth (see `gradweave.bounds.scale`).
        least_share: of each root.
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
        # Window by window, a row for each link.
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
        self._solution: list[float] = []  # and its value, as last solved
        self._link_duals: NDArray | None = None  # [W, L] of a byte, once solved
        self._root_duals: dict[Stage, list[float]] = {}

    def run(self, tolerance: float, stop: Stop = UNLIMITED) -> None:
        """Adds trees until the program's time is near the least.

        Args:
            tolerance: how near, relative to it.
            stop: when to end in any case.
        """
        for _ in range(TUNING.max_steps):
            self._solve()
            if self._is_near(tolerance) or stop.reached():
                return
            duals = self._duals()
            smoothed = TUNING.smoothing * self._best_duals + (1 - TUNING.smoothing) * duals
            if not self._add_columns(smoothed) and not self._add_columns(duals):
                return  # none improves on these, as far as floats tell

    _best_duals: NDArray
    """[W, L] that prove the best bound known."""

    @abc.abstractmethod
    def _is_near(self, tolerance: float) -> bool:
        """Whether the time as last solved is near the least."""

    @abc.abstractmethod
    def _add_columns(self, duals: NDArray) -> bool:
        """Adds the cheapest roots' trees at duals [W, L]; whether any improves."""

    def _duals(self) -> NDArray:
        """[W, L] the program's own, as last solved."""
        assert self._link_duals is not None
        return self._relative(self._link_duals, self._length)

    def _relative(self, duals: NDArray, paid: float) -> NDArray:
        """Duals whose mean is one, none dearer than where all of the gradient pays so much."""
        return relative(np.minimum(duals, self._dear * paid))

    def _by_bandwidth(self) -> NDArray:
        """[L] duals in proportion to what each byte takes of a link's time."""
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
        """Adds a tree if the program would gain by it: it costs less than its root's dual.

        Args:
            tree: the tree.
            rows: of `_on_link`, of each link of its routes; more than once where several pass it.
            times: how many times its bytes it takes there.
            cost: what it costs beside the links, in the objective.
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
        """The trees that carry something, as last solved.

        Args:
            seconds_per_byte: of the packing.
            most: [N] that trees from or to each root carry, besides what those of both stages do.
        """
        carried = {stage: np.zeros(self._topology.num_servers) for stage in self._stages}
        # Trees that were added after the program was last solved carry nothing.
        used = [pair for pair in zip(self._trees, self._solution, strict=False) if pair[1] > 0]
        for tree, share in used:
            carried[tree.stage][tree.root] += share
        # Where bandwidth is left over, a stage's trees may carry more than their root's share.
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
    """Duals whose mean is one, all of them positive."""
    return duals / max(float(duals.mean()), 1e-300) + TUNING.min_dual
