"""Packs weighted trees into the links' bandwidths, by a linear program over trees."""

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from gradweave.bounds.scale import are_alike, in_units
from gradweave.bounds.seconds.least_seconds import LeastSeconds, least_seconds
from gradweave.common.stop import UNLIMITED, Stop
from gradweave.schedulers.packing.master import Master, relative
from gradweave.schedulers.packing.paths import PathCosts
from gradweave.schedulers.packing.tuning import TUNING
from gradweave.schedules.schedule import Collective, Stage
from gradweave.topology.topology import Topology
from gradweave.topology.units import ROUNDING

STAGES: tuple[Stage, ...] = ("reduce_scatter", "all_gather")


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


def pack_trees(
    topology: Topology,
    collective: Collective = "all_reduce",
    *,
    residual: float = 0.0,
    gradient_bytes: float = math.inf,
    stop: Stop = UNLIMITED,
) -> TreePacking:
    """Packs trees into the links' bandwidths, to minimise the time of large gradients.

    An all-reduce divides the gradient among roots so as to minimise time, with both stages
    overlapping; in a single stage each server has an equal part.

    The program: trees of root r carry w_r in each stage; on each link direction the bytes of all
    hops over it are at most T times its bandwidth; Σ w = 1; minimise T. It is given only the trees
    that are cheapest at duals near the optimal ones, which `gradweave.bounds.least_seconds` finds
    without trees, until its T meets that bound.

    Args:
        topology: the network; bandwidths count, latencies and capacities do not.
        collective: a stage, or both.
        residual: weight of the bandwidth that a transfer leaves unusable, see `PathCosts`. Above 0
            the minimum time is not known in advance: the search ends near the bound that its duals
            prove.
        gradient_bytes: size for which latency counts in addition to bytes; not at all if not given.
        stop: when to end with the trees found so far.

    Returns:
        The packing. If latency does not count, it is at most `TUNING.tolerance` and
        `TUNING.slack` above the bound, unless `TUNING.max_steps` or the time were too little.

    Source: column generation (Dantzig and Wolfe 1960) with smoothed duals (Wentges 1997).
    """
    shares = "any" if collective == "all_reduce" else "equal"
    least = least_seconds(topology, 1.0, collective, shares=shares)
    paths = PathCosts(topology, residual=residual)
    search = TreeSearch(topology, collective, least, paths)
    search.run(stop)
    search.settle(gradient_bytes, stop)
    return search.packing()


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
    """

    def __init__(
        self,
        topology: Topology,
        stages: tuple[Stage, ...],
        lengths: NDArray[np.float64],
        unit_bytes_per_s: float,
        least_share: float,
    ) -> None:
        (bandwidth,) = in_units(topology, (unit_bytes_per_s,))
        super().__init__(bandwidth, np.append(lengths, 0.0), [-1] * len(lengths) + [0], [1.0])
        self._topology, self._stages = topology, stages
        self._max_dual = math.inf if are_alike(topology) else TUNING.max_dual
        solver, servers = self._solver, topology.num_servers
        shares = self._shares = [solver.NumVar(least_share, 1, "") for _ in range(servers)]
        together = solver.Constraint(1.0, 1.0)
        for share in shares:
            together.SetCoefficient(share, 1.0)
        for _ in stages:
            for share in shares:
                # One demand per stage and root: its trees carry at least the root's share.
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
        return relative(np.minimum(duals, self._max_dual * paid))

    def _by_bandwidth(self) -> NDArray:
        """[L] duals proportional to the seconds per byte on each link."""
        with np.errstate(divide="ignore"):
            return np.minimum(1 / self._bandwidth, self._max_dual)

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


class TreeSearch(TreeProgram):
    """The program if all servers are ready from the start: a single window."""

    def __init__(
        self,
        topology: Topology,
        collective: Collective,
        least: LeastSeconds,
        paths: PathCosts,
    ) -> None:
        self._free = collective == "all_reduce"
        stages: tuple[Stage, ...] = tuple(
            stage for stage in STAGES if self._free or stage == collective
        )
        least_share = 0.0 if self._free else 1 / topology.num_servers
        seconds_per_byte = float(least.duals.seconds_per_byte)
        self._unit = float(topology.bandwidth_bytes_per_s.max())
        # In this unit the minimum length is 1. With very different bandwidths, a length in units of
        # the largest would be beyond the range in which a solver's absolute tolerances make sense.
        if not are_alike(topology):
            self._unit = 1 / seconds_per_byte
        super().__init__(topology, stages, np.zeros(0), self._unit, least_share)
        self._paths = paths
        self._least = seconds_per_byte * self._unit
        # Both stages share the links, and so the duals.
        duals = np.max(least.duals.link_duals, axis=0, keepdims=True)
        self._best_duals = self._relative(duals.astype(np.float64), float(least.duals.paid))
        self._tree_cost: Callable[[Tree], float] = lambda _: 0.0  # in the objective
        self._add_columns(self._best_duals)
        # These trees make the program feasible in any case.
        self._add_columns(relative(self._by_bandwidth()[None]))

    def settle(self, gradient_bytes: float, stop: Stop) -> None:
        """Among solutions of nearly minimum time, prefers equal shares over short trees.

        A program's solution is a corner, often with few roots, to which many servers would then
        send at the same time, and with trees of any depth. Here the latency of trees counts in
        addition to the time of bytes, and flatter trees that cost a little more are added. Then
        more equal shares and fewer hops are preferred, at the cost of little time.

        Args:
            gradient_bytes: size for which latency counts; not at all if infinite.
            stop: when to stop looking for more trees.
        """
        least, objective = self._length, self._solver.Objective()
        # Times now count in multiples of the minimum, and the largest share with N·slack: halving
        # it from 2/N to 1/N is worth `slack`.
        objective.SetCoefficient(self._times[0], 1 / least)
        # If latency counts, flatter trees may cost more time of bytes than this.
        if math.isinf(gradient_bytes):
            self._times[0].SetUb(least * (1 + TUNING.slack))
        seconds = least / self._unit * gradient_bytes

        def tree_cost(tree: Tree) -> float:
            depth, latency = self._extent(tree)
            return latency / seconds + TUNING.slack * TUNING.hop_weight * depth

        self._tree_cost = tree_cost
        for tree, carried in zip(self._trees, self._carried, strict=True):
            objective.SetCoefficient(carried, tree_cost(tree))
        if self._free:
            objective.SetCoefficient(
                self._largest_share(), TUNING.slack * self._topology.num_servers
            )
        self._solve()
        for _ in range(TUNING.max_flatter_steps if math.isfinite(gradient_bytes) else 0):
            duals = self._prices()
            # A list, not a generator: trees of every extra cost are added, not only of the first
            # that improves.
            if stop.reached() or not any(
                [self._add_columns(duals, costlier) for costlier in TUNING.flatter]
            ):
                break
            self._solve()

    def packing(self) -> TreePacking:
        """The trees in use in the last solution."""
        return self._packing(self._length / self._unit)

    def add_tree(self, tree: Tree) -> int:
        """Adds a tree regardless of its cost; returns its number.

        Args:
            tree: a tree with routes over the network's links.
        """
        factors = np.concatenate([self._paths.factors(route) for route in tree.routes if route])
        links = np.array([link for route in tree.routes for link in route])
        self._add_tree(tree, links, factors, self._tree_cost(tree), always=True)
        return len(self._trees) - 1

    def prefer(self, columns: Sequence[tuple[int, int, float]], most: Sequence[float]) -> None:
        """From now on, sends as many bytes as possible over preferred trees; see `within`.

        The previous objective becomes a constraint. For each tree in `columns`, the amount of it
        that counts is a separate variable, and the weighted sum of these is maximised.

        Args:
            columns: for each tree that counts: its number, the number of its group, and the worth
                of each byte.
            most: for each group, the share of the gradient that may count.
        """
        solver, objective = self._solver, self._solver.Objective()
        self._least_objective = objective.Value()
        for row in self._demands:
            row.SetUb(0.0)  # exactly the required amount: excess would now be free
        self._near_least = solver.Constraint(-solver.infinity(), solver.infinity())
        for variable in solver.variables():
            self._near_least.SetCoefficient(variable, objective.GetCoefficient(variable))
            objective.SetCoefficient(variable, 0.0)
        groups = [solver.Constraint(0.0, float(share)) for share in most]
        for place, group, worth in columns:
            counted = solver.NumVar(0, solver.infinity(), "")
            groups[group].SetCoefficient(counted, 1.0)
            solver.Add(counted <= self._carried[place])
            objective.SetCoefficient(counted, -worth)

    def within(self, slack: float) -> TreePacking:
        """The trees that maximise the objective of `prefer`.

        Args:
            slack: relative excess over its minimum that the previous objective may have.
        """
        self._near_least.SetUb(self._least_objective * (1 + slack))
        self._solve()
        return self.packing()

    def _is_near(self, steps: int) -> bool:
        return self._length <= self._least * (1 + TUNING.tolerance)

    def _extent(self, tree: Tree) -> tuple[int, float]:
        """Hops from the root to the furthest server, and the longest path's seconds."""
        topology = self._topology
        cost = topology.latency_s + topology.overhead_s
        hop = np.array([float(cost[list(route)].sum()) for route in tree.routes])
        server, seconds, depth = np.arange(len(hop)), np.zeros(len(hop)), 0
        while True:
            seconds += np.where(server >= 0, hop[server], 0.0)
            server = np.where(server >= 0, tree.parent[server], -1)
            if (server < 0).all():
                return depth, float(seconds.max())
            depth += 1

    def _add_columns(self, duals: NDArray, costlier: float = 0.0) -> bool:
        """Adds minimum-cost arborescences of the cheapest roots; returns whether any improves.

        Args:
            duals: [1, L] dual of a byte over each link.
            costlier: extra cost that an arc may have if it brings a server nearer to the root,
                relative to the mean dual.
        """
        from gradweave.schedulers.kernels.arborescence import minimum_arborescences

        paths = self._paths.cheapest(duals[0])
        cost, parents, total = paths.cost, {}, np.zeros(len(paths.cost))
        nearer = max(costlier * float(duals.mean()), ROUNDING * float(duals.max()))
        for stage in self._stages:
            # A tree to a root is a tree from it over the opposite arcs.
            arcs = np.ascontiguousarray(cost.T if stage == "reduce_scatter" else cost)
            costs, parents[stage] = minimum_arborescences(arcs, nearer)
            total += costs
        # Trees chosen at an extra cost are not the cheapest, and prove nothing.
        if self._paths.leave_residual and not costlier:
            self._take_bound(duals, total)
        roots = np.argsort(total, kind="stable")
        # A root with a fixed share always needs its own trees, and before the first solution every
        # root has to have some.
        if self._free and self._duals is not None:
            roots = roots[: TUNING.roots_per_step]
        known = len(self._trees)
        for stage, of_root in parents.items():
            for root in roots.tolist():
                routes = paths.routes(of_root[root], stage == "reduce_scatter")
                tree = Tree(stage, root, of_root[root], routes)
                factors = np.concatenate([self._paths.factors(route) for route in routes if route])
                links = np.array([link for route in routes for link in route])
                self._add_tree(tree, links, factors, self._tree_cost(tree))
        return len(self._trees) > known

    def _take_bound(self, duals: NDArray, total: NDArray) -> None:
        """Keeps duals that prove a stronger bound than any before (weak duality).

        All links together can carry no more than their duals times the time, and each root's trees
        have at least their minimum cost.
        """
        trees = float(total.min() if self._free else total.mean())
        proved = trees / float(duals[0] @ self._bandwidth)
        if proved > self._least:
            self._least, self._best_duals = proved, duals
