"""Trees packed into the time before late servers are ready, and the time after."""

import dataclasses

import numpy as np
from numpy.typing import NDArray

from gradweave.bounds.least_seconds import LeastSeconds, least_seconds
from gradweave.schedule.ready import ReadyAt
from gradweave.schedulers.unequal.packing import (
    MAX_STEPS,
    ROOTS_A_STEP,
    SLACK,
    SMOOTHING,
    TOLERANCE,
    Stage,
    Tree,
    TreePacking,
)
from gradweave.schedulers.unequal.ways import Ways
from gradweave.topology.topology import Topology

LEAST_PRICE = 1e-7
"""Of a link whose bandwidth is not scarce, relative to the mean: the price of fewer links."""
STAGES: tuple[Stage, ...] = ("reduce_scatter", "all_gather")


def pack_late_trees(
    topology: Topology,
    gradient_bytes: float,
    ready_at_s: ReadyAt,
    spread: bool = True,
    tolerance: float = TOLERANCE,
) -> TreePacking:
    """Packs the trees of an all-reduce into the links' bandwidths, some servers being late.

    The programme of `pack_trees`, with links that carry their bandwidths in each window of time in
    which the same servers are ready: the last one lasts for T, to be minimised, the others as long
    as they do. A tree to a root is given with the window in which each of its hops sends: none
    before a server is ready from which the hop carries sums. Trees from a root send in the last.

    The cheapest such tree is found one late server after the other: each takes the cheapest path to
    what is there, the latest first; all that are in time follow by Edmonds' algorithm. With one
    late server whose cheapest path is one hop, as where all are linked, that is the cheapest.

    Args:
        topology: the network; bandwidths count, latencies and capacities do not.
        gradient_bytes: size of the whole gradient.
        ready_at_s: [N] seconds at which each server is ready, by rank; not all 0.
        spread: whether to take the shares whose largest is the least, of those that take little
            more time.
        tolerance: how far above the bound to stop, relative to it.

    Returns:
        The packing; its seconds per byte are all of the time, from 0 on.

    Source: as `pack_trees`; Devraj et al., "Accelerating AllReduce with a Persistent Straggler"
        (StragglAR), 2025, for servers in time that reduce among themselves first.
    """
    least = least_seconds(topology, gradient_bytes, ready_at_s=ready_at_s)
    search = _Search(topology, least)
    search.run(tolerance)
    if spread:
        search.spread()
    return search.packing()


