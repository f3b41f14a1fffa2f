"""Packs trees into the time before late servers are ready, and the time after."""

import numpy as np
from numpy.typing import NDArray

from gradweave.bounds.scale import units_of
from gradweave.bounds.seconds.least_seconds import LeastSeconds, least_seconds
from gradweave.common.stop import UNLIMITED, Stop
from gradweave.schedulers.packing.paths import PathCosts
from gradweave.schedulers.packing.tree_program import STAGES, Tree, TreePacking, TreeProgram
from gradweave.schedulers.packing.tuning import TUNING
from gradweave.schedules.ready import ReadyAt
from gradweave.topology.topology import Topology
from gradweave.topology.units import ROUNDING


def pack_straggler_trees(
    topology: Topology,
    gradient_bytes: float,
    ready_at_s: ReadyAt,
    spread: bool = True,
    stop: Stop = UNLIMITED,
) -> TreePacking:
    """Packs the trees of an all-reduce into the links' bandwidths if some servers are late.

    The program is that of `pack_trees`, with links that carry their bandwidths in each window of
    time in which the same servers are ready. The last window lasts for T, which is minimised; the
    others have fixed lengths. Each hop of a tree to a root is assigned a window in which it sends,
    not before every server whose sum it carries is ready. Trees from a root send in the last
    window.

    The cheapest such tree is built one late server after the other, the latest first: each takes
    the cheapest path to the servers already in the tree. All servers that are ready from the start
    follow by Edmonds' algorithm. With a single late server whose cheapest path is one hop, as when
    all servers are linked, the tree is optimal.

    Args:
        topology: the network; bandwidths count, latencies and capacities do not.
        gradient_bytes: size of the whole gradient.
        ready_at_s: [N] seconds at which each server is ready, by rank; not all 0.
        spread: whether to take, among solutions of little more time, that with the smallest largest
            share.
        stop: when to end with the trees found so far.

    Returns:
        The packing; its seconds per byte cover the whole time from 0 on.

    Source: as `pack_trees`; Devraj et al., "Accelerating AllReduce with a Persistent Straggler"
        (StragglAR), 2025, for servers in time that reduce among themselves first.
    """
    least = least_seconds(topology, gradient_bytes, ready_at_s=ready_at_s)
    search = _Search(topology, least)
    search.run(stop)
    if spread:
        search.spread()
    return search.packing()


class _Search(TreeProgram):
    """The program with a window of time for each set of servers that are ready."""

    def __init__(self, topology: Topology, least: LeastSeconds) -> None:
        ready = np.array(least.duals.ready_at_s)
        self._starts = np.unique(np.concatenate([[0.0], ready]))
        (unit,) = units_of(topology, STAGES, apart=False, shares=None)
        self._unit = least.gradient_bytes / unit
        lengths = np.diff(self._starts) / self._unit
        super().__init__(topology, STAGES, lengths, unit, 0.0)
        self._level = np.searchsorted(self._starts, ready)  # [N] windows missed by each server
        self._size = least.gradient_bytes
        self._goal = float(least.duals.seconds_without_latency(self._size))
        windows = [least.duals.link_duals_at(start).max(axis=0) for start in self._starts]
        self._best_duals = self._relative(
            np.array(windows).astype(np.float64), float(least.duals.paid)
        )
        self._add_columns(self._best_duals)
        # These trees make the program feasible: all their hops may be in the last window.
        costs_more = np.where(np.arange(len(self._starts)) < len(self._starts) - 1, 1e6, 1.0)
        self._add_columns(costs_more[:, None] * self._by_bandwidth())

    def spread(self) -> None:
        """Among solutions of little more time, minimises the largest share."""
        most, objective = self._seconds * (1 + TUNING.slack), self._solver.Objective()
        self._times[0].SetUb((most - float(self._starts[-1])) / self._unit)
        objective.SetCoefficient(self._largest_share(), 1.0)
        objective.SetCoefficient(self._times[0], 0.0)
        self._solve()

    def packing(self) -> TreePacking:
        """The trees in use in the last solution."""
        shares = np.array([share.solution_value() for share in self._shares])
        return self._packing(self._seconds / self._size, shares)

    @property
    def _seconds(self) -> float:
        return float(self._starts[-1]) + self._length * self._unit

    def _is_near(self, steps: int) -> bool:
        return self._seconds <= self._goal * (1 + TUNING.tolerance)

    def _add_columns(self, duals: NDArray) -> bool:
        """Adds the trees of the cheapest roots at these duals; returns whether any improves."""
        paths = _Paths(self._topology, duals)
        trees = [
            (towards[0] + from_[0], root, towards[1:], from_[1:])
            for root in range(self._topology.num_servers)
            for towards, from_ in [(paths.to_root(root, self._level), paths.from_root(root))]
        ]
        trees.sort(key=lambda one: one[:2])
        if self._duals is not None:
            trees = trees[: TUNING.roots_per_step]
        known = len(self._trees)
        for _, root, towards, from_ in trees:
            for stage, (parent, window) in zip(STAGES, (towards, from_), strict=True):
                routes = paths.routes(parent, window, stage == "reduce_scatter")
                links = np.array([link for route in routes for link in route])
                windows = np.repeat(window, [len(route) for route in routes])
                rows = windows * len(self._bandwidth) + links
                self._add_tree(Tree(stage, root, parent, routes), rows, np.ones(len(rows)))
        return len(self._trees) > known


