"""Trees of any weight, packed into the links' bandwidths: what goes over which tree."""

import dataclasses
import math
from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gradweave.bounds.least_seconds import LeastSeconds, least_seconds
from gradweave.schedule.schedule import Collective
from gradweave.schedulers.unequal.ways import Ways
from gradweave.topology.topology import Topology

Stage = Literal["reduce_scatter", "all_gather"]

TOLERANCE = 5e-4
"""How far the packing may be from the least time, relative to it, when the search ends."""
SLACK = 1e-3
"""Time given up for shares that are more alike, relative to the least."""
HOP = 0.1
"""What a hop more in all trees may make the largest share smaller, relative to the mean."""
FLATTER = (0.0, 0.03, 0.1, 0.3, 1.0, 3.0)
"""How much more, relative to the mean price, servers may cost that hang nearer to the root."""
SETTLING = 8
"""How often flatter trees are sought."""
MAX_STEPS = 400
SMOOTHING = 0.5
"""How much of the optimal prices is in those at which trees are sought: at the programme's own,
which jump from step to step, it takes more steps."""
ROOTS_A_STEP = 8
"""Roots whose trees a step adds: more make fewer steps and larger programmes."""
LEAST_PRICE = 1e-7
"""Of a link whose bandwidth is not scarce, relative to the mean: of ways and trees that cost the
same, those of fewer links are taken."""


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


def pack_trees(
    topology: Topology,
    collective: Collective = "all_reduce",
    tolerance: float = TOLERANCE,
    *,
    held: float = 0.0,
    gradient_bytes: float = math.inf,
) -> TreePacking:
    """Packs trees into the links' bandwidths, for the least time of large gradients.

    An all-reduce divides the gradient among roots as takes least time, with both stages at once; of
    a stage alone each server has an equal part.

    The programme: trees of root r carry w_r in each stage; on each link direction the bytes of all
    hops over it are at most T times its bandwidth; Σ w = 1; minimise T. Of all trees, it is given
    those that are cheapest at prices near the optimal ones, which `gradweave.bounds.least_seconds`
    finds without trees, until its T is as small as that bound.

    Args:
        topology: the network; bandwidths count, latencies and capacities do not.
        collective: a stage, or both.
        tolerance: how far above the bound to stop, relative to it.
        held: how much counts what a transfer keeps from others and does not use (see `Ways`). With
            more than 0 the least time is not known beforehand: the search ends near the bound that
            its own prices prove.
        gradient_bytes: for which latency counts beside bytes; not at all if not given.

    Returns:
        The packing; where latency does not count at most `tolerance` and `SLACK` above the bound,
        unless `MAX_STEPS` were too few.

    Source: column generation (Dantzig and Wolfe 1960) with smoothed prices (Wentges 1997).
    """
    shares = "any" if collective == "all_reduce" else "equal"
    least = least_seconds(topology, 1.0, collective, shares=shares)
    search = _Search(topology, collective, least, Ways(topology, held=held))
    search.run(tolerance)
    search.settle(gradient_bytes)
    return search.packing()