class _Search:
    """The programme with the trees found so far. Times are in the unit of the bound's last window.

    What links carry is a part of the gradient; a link of the largest bandwidth carries `1 / unit`
    of it in a second.
    """

    def __init__(self, topology: Topology, least: LeastSeconds) -> None:
        self._topology = topology
        ready = np.array(least.prices.ready_at_s)
        self._starts = np.unique(np.concatenate([[0.0], ready]))
        self._level = np.searchsorted(self._starts, ready)  # [N] windows that each server misses
        self._unit = least.gradient_bytes / float(topology.bandwidth_bytes_per_s.max())
        self._bandwidth = topology.bandwidth_bytes_per_s / topology.bandwidth_bytes_per_s.max()
        without = float(least.prices.seconds_without_latency(least.gradient_bytes))
        self._goal, self._size = without, least.gradient_bytes
        windows = [least.prices.link_prices_at(start).max(axis=0) for start in self._starts]
        self._optimal = _relative(np.array(windows).astype(np.float64))  # [windows, L]
        self._trees: list[Tree] = []
        self._wanted: NDArray | None = None
        self._worth: dict[Stage, list[float]] = {}
        self._make_programme()
        self._add_cheapest(self._optimal)
        # All in the last window, these can carry everything.
        dear = np.where(np.arange(len(self._starts)) < len(self._starts) - 1, 1e6, 1.0)
        self._add_cheapest(dear[:, None] / self._bandwidth)

    def _make_programme(self) -> None:
        """The last window's length and the shares; what each link carries in each window."""
        from ortools.linear_solver import pywraplp

        solver = self._solver = pywraplp.Solver.CreateSolver("CLP")
        infinity, servers = solver.infinity(), self._topology.num_servers
        self._time = solver.NumVar(0, infinity, "")
        solver.Objective().SetCoefficient(self._time, 1.0)
        lengths = np.diff(self._starts) / self._unit
        self._on_link = [
            [solver.Constraint(-infinity, float(room)) for room in length * self._bandwidth]
            for length in [*lengths, 0.0]
        ]
        for row, bandwidth in zip(self._on_link[-1], self._bandwidth.tolist(), strict=True):
            row.SetCoefficient(self._time, -bandwidth)
        shares = self._shares = [solver.NumVar(0, 1, "") for _ in range(servers)]
        together = solver.Constraint(1.0, 1.0)
        self._of_root = {
            stage: [solver.Constraint(0.0, infinity) for _ in shares] for stage in STAGES
        }
        for rank, share in enumerate(shares):
            together.SetCoefficient(share, 1.0)
            for rows in self._of_root.values():
                rows[rank].SetCoefficient(share, -1.0)
        self._carried: list = []
        self._solution: list[float] = []

    @property
    def _seconds(self) -> float:
        return float(self._starts[-1]) + self._length * self._unit

    def run(self, tolerance: float) -> None:
        """Adds trees until the programme's time is near the least."""
        for _ in range(MAX_STEPS):
            self._solve()
            if self._seconds <= self._goal * (1 + tolerance):
                return
            assert self._wanted is not None
            wanted = _relative(self._wanted)
            smoothed = SMOOTHING * self._optimal + (1 - SMOOTHING) * wanted
            if not self._add_cheapest(smoothed) and not self._add_cheapest(wanted):
                return

    def spread(self) -> None:
        """Of what takes little more time, the shares whose largest is the least."""
        solver, most = self._solver, self._seconds * (1 + SLACK)
        self._time.SetUb((most - float(self._starts[-1])) / self._unit)
        largest = solver.NumVar(0, 1, "")
        for share in self._shares:
            solver.Add(share <= largest)
        solver.Objective().SetCoefficient(largest, 1.0)
        solver.Objective().SetCoefficient(self._time, 0.0)
        self._solve()

    def _solve(self) -> None:
        if self._solver.Solve() != self._solver.OPTIMAL:
            raise ArithmeticError("packing: the linear programme was not solved")
        self._solution = [variable.solution_value() for variable in self._carried]
        self._length = self._time.solution_value()
        self._rooted = np.array([share.solution_value() for share in self._shares])
        self._wanted = np.array(
            [[max(-row.dual_value(), 0.0) for row in rows] for rows in self._on_link]
        )
        for stage in STAGES:
            self._worth[stage] = [row.dual_value() for row in self._of_root[stage]]

    def _add_cheapest(self, prices: NDArray) -> bool:
        """Adds the trees of the roots that are cheapest at these prices, if any improves."""
        ways = _Ways(self._topology, prices)
        found = [
            (towards[0] + from_[0], root, towards[1:], from_[1:])
            for root in range(self._topology.num_servers)
            for towards, from_ in [(ways.to_root(root, self._level), ways.from_root(root))]
        ]
        found.sort(key=lambda one: one[:2])
        if self._wanted is not None:
            found = found[:ROOTS_A_STEP]
        known = len(self._trees)
        for _, root, towards, from_ in found:
            for stage, (parent, window) in zip(STAGES, (towards, from_), strict=True):
                routes = ways.routes(parent, window, stage == "reduce_scatter")
                self._add(Tree(stage, root, parent, routes), window)
        return len(self._trees) > known

    def _add(self, tree: Tree, window: NDArray[np.int64]) -> None:
        """Adds a tree, if the programme would gain by it."""
        links = [
            (int(w), link) for w, route in zip(window, tree.routes, strict=True) for link in route
        ]
        if self._wanted is not None:
            cost = sum(float(self._wanted[at]) for at in links)
            if cost >= self._worth[tree.stage][tree.root] - 1e-12:
                return
        variable = self._solver.NumVar(0, self._solver.infinity(), "")
        self._of_root[tree.stage][tree.root].SetCoefficient(variable, 1.0)
        for (w, link), times in zip(*np.unique(links, axis=0, return_counts=True), strict=True):
            self._on_link[w][link].SetCoefficient(variable, float(times))
        self._trees.append(tree)
        self._carried.append(variable)

    def packing(self) -> TreePacking:
        """The trees that carry something, as last solved."""
        carried = {stage: np.zeros(self._topology.num_servers) for stage in STAGES}
        used = [pair for pair in zip(self._trees, self._solution, strict=False) if pair[1] > 0]
        for tree, share in used:
            carried[tree.stage][tree.root] += share
        # Where bandwidth is left over, a stage's trees may carry more than their root's share.
        rooted = np.minimum.reduce([*carried.values(), self._rooted])
        return TreePacking(
            self._seconds / self._size,
            tuple(
                dataclasses.replace(
                    tree, share=share * rooted[tree.root] / carried[tree.stage][tree.root]
                )
                for tree, share in used
            ),
        )


