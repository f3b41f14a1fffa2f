"""Routes between servers; among equal routes, the route whose busiest link has the lowest load."""

import numpy as np

from gradweave.schedulers.demand_tuning import TUNING
from gradweave.schedulers.packing.paths import PathCosts
from gradweave.topology.topology import Topology


class EvenRoutes:
    """The fastest routes for bytes; several equal routes are used in turn.

    Args:
        topology: the network.
    """

    def __init__(self, topology: Topology) -> None:
        self._bandwidth = topology.bandwidth_bytes_per_s.astype(np.float64)
        self._load_s = np.zeros(len(self._bandwidth))
        per_byte = 1 / self._bandwidth
        paths = PathCosts(topology, residual=0.0)
        self._drawn = [paths.cheapest(per_byte)]
        self.cost = self._drawn[0].cost
        """[N, N] seconds per byte from each server to each other; infinite without a route."""
        rng = np.random.default_rng(0)
        for _ in range(TUNING.draws_of_routes if len(topology.switches) else 0):
            nearly = per_byte * (1 + TUNING.tie * rng.random(len(per_byte)))
            self._drawn.append(paths.cheapest(nearly))
        self._known: dict[tuple[int, int], list[tuple[int, ...]]] = {}

    def route(self, size: float, source: int, target: int) -> tuple[int, ...]:
        """The links of a route, whose load is then increased.

        Args:
            size: bytes to send over the route.
            source: rank of a server.
            target: rank of another server.
        """
        ends = source, target
        if ends not in self._known:
            routes = dict.fromkeys(paths.route(source, target) for paths in self._drawn)
            most = self.cost[source, target] * (1 + TUNING.tie)
            self._known[ends] = [
                one for one in routes if (1 / self._bandwidth[list(one)]).sum() <= most
            ]
        routes = self._known[ends]
        chosen = routes[0]
        if len(routes) > 1:
            chosen = min(routes, key=lambda links: self._load_s[list(links)].max())
        links = list(chosen)
        self._load_s[links] += size / self._bandwidth[links]
        return chosen
