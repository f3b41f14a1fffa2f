"""The cheapest paths between servers at given duals, including residual bandwidth.

Behind switches, a transfer is as fast as the slowest link of its route. The bandwidth that it
leaves on a faster link is unusable, unless other transfers are slow enough to share the link with
it.
"""

import dataclasses

import numpy as np
from numpy.typing import NDArray

from gradweave.schedulers.packing.tuning import TUNING
from gradweave.topology.topology import Topology
from gradweave.topology.units import ROUNDING


@dataclasses.dataclass(frozen=True, eq=False)
class CheapestPaths:
    """The cheapest path between every two servers."""

    topology: Topology
    cost: NDArray[np.float64]
    """[N, N] cost of a byte from each server to each other; infinite to itself and without a
    path."""
    last: NDArray[np.int64]
    """[rates, N, V] the last link of the path from each server to each node, at each rate."""
    rate: NDArray[np.int64]
    """[N, N] number of the rate at which the path is cheapest."""

    def routes(self, parent: NDArray[np.int64], towards: bool) -> tuple[tuple[int, ...], ...]:
        """[N] the links of each server's hop in a tree; none at the root.

        Args:
            parent: [N] rank of each server's parent; −1 at the root.
            towards: whether data moves towards the root.
        """
        return tuple(
            () if up < 0 else self.route(*((server, up) if towards else (up, server)))
            for server, up in enumerate(parent.tolist())
        )

    def route(self, source: int, target: int) -> tuple[int, ...]:
        """The links of the path from one server to another.

        Args:
            source: rank of a server.
            target: rank of another server.
        """
        last = self.last[self.rate[source, target], source]
        links: list[int] = []
        node, start = int(self.topology.servers[target]), self.topology.servers[source]
        while node != start:
            links.append(int(last[node]))
            node = int(self.topology.source[links[-1]])
        return tuple(reversed(links))


class PathCosts:
    """Paths between servers, and the cost of a byte over them.

    Args:
        topology: the network.
        residual: weight of the bandwidth that a transfer leaves unusable, relative to the bandwidth
            it uses: at 1 both count the same; more leaves ports time to spare, so that a thin trunk
            need not wait for a full port; at 0 only bytes count.
    """

    def __init__(self, topology: Topology, *, residual: float) -> None:
        self._topology = topology
        self._bandwidth = topology.bandwidth_bytes_per_s.astype(np.float64)
        self._rates, self._weight = np.array([0.0]), residual
        if residual:
            # This comes first: while there is a single rate, paths are sought without factors.
            self._slow = self._bottlenecks()
            # The load on a link depends on the bottleneck of the whole path, which Dijkstra's
            # algorithm does not know in advance. So it runs once for each rate that a bottleneck
            # may have, over links that are at least as fast.
            self._rates = some_rates(np.unique(self._bandwidth), TUNING.max_rates)
            every = np.arange(len(self._bandwidth))
            self._factors = np.array([self._factors_at(every, rate) for rate in self._rates])

    @property
    def leave_residual(self) -> bool:
        """Whether residual bandwidth counts, and transfers may leave any."""
        return len(self._rates) > 1

    def cheapest(self, duals: NDArray[np.float64]) -> CheapestPaths:
        """The cheapest paths at given duals.

        Args:
            duals: [L] dual of a byte over each link, at least 0.
        """
        costs, lasts = zip(*(self._at_rate(duals, k) for k in range(len(self._rates))), strict=True)
        rate = np.argmin(costs, axis=0)
        cost = np.take_along_axis(np.array(costs), rate[None], axis=0)[0]
        return CheapestPaths(self._topology, cost, np.array(lasts), rate)

    def factors(self, route: tuple[int, ...]) -> NDArray[np.float64]:
        """The load of a transfer on each link of its route, relative to its bytes.

        Args:
            route: the links of its route.
        """
        links = np.array(route)
        if not self.leave_residual:
            return np.ones(len(links))
        return self._factors_at(links, float(self._bandwidth[links].min()))

    def _at_rate(self, duals: NDArray, k: int) -> tuple[NDArray, NDArray]:
        """The cheapest paths whose links all have rate k, and the cost of a byte at that rate."""
        from gradweave.schedulers.kernels.paths import cheapest_paths

        topology = self._topology
        if self.leave_residual:
            duals = duals * self._factors[k]
        cost, last = cheapest_paths(
            topology.first_link, topology.target, duals, topology.servers, topology.is_server
        )
        cost = np.ascontiguousarray(cost[:, topology.servers])
        np.fill_diagonal(cost, np.inf)
        return cost, last

    def _factors_at(self, links: NDArray[np.int64], rate: float) -> NDArray[np.float64]:
        """The load of a transfer of a given rate on some links, relative to its bytes.

        It is infinite on slower links. On a link to itself it is bandwidth over rate; if other
        equally slow transfers share the link, a part of that.
        """
        from gradweave.schedulers.kernels.residual import transfers_at_once

        at_once = transfers_at_once(links, rate, self._bandwidth, self._slow)
        with np.errstate(divide="ignore"):
            taken = self._bandwidth[links] / (at_once * rate)
        return np.where(taken > 1 + ROUNDING, taken * self._weight, 1.0)

    def _bottlenecks(self) -> NDArray[np.bool_]:
        """[L, L] which links are bottlenecks of which, on the fastest paths for bytes."""
        from gradweave.schedulers.kernels.residual import bottlenecks_over

        cost, last = self._at_rate(1 / self._bandwidth, 0)
        ends = (self._topology.source, self._topology.servers)
        source, servers = (nodes.astype(np.int64) for nodes in ends)
        return bottlenecks_over(source, self._bandwidth, servers, cost, last, True)


def may_leave_residual(topology: Topology) -> bool:
    """Whether some path over switches may have links of different bandwidths.

    Args:
        topology: the network.
    """
    return len(topology.switches) > 0 and len(np.unique(topology.bandwidth_bytes_per_s)) > 1


def some_rates(rates: NDArray[np.float64], most: int) -> NDArray[np.float64]:
    """Rates spread evenly over those given, including the smallest and the largest.

    Args:
        rates: rates, ascending.
        most: maximum number of rates.
    """
    if len(rates) <= most:
        return rates
    return rates[np.unique(np.linspace(0, len(rates) - 1, most).astype(int))]