class _Ways:
    """The cheapest ways between servers in each window of time, at given prices."""

    def __init__(self, topology: Topology, prices: NDArray) -> None:
        self._tolerance = 1e-9 * float(prices.max())
        ways = Ways(topology, held=0.0)
        self._cheapest = [ways.cheapest(of_window) for of_window in prices]
        costs = [cheapest.cost for cheapest in self._cheapest]
        # [windows, N, N] from each server to each other, in the cheapest window from one on
        self._window = np.empty((len(costs), *costs[0].shape), np.int64)
        self._cost = np.empty(self._window.shape)
        for since in range(len(costs)):
            later = np.array(costs[since:])
            self._window[since] = since + later.argmin(axis=0)
            self._cost[since] = later.min(axis=0)

    def from_root(self, root: int) -> tuple[float, NDArray[np.int64], NDArray[np.int64]]:
        """The cheapest tree in the last window: its cost, parents, and the windows of the hops."""
        from gradweave.schedulers.unequal.cheapest_trees_kernel import cheapest_tree

        cost, parent = cheapest_tree(self._cost[-1], self._tolerance, root)
        return cost, parent, np.full(len(parent), len(self._cost) - 1)

    def to_root(
        self, root: int, level: NDArray[np.int64]
    ) -> tuple[float, NDArray[np.int64], NDArray[np.int64]]:
        """A cheap tree to a root in which late servers' sums are sent late; see `from_root`.

        Args:
            root: rank.
            level: [N] windows that each server misses.
        """
        from gradweave.schedulers.unequal.cheapest_trees_kernel import cheapest_tree

        parent, since = np.full(len(level), -1), np.zeros(len(level), np.int64)
        inside = np.arange(len(level)) == root
        while (left := ~inside & (level > 0)).any():
            latest = int(level[left].max())
            self._join_nearest(
                parent, since, inside, np.flatnonzero(left & (level == latest)), latest
            )
        arcs = np.ascontiguousarray(self._cost[0].T)  # from the root outwards
        for server in np.flatnonzero(parent >= 0).tolist():
            arcs[:, server] = np.inf
            arcs[parent[server], server] = 0.0
        _, parent = cheapest_tree(arcs, self._tolerance, root)
        others = np.flatnonzero(parent >= 0)
        cost = float(self._cost[since[others], others, parent[others]].sum())
        window = np.zeros(len(level), np.int64)
        window[others] = self._window[since[others], others, parent[others]]
        return cost, parent, window

    def _join_nearest(
        self,
        parent: NDArray[np.int64],
        since: NDArray[np.int64],
        inside: NDArray[np.bool_],
        servers: NDArray[np.int64],
        level: int,
    ) -> None:
        """Joins the one of some servers with the cheapest path to those inside, by that path."""
        cost, following = np.where(inside, 0.0, np.inf), np.full(len(inside), -1)
        for _ in range(len(inside)):
            ways = self._cost[level] + cost[None, :]
            best = ways.argmin(axis=1)
            cheaper = ways[np.arange(len(best)), best] < cost - self._tolerance
            if not (cheaper & ~inside).any():
                break
            following[cheaper] = best[cheaper]
            cost = np.where(cheaper, ways.min(axis=1), cost)
        server = int(servers[np.argmin(cost[servers])])
        while not inside[server]:
            parent[server], since[server], inside[server] = following[server], level, True
            server = int(following[server])

    def routes(
        self, parent: NDArray[np.int64], window: NDArray[np.int64], towards: bool
    ) -> tuple[tuple[int, ...], ...]:
        """[N] the links of each server's hop, in the order in which the data passes.

        Args:
            parent: [N] rank of each server's next one towards the root; −1 at the root.
            window: [N] in which each server's hop sends.
            towards: whether data moves towards the root.
        """
        return tuple(
            () if up < 0 else self._cheapest[at].route(*((server, up) if towards else (up, server)))
            for server, (up, at) in enumerate(zip(parent.tolist(), window.tolist(), strict=True))
        )


def _relative(prices: NDArray) -> NDArray:
    """Prices whose mean is one, all of them positive."""
    return prices / max(float(prices.mean()), 1e-300) + LEAST_PRICE
