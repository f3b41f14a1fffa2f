"""Locates a change of rates on links: the network under which the messages would be so fast."""

import dataclasses
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradweave.errors import InputWarning
from gradweave.schedules.schedule import Schedule
from gradweave.simulator.seconds import first_links
from gradweave.simulator.traffic import piece_bytes
from gradweave.topology.capacity import capacities_from_bandwidths
from gradweave.topology.topology import Topology
from gradweave.torch.rates import HIGH, LOW

MOST_CHANGES = 4
"""Largest number of links or servers that a change is explained by."""
WORTH = 0.1
"""A further link is part of the explanation if that lowers the mean error of the logarithms of the
rates' ratios by this fraction of its initial value."""
STEP = 1.05
"""Factors are powers of this, so that a recurring change finds the plan that was kept for it."""
LEAST_CHANGE = 0.12
"""Smallest relative change of a link that counts."""


class Flow(NamedTuple):
    """The messages from one rank to another."""

    links: NDArray[np.int64]
    """The links of their route."""
    ratio: float
    """Their rate in proportion to what it was on the network as planned for."""


def routes(schedule: Schedule) -> dict[tuple[int, int], NDArray[np.int64]]:
    """The links of the route between each two ranks; of the heaviest route if there are several."""
    links, _ = schedule.route_links
    first, rank = first_links(schedule), schedule.topology.rank
    moved = piece_bytes(schedule, 1.0)[schedule.piece]
    load: dict[tuple[int, int], dict[tuple[int, ...], float]] = {}
    for transfer in range(schedule.num_transfers):
        ends = int(rank[schedule.source[transfer]]), int(rank[schedule.target[transfer]])
        route = tuple(links[first[transfer] : first[transfer + 1]].tolist())
        by_route = load.setdefault(ends, {})
        by_route[route] = by_route.get(route, 0.0) + float(moved[transfer])
    return {
        ends: np.array(max(by_route, key=lambda route: by_route[route]), np.int64)
        for ends, by_route in load.items()
    }


def located(network: Topology, flows: Sequence[Flow]) -> Topology | None:
    """The network with the bandwidths that explain the rates, or None if it is unchanged.

    A message is as fast as the narrowest link of its route. Each step changes the link, or all
    links of the server, that lowers the error most. Without messages in one direction of a link,
    both directions count as changed.

    Args:
        network: the network under which the rates were the references.
        flows: the messages, with their rates' ratios.
    """
    if not flows:
        return None
    fit = _Fit(network, flows)
    factor = np.ones(len(network.source))
    error = start = fit.error(factor)
    for _ in range(MOST_CHANGES):
        found = min(fit.changed(factor), key=lambda each: each[0], default=None)
        if found is None or found[0] > error - WORTH * start:
            break
        error, factor = found
    changed = np.abs(factor - 1) > LEAST_CHANGE
    if not changed.any():
        return None
    return _with(network, network.bandwidth_bytes_per_s * np.where(changed, factor, 1.0))


def nearly(given: Topology, now: Topology) -> Topology:
    """The network as it is now, where links that have nearly recovered are as they were given.

    From the network as given, such a change of rates would not be reported.
    """
    before, after = given.bandwidth_bytes_per_s, now.bandwidth_bytes_per_s
    recovered = (after >= LOW * before) & (after <= HIGH * before)
    return given if recovered.all() else _with(now, np.where(recovered, before, after))


def _with(network: Topology, bandwidth: NDArray[Any]) -> Topology:
    """The network with other bandwidths."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InputWarning)  # of rounded capacities
        capacity = capacities_from_bandwidths(bandwidth.astype(np.float64), network.name)
    return dataclasses.replace(network, bandwidth_bytes_per_s=bandwidth, capacity=capacity)


class _Fit:
    """How well factors on links explain the ratios of rates."""

    def __init__(self, network: Topology, flows: Sequence[Flow]) -> None:
        self._network = network
        self._links = np.concatenate([flow.links for flow in flows])
        lengths = [len(flow.links) for flow in flows]
        self._first = np.concatenate([[0], np.cumsum(lengths)[:-1]])
        self._flow = np.repeat(np.arange(len(flows)), lengths)
        self._ratio = np.array([flow.ratio for flow in flows])
        self._narrowest = self._rates(np.ones(len(network.source)))

    def _rates(self, factor: NDArray[np.float64]) -> NDArray[np.float64]:
        """[F] the bandwidth of each flow's narrowest link."""
        bandwidth = self._network.bandwidth_bytes_per_s * factor
        return np.minimum.reduceat(bandwidth[self._links], self._first)

    def error(self, factor: NDArray[np.float64]) -> float:
        """The mean error of the logarithms of the ratios."""
        ratio = self._rates(factor) / self._narrowest
        return float(np.abs(np.log(ratio / self._ratio)).mean())

    def changed(self, factor: NDArray[np.float64]) -> Iterator[tuple[float, NDArray[np.float64]]]:
        """Possible further changes, with their errors; the first of equally good changes counts."""
        bandwidth = self._network.bandwidth_bytes_per_s
        error = np.abs(np.log(self._rates(factor) / self._narrowest / self._ratio))
        off = error > -np.log1p(-LEAST_CHANGE)
        for links in self._groups(np.unique(self._links[off[self._flow]])):
            through = np.unique(self._flow[np.isin(self._links, links)])
            through = through[off[through]]
            wanted = self._ratio[through] * self._narrowest[through]
            for rate in np.unique(np.quantile(wanted, [0.25, 0.5, 0.75])):
                changed = factor.copy()
                steps = np.round(np.log(rate / bandwidth[links]) / np.log(STEP))
                changed[links] = np.power(STEP, steps)
                yield self.error(changed), changed

    def _groups(self, links: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
        network = self._network
        for link in links.tolist():
            both = np.array([link, network.opposite[link]], np.int64)
            yield both
            yield both[:1]
        for node in np.unique(network.source[links]).tolist():
            around = np.flatnonzero((network.source == node) | (network.target == node))
            if network.is_server[node] and len(around) > 2:
                yield around