class _Paths:
    """The cheapest paths between servers in each window of time, at given duals."""

    def __init__(self, topology: Topology, duals: NDArray) -> None:
        self._tolerance = ROUNDING * float(duals.max())
        paths = PathCosts(topology, residual=0.0)
        self._cheapest = [paths.cheapest(of_window) for of_window in duals]
        costs = [cheapest.cost for cheapest in self._cheapest]
        # [windows, N, N] from each server to each other, in the cheapest window from a given one on
        self._window = np.empty((len(costs), *costs[0].shape), np.int64)
        self._cost = np.empty(self._window.shape)
        for since in range(len(costs)):
            later = np.array(costs[since:])
            self._window[since] = since + later.argmin(axis=0)
            self._cost[since] = later.min(axis=0)

    def from_root(self, root: int) -> tuple[float, NDArray[np.int64], NDArray[np.int64]]:
        """The cheapest tree in the last window: its cost, parents, and the windows of the hops."""
        from gradweave.schedulers.kernels.arborescence import minimum_arborescence

        cost, parent = minimum_arborescence(self._cost[-1], self._tolerance, root)
        return cost, parent, np.full(len(parent), len(self._cost) - 1)

    def to_root(
        self, root: int, level: NDArray[np.int64]
    ) -> tuple[float, NDArray[np.int64], NDArray[np.int64]]:
        """A cheap tree to a root in which late servers' sums are sent late; returns as `from_root`.

        Args:
            root: rank.
            level: [N] number of windows that each server misses.
        """
        from gradweave.schedulers.kernels.arborescence import minimum_arborescence

        parent, since = np.full(len(level), -1), np.zeros(len(level), np.int64)
        inside = np.arange(len(level)) == root
        # The latest server joins first. Sums that join its hops afterwards are ready no later than
        # the hops' window, which can stay as it is.
        while (left := ~inside & (level > 0)).any():
            latest = int(level[left].max())
            self._join_nearest(
                parent, since, inside, np.flatnonzero(left & (level == latest)), latest
            )
        arcs = np.ascontiguousarray(self._cost[0].T)  # from the root outwards
        for server in np.flatnonzero(parent >= 0).tolist():
            # Edmonds' algorithm keeps the hops found so far, as these servers have no other arc.
            arcs[:, server] = np.inf
            arcs[parent[server], server] = 0.0
        _, parent = minimum_arborescence(arcs, self._tolerance, root)
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
        """Joins the server, among some, with the cheapest path to the tree, by that path."""
        cost, following = np.where(inside, 0.0, np.inf), np.full(len(inside), -1)
        for _ in range(len(inside)):
            over = self._cost[level] + cost[None, :]
            best = over.argmin(axis=1)
            cheaper = over[np.arange(len(best)), best] < cost - self._tolerance
            if not (cheaper & ~inside).any():
                break
            following[cheaper] = best[cheaper]
            cost = np.where(cheaper, over.min(axis=1), cost)
        server = int(servers[np.argmin(cost[servers])])
        while not inside[server]:
            parent[server], since[server], inside[server] = following[server], level, True
            server = int(following[server])

    def routes(
        self, parent: NDArray[np.int64], window: NDArray[np.int64], towards: bool
    ) -> tuple[tuple[int, ...], ...]:
        """[N] the links of each server's hop, in the order in which the data passes.

        Args:
            parent: [N] rank of each server's parent; −1 at the root.
            window: [N] window in which each server's hop sends.
            towards: whether data moves towards the root.
        """
        return tuple(
            () if up < 0 else self._cheapest[at].route(*((server, up) if towards else (up, server)))
            for server, (up, at) in enumerate(zip(parent.tolist(), window.tolist(), strict=True))
        )