class _Search:
    """The programme with the trees found so far."""

    def __init__(
        self, topology: Topology, collective: Collective, least: LeastSeconds, ways: Ways
    ) -> None:
        self._topology, self._ways = topology, ways
        both: tuple[Stage, ...] = ("reduce_scatter", "all_gather")
        self._free = collective == "all_reduce"
        self._stages: tuple[Stage, ...] = tuple(
            stage for stage in both if self._free or stage == collective
        )
        self._unit = float(topology.bandwidth_bytes_per_s.max())
        self._bandwidth = topology.bandwidth_bytes_per_s / self._unit
        self._least = float(least.prices.seconds_per_byte) * self._unit
        # Both stages share the links, and so the prices.
        self._optimal = _relative(np.max(least.prices.link_prices, axis=0).astype(np.float64))
        self._trees: list[Tree] = []
        self._wanted: NDArray | None = None  # the price of each link, once solved
        self._worth: dict[Stage, list[float]] = {}  # and of a byte at each root
        self._make_programme()
        self._own_cost: Callable[[Tree], float] = lambda _: 0.0  # what the objective has of a tree
        self._add_cheapest(self._optimal)
        self._add_cheapest(_relative(1 / self._bandwidth))  # these can carry all in any case

    def _make_programme(self) -> None:
        """T and the shares; for each link what it carries, for each root what its trees carry."""
        from ortools.linear_solver import pywraplp

        solver = self._solver = pywraplp.Solver.CreateSolver("CLP")
        infinity, servers = solver.infinity(), self._topology.num_servers
        self._time = solver.NumVar(0, infinity, "")
        solver.Objective().SetCoefficient(self._time, 1.0)
        self._on_link = [solver.Constraint(-infinity, 0.0) for _ in self._bandwidth]
        for row, bandwidth in zip(self._on_link, self._bandwidth.tolist(), strict=True):
            row.SetCoefficient(self._time, -bandwidth)
        least = 0.0 if self._free else 1 / servers
        shares = self._shares = [solver.NumVar(least, 1, "") for _ in range(servers)]
        together = solver.Constraint(1.0, 1.0)
        self._of_root = {
            stage: [solver.Constraint(0.0, infinity) for _ in shares] for stage in self._stages
        }
        for rank, share in enumerate(shares):
            together.SetCoefficient(share, 1.0)
            for rows in self._of_root.values():
                rows[rank].SetCoefficient(share, -1.0)
        self._carried: list = []  # the variable of each tree
        self._solution: list[float] = []  # and its value, as last solved

    def run(self, tolerance: float) -> None:
        """Adds trees until the programme's time is near the least."""
        for _ in range(MAX_STEPS):
            self._solve()
            if self._time.solution_value() <= self._least * (1 + tolerance):
                return
            assert self._wanted is not None
            wanted = _relative(self._wanted)
            smoothed = SMOOTHING * self._optimal + (1 - SMOOTHING) * wanted
            if not self._add_cheapest(smoothed) and not self._add_cheapest(wanted):
                return  # none improves on these, as far as floats tell

    def settle(self, gradient_bytes: float) -> None:
        """Of what takes about the least time, shares that are nearly alike over short trees.

        A programme's solution is a corner, often with few roots, which many would then send to at
        one time, and with trees however deep. Here the latency of the trees counts beside the time
        of the bytes, and trees that cost a little more are added, flatter ones; then shares that
        are alike, and hops, for which little time is given up.
        """
        solver, least, objective = self._solver, self._seconds, self._solver.Objective()
        objective.SetCoefficient(self._time, 1 / least)
        if math.isinf(gradient_bytes):
            self._time.SetUb(least * (1 + SLACK))
        seconds = least / self._unit * gradient_bytes

        def own_cost(tree: Tree) -> float:
            depth, latency = self._length(tree)
            return latency / seconds + SLACK * HOP * depth

        self._own_cost = own_cost
        for tree, carried in zip(self._trees, self._carried, strict=True):
            objective.SetCoefficient(carried, own_cost(tree))
        if self._free:
            largest = solver.NumVar(0, 1, "")
            for share in self._shares:
                solver.Add(share <= largest)
            objective.SetCoefficient(largest, SLACK * self._topology.num_servers)
        self._solve()
        for _ in range(SETTLING if math.isfinite(gradient_bytes) else 0):
            assert self._wanted is not None
            wanted = _relative(self._wanted)
            if not any([self._add_cheapest(wanted, costlier) for costlier in FLATTER]):
                break
            self._solve()

    def _length(self, tree: Tree) -> tuple[int, float]:
        """Hops from the root to the furthest server, and the longest way's seconds."""
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

    def _solve(self) -> None:
        if self._solver.Solve() != self._solver.OPTIMAL:
            raise ArithmeticError("packing: the linear programme was not solved")
        self._solution = [variable.solution_value() for variable in self._carried]
        self._seconds = self._time.solution_value()
        self._wanted = np.maximum([-row.dual_value() for row in self._on_link], 0.0)
        for stage in self._stages:
            self._worth[stage] = [row.dual_value() for row in self._of_root[stage]]

    def _add_cheapest(self, prices: NDArray, costlier: float = 0.0) -> bool:
        """Adds the trees of the roots that are cheapest at these prices, if any improves.

        Args:
            prices: [L] of a byte over each link.
            costlier: how much more a server may cost that hangs nearer to the root, relative to
                the mean price.
        """
        from gradweave.schedulers.unequal.cheapest_trees_kernel import cheapest_trees

        ways = self._ways.cheapest(prices)
        cost, parents, total = ways.cost, {}, np.zeros(len(ways.cost))
        nearer = max(costlier * float(prices.mean()), 1e-9 * float(prices.max()))
        for stage in self._stages:
            # A tree to a root is one from it over the opposite arcs.
            arcs = np.ascontiguousarray(cost.T if stage == "reduce_scatter" else cost)
            costs, parents[stage] = cheapest_trees(arcs, nearer)
            total += costs
        if not costlier:
            self._take_bound(prices, total)
        roots = np.argsort(total, kind="stable")
        if self._free and self._wanted is not None:
            roots = roots[:ROOTS_A_STEP]
        known = len(self._trees)
        for stage, of_root in parents.items():
            for root in roots.tolist():
                routes = ways.routes(of_root[root], stage == "reduce_scatter")
                tree = Tree(stage, root, of_root[root], routes)
                if self._improves(tree):
                    self._add(tree)
        return len(self._trees) > known

    def _take_bound(self, prices: NDArray, total: NDArray) -> None:
        """Keeps prices that prove more than any before: weak duality.

        All links together can take no more than their prices times the time; what each root's
        trees cost is taken in any case.
        """
        proved = float(total.min() if self._free else total.mean()) / float(
            prices @ self._bandwidth
        )
        if self._ways.held and proved > self._least:
            self._least, self._optimal = proved, prices

    def _improves(self, tree: Tree) -> bool:
        """Whether the programme would gain by the tree: it costs less than its root is worth."""
        wanted = self._wanted
        if wanted is None:
            return True
        links, times = self._taken(tree)
        cost = float(wanted[links] @ times) + self._own_cost(tree)
        return cost < self._worth[tree.stage][tree.root] - 1e-12

    def _add(self, tree: Tree) -> None:
        variable = self._solver.NumVar(0, self._solver.infinity(), "")
        self._of_root[tree.stage][tree.root].SetCoefficient(variable, 1.0)
        for link, times in zip(*self._taken(tree), strict=True):
            self._on_link[link].SetCoefficient(variable, float(times))
        self._solver.Objective().SetCoefficient(variable, self._own_cost(tree))
        self._trees.append(tree)
        self._carried.append(variable)

    def _taken(self, tree: Tree) -> tuple[NDArray, NDArray]:
        """The links of a tree, and how many times its bytes it takes of each."""
        routes = [route for route in tree.routes if route]
        factors = np.concatenate([self._ways.factors(route) for route in routes])
        links, where = np.unique([link for route in routes for link in route], return_inverse=True)
        return links, np.bincount(where, factors)

    def packing(self) -> TreePacking:
        """The trees that carry something, as last solved."""
        carried = {stage: np.zeros(self._topology.num_servers) for stage in self._stages}
        # Trees that were added after the programme was last solved carry nothing.
        used = [pair for pair in zip(self._trees, self._solution, strict=False) if pair[1] > 0]
        for tree, share in used:
            carried[tree.stage][tree.root] += share
        # Where bandwidth is left over, a stage's trees may carry more than their root's share.
        rooted = np.minimum.reduce(list(carried.values()))
        return TreePacking(
            self._seconds / self._unit,
            tuple(
                dataclasses.replace(
                    tree, share=share * rooted[tree.root] / carried[tree.stage][tree.root]
                )
                for tree, share in used
            ),
        )


def _relative(prices: NDArray) -> NDArray:
    """Prices whose mean is one, all of them positive."""
    return prices / max(float(prices.mean()), 1e-300) + LEAST_PRICE
