"""The ways between servers at given prices, and the bandwidth that transfers strand.

Behind switches a transfer is as fast as the scarcest link of its route. What a faster link of the
route has left over is stranded, unless others are slow enough to be carried beside the transfer.
"""

import dataclasses

import numpy as np
from numpy.typing import NDArray

from gradweave.topology.topology import Topology

MAX_RATES = 12
"""Rates for each of which the cheapest ways are sought: where links have more, some of these."""
ROUNDING = 1e-9


@dataclasses.dataclass(frozen=True, eq=False)
class Cheapest:
    """The cheapest way between each two servers."""

    topology: Topology
    cost: NDArray[np.float64]
    """[N, N] of a byte from each server to each other; infinite to itself and where there is no
    way."""
    last: NDArray[np.int64]
    """[rates, N, V] the last link of the way from each server to each node, at each rate."""
    rate: NDArray[np.int64]
    """[N, N] number of the rate at which the way is cheapest."""

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
        """The links of the way from one server to another.

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


class Ways:
    """Ways between servers, and what a byte over them costs.

    Args:
        topology: the network.
        stranded: weight of the bandwidth that a transfer strands, relative to what it uses: at 1
            both count the same; more leaves ports time to spare, so that a thin trunk need not wait
            for one full port; at 0 the bytes alone count.
    """

    def __init__(self, topology: Topology, *, stranded: float) -> None:
        self._topology = topology
        self._bandwidth = topology.bandwidth_bytes_per_s.astype(np.float64)
        self._rates, self._weight = np.array([0.0]), stranded
        if stranded:
            self._bottlenecks = self._all_bottlenecks()
            self._rates = some_rates(np.unique(self._bandwidth), MAX_RATES)
            self._factors = np.array([self._all_factors(rate) for rate in self._rates])

    @property
    def strands(self) -> bool:
        """Whether stranded bandwidth counts, and there may be any."""
        return len(self._rates) > 1

    def cheapest(self, prices: NDArray[np.float64]) -> Cheapest:
        """The cheapest ways.

        Args:
            prices: [L] of a byte over each link, at least 0.
        """
        costs, lasts = zip(
            *(self._at_rate(prices, k) for k in range(len(self._rates))), strict=True
        )
        rate = np.argmin(costs, axis=0)
        cost = np.take_along_axis(np.array(costs), rate[None], axis=0)[0]
        return Cheapest(self._topology, cost, np.array(lasts), rate)

    def factors(self, route: tuple[int, ...]) -> NDArray[np.float64]:
        """How many times its bytes a transfer takes of each link of its route.

        Args:
            route: its links.
        """
        links = np.array(route)
        if not self.strands:
            return np.ones(len(links))
        rate = float(self._bandwidth[links].min())
        return np.array([self._factor(int(link), rate) for link in links])

    def _at_rate(self, prices: NDArray, k: int) -> tuple[NDArray, NDArray]:
        """The cheapest ways whose links all have the rate, and the costs of a byte at it."""
        from gradweave.schedulers.kernels.paths import cheapest_paths

        topology = self._topology
        if self.strands:
            prices = prices * self._factors[k]
        cost, last = cheapest_paths(
            topology.first_link, topology.target, prices, topology.servers, topology.is_server
        )
        cost = np.ascontiguousarray(cost[:, topology.servers])
        np.fill_diagonal(cost, np.inf)
        return cost, last

    def _all_factors(self, rate: float) -> NDArray[np.float64]:
        """[L] how many times its bytes a transfer at a rate takes; infinite of a slower link."""
        return np.array([self._factor(link, rate) for link in range(len(self._bandwidth))])

    def _factor(self, link: int, rate: float) -> float:
        """How many times its bytes a transfer at a rate takes of a link.

        With the link to itself, bandwidth over rate. Where others are as slow, as many as fit share
        the link evenly. Only those with another bottleneck count: two behind one slow port come one
        by one.
        """
        bandwidth, slower = float(self._bandwidth[link]), self._bottlenecks[link]
        if rate > bandwidth * (1 + ROUNDING):
            return np.inf
        as_slow = int(np.searchsorted(slower, rate * (1 + ROUNDING), "right"))
        at_once = min(int(bandwidth / rate * (1 + ROUNDING)), max(as_slow, 1))
        taken = bandwidth / (at_once * rate)
        return taken * self._weight if taken > 1 + ROUNDING else 1.0

    def _all_bottlenecks(self) -> list[NDArray[np.float64]]:
        """For each link the bandwidths, ascending, of the bottlenecks of the routes over it.

        Of the routes with the fewest seconds a byte; each bottleneck once.
        """
        slowest: list[dict[int, float]] = [{} for _ in self._bandwidth]
        cheapest = self.cheapest(1 / self._bandwidth)
        for source, target in zip(*np.nonzero(np.isfinite(cheapest.cost)), strict=True):
            route = cheapest.route(int(source), int(target))
            scarcest = min(route, key=lambda link: self._bandwidth[link])
            for link in route:
                slowest[link][scarcest] = float(self._bandwidth[scarcest])
        return [np.sort(np.array(list(each.values()))) for each in slowest]


def may_strand(topology: Topology) -> bool:
    """Whether some way over switches may have links of different bandwidths.

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
