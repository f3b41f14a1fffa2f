"""Infers the topology that explains the findings about a network, with a spread per figure."""

import dataclasses
import itertools
import warnings
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gradweave.errors import InputWarning
from gradweave.probe.explore import PRIVATE, Findings, Group
from gradweave.probe.traffic import Rate
from gradweave.topology.capacity import capacities_from_bandwidths
from gradweave.topology.routes import shortest_path_trees
from gradweave.topology.topology import Topology

SAME = 0.1
"""Bandwidths within this fraction count as equal: it is twice the error of a rate."""
_SWEEPS = 500
"""Maximum sweeps in the fit of latencies, which converges in far fewer."""


@dataclasses.dataclass(frozen=True, eq=False)
class Latencies:
    """Half of the round trips between servers, in seconds."""

    least_s: NDArray[np.float64]
    """[N, N] the shortest measurement; symmetric, 0 on the diagonal."""
    spread_s: NDArray[np.float64]
    """[N, N] from the shortest measurement to the median."""
    overhead_s: float
    """Time per additional message without data in a stream of messages: the median of all."""


@dataclasses.dataclass(frozen=True, eq=False)
class Measured:
    """A measured network."""

    topology: Topology
    bandwidth_spread_bytes_per_s: NDArray[np.float64]
    """[L] difference between the slowest and the fastest third of the slot behind the bandwidth."""
    latency_spread_s: NDArray[np.float64]
    """[L] median spread of the pairs whose route crosses the link."""


class _Links:
    """The nodes and link directions found so far."""

    def __init__(self, servers: int) -> None:
        self.servers = self.nodes = servers
        self.rates: dict[tuple[int, int], Rate] = {}

    def switch(self) -> int:
        """Adds a switch."""
        self.nodes += 1
        return self.nodes - 1

    def join(self, a: int, b: int, there: Rate, back: Rate) -> None:
        """Adds a link between two nodes."""
        self.rates[a, b], self.rates[b, a] = there, back


def inferred(findings: Findings, latencies: Latencies, names: Sequence[str], name: str) -> Measured:
    """Builds the topology.

    Args:
        findings: the result of `explore`.
        latencies: latencies between all servers.
        names: [N] the servers' names; switches are named ``shared0``, ``shared1``, ….
        name: the name of the network.
    """
    links = _Links(len(names))
    tops = [_placed(group, links) for group in findings.top]
    if not findings.links:
        _join_all(findings.top, tops, links)
    else:
        _join_pairs(findings, tops, links)
    return _topology(links, latencies, names, name)


def _placed(group: Group, links: _Links) -> int:
    """The node of a group, after the nodes of its parts are joined to it."""
    if not group.parts:
        return group.members[0]
    places = [_placed(part, links) for part in group.parts]
    switch = links.switch()
    for part, place in zip(group.parts, places, strict=True):
        links.join(place, switch, part.out, part.into)
    return switch


def _join_all(groups: Sequence[Group], places: Sequence[int], links: _Links) -> None:
    """Joins all groups by one switch, or two groups by a link."""
    if len(groups) == 2:
        (a, b), (first, second) = places, groups
        there = min(first.out, second.into, key=lambda rate: rate.bytes_per_s)
        back = min(second.out, first.into, key=lambda rate: rate.bytes_per_s)
        links.join(a, b, there, back)
        return
    switch = links.switch()
    for group, place in zip(groups, places, strict=True):
        links.join(place, switch, group.out, group.into)


def _join_pairs(findings: Findings, places: Sequence[int], links: _Links) -> None:
    """Adds a link per pair; behind another link if a group's shared rate is below their sum."""
    ends = list(places)
    if len(places) > 2:
        for number, group in enumerate(findings.top):
            pairs = [rate.bytes_per_s for (a, _), rate in findings.links.items() if a == number]
            if group.out.bytes_per_s < PRIVATE * sum(pairs):
                ends[number] = links.switch()
                links.join(places[number], ends[number], group.out, group.into)
    for a, b in itertools.combinations(range(len(places)), 2):
        links.join(ends[a], ends[b], findings.links[a, b], findings.links[b, a])


