"""The linear program over trees that span the servers."""

import dataclasses
import math

import numpy as np
from numpy.typing import NDArray

from gradweave.bounds.scale import are_alike, in_units
from gradweave.schedulers.packing.master import Master
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


class TreeProgram(Master):
    """The program over trees, in which the roots' shares are variables.

    Trees of root r carry w_r in each stage, Σ w = 1, over links that carry their bandwidths in each
    window of time; the length of the last window is minimised. A link of one unit of bandwidth
    carries the whole gradient in one unit of time.

    Args:
        topology: the network.
        stages: the stages that have trees.
        lengths: lengths of the windows before the last, in units of time.
        unit_bytes_per_s: unit of bandwidth (see `gradweave.bounds.scale`).
        least_share: minimum share of each root.
        tolerance: relative gap to the bound at which to stop.
    """

    def __init__(
        self,
        topology: Topology,
        stages: tuple[Stage, ...],
        lengths: NDArray[np.float64],
        unit_bytes_per_s: float,
        least_share: float,
        tolerance: float,
    ) -> None:
        (bandwidth,) = in_units(topology, (unit_bytes_per_s,))
        super().__init__(bandwidth, np.append(lengths, 0.0), [-1] * len(lengths) + [0], [1.0])
        self._topology, self._stages, self._tolerance = topology, stages, tolerance
        self._dear = math.inf if are_alike(topology) else TUNING.max_dual
        solver, servers = self._solver, topology.num_servers
        shares = self._shares = [solver.NumVar(least_share, 1, "") for _ in range(servers)]
        together = solver.Constraint(1.0, 1.0)
        for share in shares:
            together.SetCoefficient(share, 1.0)
        for _ in stages:
            for share in shares:
                self._demands[self._ask(0.0)].SetCoefficient(share, -1.0)
        self._trees: list[Tree] = []

    def run(self, stop: Stop = UNLIMITED) -> None:
        """Adds trees until the program's time is near the bound, or until `stop`."""
        self.generate(TUNING.max_steps, stop)

    @property
    def _length(self) -> float:
        """The last window's length in the last solution."""
        return self._lengths[0]

    def _prices(self) -> NDArray[np.float64]:
        return self._relative(super()._prices(), self._length)

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

    def _add_tree(
        self,
        tree: Tree,
        rows: NDArray,
        loads: NDArray,
        cost: float = 0.0,
        *,
        always: bool = False,
    ) -> None:
        """Adds a tree if it improves the program, see `Master._add`."""
        demand = self._stages.index(tree.stage) * len(self._shares) + tree.root
        if self._add(demand, rows, loads, cost, always=always):
            self._trees.append(tree)

    def _packing(self, seconds_per_byte: float, *most: NDArray) -> TreePacking:
        """The trees in use in the last solution.

        Args:
            seconds_per_byte: seconds per byte of the packing.
            most: [N] further limits on the share of each root, in addition to those of both stages.
        """
        carried = {stage: np.zeros(self._topology.num_servers) for stage in self._stages}
        # Trees added after the last solution are unused.
        used = [pair for pair in zip(self._trees, self._amounts, strict=False) if pair[1] > 0]
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
