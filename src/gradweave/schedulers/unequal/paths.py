"""The cheapest paths between servers at given duals, residual bandwidth counted.

Behind switches a transfer is as fast as the scarcest link of its route. What a faster link of the
route has left is unusable, unless others are slow enough to be carried beside the transfer.
"""

import dataclasses

import numpy as np
from numpy.typing import NDArray

from gradweave.schedulers.unequal.tuning import TUNING
from gradweave.topology.topology import Topology
from gradweave.topology.units import ROUNDING


@dataclasses.dataclass(frozen=True, eq=False)
class CheapestPaths:
    """The cheapest path between each two servers."""

    topology: Topology
    cost: NDArray[np.float64]
    """[N, N] of a byte from each server to each other; infinite to itself and where there is no
    path."""
    last: NDArray[np.int64]
    """[rates, N, V] the last link of the path from each server to each node, at each rate."""
    rate: NDArray[np.int64]
    """[N, N] number of the rate at which the path is cheapest."""

    def routes(self, parent: NDArray[np.int64], towards: bool) -> tuple[tuple[int, ...], ...]:
        """[N] the links of each server's hop in a tree; none at the root.

        Args:
            parent: [N] rank of each server's next one towards the root; −1 at the root.
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
            target: rank of another one.
        """
        last = self.last[self.rate[source, target], source]
        links: list[int] = []
        node, start = int(self.topology.servers[target]), self.topology.servers[source]
        while node != start:
            links.append(int(last[node]))
            node = int(self.topology.source[links[-1]])
        return tuple(reversed(links))


class Paths:
    """Paths between servers, and what a byte over them costs.

    Args:
        topology: the network.
        residual: weight of the bandwidth that a transfer leaves unusable, relative to what it uses:
            at 1 both count the same; more leaves ports time to spare, so that a thin trunk need not
            wait for one full port; at 0 the bytes alone count.
    """

    def __init__(self, topology: Topology, *, residual: float) -> None:
        self._topology = topology
        self._bandwidth = topology.bandwidth_bytes_per_s.astype(np.float64)
        self._rates, self._weight = np.array([0.0]), residual
        if residual:
            self._slow = self._bottlenecks()
            self._rates = some_rates(np.unique(self._bandwidth), TUNING.max_rates)
            every = np.arange(len(self._bandwidth))
            self._factors = np.array([self._factors_at(every, rate) for rate in self._rates])

    @property
    def leave_residual(self) -> bool:
        """Whether residual bandwidth counts, and there may be any."""
        return len(self._rates) > 1

    def cheapest(self, duals: NDArray[np.float64]) -> CheapestPaths:
        """The cheapest paths.

        Args:
            duals: [L] of a byte over each link, at least 0.
        """
        costs, lasts = zip(*(self._at_rate(duals, k) for k in range(len(self._rates))), strict=True)
        rate = np.argmin(costs, axis=0)
        cost = np.take_along_axis(np.array(costs), rate[None], axis=0)[0]
        return CheapestPaths(self._topology, cost, np.array(lasts), rate)

    def factors(self, route: tuple[int, ...]) -> NDArray[np.float64]:
        """How many times its bytes a transfer takes of each link of its route.

        Args:
            route: its links.
        """
        links = np.array(route)
        if not self.leave_residual:
            return np.ones(len(links))
        return self._factors_at(links, float(self._bandwidth[links].min()))

    def _at_rate(self, duals: NDArray, k: int) -> tuple[NDArray, NDArray]:
        """The cheapest paths whose links all have the rate, and the costs of a byte at it."""
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
        """How many times its bytes a transfer at a rate takes of some links; infinite of slower.

        With a link to itself, bandwidth over rate; where others as slow share it, a part of that.
        """
        from gradweave.schedulers.kernels.residual import transfers_at_once

        at_once = transfers_at_once(links, rate, self._bandwidth, self._slow)
        with np.errstate(divide="ignore"):
            taken = self._bandwidth[links] / (at_once * rate)
        return np.where(taken > 1 + ROUNDING, taken * self._weight, 1.0)

    def _bottlenecks(self) -> NDArray[np.bool_]:
        """[L, L] which links are bottlenecks over which, on paths of the fewest seconds a byte."""
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
    """Rates spread evenly over those given, the least and the greatest among them.

    Args:
        rates: ascending.
        most: how many at most.
    """
    if len(rates) <= most:
        return rates
    return rates[np.unique(np.linspace(0, len(rates) - 1, most).astype(int))]