def _topology(links: _Links, latencies: Latencies, names: Sequence[str], name: str) -> Measured:
    ends = np.array(sorted(links.rates), np.int64)
    rates = [links.rates[a, b] for a, b in ends.tolist()]
    bandwidth = snapped(np.array([rate.bytes_per_s for rate in rates]))
    with warnings.catch_warnings():  # measured bandwidths are known to have no common unit
        warnings.simplefilter("ignore", InputWarning)
        capacity = capacities_from_bandwidths(bandwidth, name, rounded=True)
    labels = [*names, *(f"shared{number}" for number in range(links.nodes - links.servers))]
    topology = Topology(
        name=name,
        is_server=np.arange(links.nodes) < links.servers,
        source=ends[:, 0],
        target=ends[:, 1],
        bandwidth_bytes_per_s=bandwidth,
        latency_s=np.zeros(len(ends)),
        capacity=capacity,
        overhead_s=np.full(len(ends), latencies.overhead_s),
        labels=tuple(labels),
    )
    crossed = _crossed(topology)
    return Measured(
        dataclasses.replace(topology, latency_s=_fitted(crossed, latencies.least_s)),
        np.array([rate.spread_bytes_per_s for rate in rates]),
        _spreads(crossed, latencies.spread_s),
    )


def snapped(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Replaces values that differ by at most `SAME` by their median.

    So equal links become equal to the last bit, which schedulers need to find symmetry. Values that
    differ by more are divided at their widest gap.

    >>> snapped(np.array([99.0, 50.0, 101.0])).tolist()
    [100.0, 50.0, 100.0]
    """
    result = values.copy()
    order = np.argsort(values, kind="stable")
    left = [order]
    while left:
        alike = left.pop()
        ordered = values[alike]
        if ordered[-1] <= (1 + SAME) * ordered[0]:
            result[alike] = np.median(ordered)
        else:
            cut = 1 + int(np.argmax(ordered[1:] / ordered[:-1]))
            left += [alike[:cut], alike[cut:]]
    return result


def _crossed(topology: Topology) -> NDArray[np.bool_]:
    """[N, N, L] link directions on the route from one server to another."""
    parent = shortest_path_trees(topology)
    servers = topology.num_servers
    crossed = np.zeros((servers, servers, len(topology.source)), bool)
    for a, b in itertools.permutations(range(servers), 2):
        node = a
        while node != b:
            following = int(parent[b][node])
            crossed[a, b, topology.find_links(node, following)] = True
            node = following
    return crossed | crossed[:, :, topology.opposite]


def _fitted(crossed: NDArray[np.bool_], least_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """[L] latencies of links, equal in both directions, that fit those of the pairs best.

    Non-negative least squares, by coordinate descent from 0.
    """
    pairs = np.triu_indices(len(crossed), 1)
    table = crossed[pairs].astype(np.float64)
    left = least_s[pairs].copy()
    columns, first = np.unique(table, axis=1, return_inverse=True)
    size = columns.sum(0)
    alike = np.bincount(first.reshape(-1))
    each = np.zeros(columns.shape[1])
    for _ in range(_SWEEPS):
        for column in np.flatnonzero(size):
            new = max(0.0, each[column] + float(columns[:, column] @ left) / size[column])
            left += columns[:, column] * (each[column] - new)
            each[column] = new
    # Both directions of a link share a column, as do links that no pair distinguishes.
    return (each / (alike / 2))[first.reshape(-1)]


def _spreads(crossed: NDArray[np.bool_], spread_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """[L] the median spread of the pairs whose route crosses a link."""
    return np.array(
        [
            float(np.median(spread_s[crossed[:, :, link]])) if crossed[:, :, link].any() else 0.0
            for link in range(crossed.shape[2])
        ]
    )
