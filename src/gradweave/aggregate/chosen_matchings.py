"""Who averages with whom, in which order, for the least disagreement a second.

`MixingMatrix.in_matchings` colours the edges between neighbours and plays the colours in turn,
whatever a step's messages cost and whatever the steps before have mixed already. Here each step is
chosen for both.
"""

import dataclasses
import itertools
import math
from functools import partial
from typing import NamedTuple

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from gradweave.aggregate.mixing import MOST_PLANS, MixingMatrix, graph_of_workers
from gradweave.checks import check_above_zero, check_at_least_one, check_not_below_zero
from gradweave.topology.routes import server_routes
from gradweave.topology.topology import Topology

MESSAGE_BYTES = 4e6
"""Of a message where it is not given: a million parameters."""
_AGREED = 1e-9
"""Share of the disagreement of the start that counts as none."""
_QUANTILES = (0, 0.25, 0.5, 0.75, 1)
"""Of the seconds that pairs take alone: the durations that matchings are sought within, …"""
_SHARING = (1, 2, 4)
"""… and so many times each, for pairs that share links."""
_BIASES = (0, 1, 8)
"""By which steps count as longer when they are chosen, in the slowest pair's messages: the choice
is greedy, and short steps spoil the pairs that long ones would mix best."""
_TOLERANCE = 1 + 1e-9
"""By which rounding may exceed a duration."""


@dataclasses.dataclass(frozen=True)
class FastMatchings:
    """How `fast_matchings` chooses; the fields are its arguments."""

    message_bytes: float = MESSAGE_BYTES
    steps: int = 64
    step_s: float = 0.0
    distinct: int = MOST_PLANS

    def __post_init__(self) -> None:
        check_above_zero(self, "message_bytes")
        check_at_least_one(self, "steps", "distinct")
        check_not_below_zero(self, "step_s")

    def make(self, network: Topology | nx.Graph, seed: int = 0) -> MixingMatrix:
        """The sequence; nothing is drawn."""
        del seed
        graph, name = graph_of_workers(network)
        if not graph.edges():
            return MixingMatrix(f"fast matchings of {name}", np.eye(len(graph))[None])
        pairs = _Pairs(network, graph, self.message_bytes)
        colours = [pairs.matching(one) for one in MixingMatrix.in_matchings(graph).weights]
        found = [self._played(pairs, colours), *(self._chosen(pairs, bias) for bias in _BIASES)]
        best = max(found, key=lambda sequence: sequence.per_second)
        weights = [_averages(step, len(graph)) for step in best.steps]
        return MixingMatrix(f"fast matchings of {name}", np.stack(weights))

    def _chosen(self, pairs: "_Pairs", bias: float) -> "_Sequence":
        """Steps chosen as if each took longer by so many of the slowest pair's messages."""
        chosen = self._until_agreed(pairs, bias, None)
        kinds = list(dict.fromkeys(chosen))
        if len(kinds) > self.distinct:
            chosen = self._until_agreed(pairs, bias, kinds[: self.distinct])
        return self._played(pairs, chosen)

    def _until_agreed(
        self, pairs: "_Pairs", bias: float, among: "list[Matching] | None"
    ) -> "list[Matching]":
        """A matching for each step until all agree, of all or of those given."""
        apart = np.eye(pairs.workers) - 1 / pairs.workers
        left, steps = apart, []
        beside_s = self.step_s + bias * pairs.longest_s
        while len(steps) < self.steps and left.trace() > _AGREED * apart.trace():
            of_all = pairs.matchings(left) if among is None else among
            steps.append(max(of_all, key=partial(_per_second, left=left, beside_s=beside_s)))
            left = _after(steps[-1], left)
        return steps

    def _played(self, pairs: "_Pairs", period: "list[Matching]") -> "_Sequence":
        """What as many steps as there may be of a period reach, or fewer if then all agree."""
        apart = np.eye(pairs.workers) - 1 / pairs.workers
        left, seconds, share = apart, 0.0, 1.0
        for step in itertools.islice(itertools.cycle(period), self.steps):
            left = _after(step, left)
            seconds += step.seconds + self.step_s
            share = left.trace() / apart.trace()
            if share <= _AGREED:
                break
        return _Sequence(period, -math.log(max(share, _AGREED)) / seconds)


def fast_matchings(
    network: Topology | nx.Graph,
    message_bytes: float = MESSAGE_BYTES,
    steps: int = 64,
    *,
    step_s: float = 0.0,
    distinct: int = MOST_PLANS,
) -> MixingMatrix:
    """Pairs of neighbours average: in each step those that lessen disagreement most a second.

    What disagreement the steps so far leave does not depend on what workers have: V = P·Pᵀ, of the
    product P of their matrices. The next step is the matching W with the most
    −log(tr(W·V·W) / tr V) a second, of several that are made pair by pair, those that disagree most
    first, each within another duration: a pair is left out if its messages would end later, with
    those of the others on the links that they share. Once all agree it begins anew. A greedy
    choice: there may be faster sequences.

    It varies in time, so it is for rules that keep no estimates (`DPSGD`). Where a network changes,
    or is measured again, make another.

    Args:
        network: whose servers are the workers; in a graph of workers all edges take as long.
        message_bytes: what a worker sends in a step.
        steps: of the sequence, at most; it ends where all agree, if they do.
        step_s: seconds that a step takes beside its messages.
        distinct: different matchings, at most. JAX compiles each into messages of its own.

    Raises:
        OptionError: an argument is out of its range.
        TopologyError: servers are not connected.

    >>> from gradweave.topology import torus
    >>> fast_matchings(torus((4, 4)))
    MixingMatrix('fast matchings of torus:4x4', 16 workers, period 4, rho=0.0000)
    """
    return FastMatchings(message_bytes, steps, step_s, distinct).make(network)


def exchange_seconds(
    topology: Topology, mixing: MixingMatrix, message_bytes: float = MESSAGE_BYTES
) -> NDArray[np.float64]:
    """[T] seconds that each step's messages take, all sent at once by shortest routes.

    What its busiest link direction carries, and the latency of the longest route.
    """
    seconds = []
    for weights in mixing.weights:
        target, source = np.nonzero(weights * (1 - np.eye(mixing.workers)))
        routes = _Routes.of(topology, source, target)
        load = np.bincount(routes.links, minlength=len(topology.source))
        busiest = (load * _message_seconds(topology, message_bytes)).max()
        seconds.append(busiest + routes.latency_s.max(initial=0))
    return np.array(seconds)


class Matching(NamedTuple):
    """Pairs of workers that average in one step."""

    one: tuple[int, ...]
    """[M] a worker of each pair."""
    other: tuple[int, ...]
    """[M] the other one."""
    seconds: float
    """Until the last message has arrived."""


class _Sequence(NamedTuple):
    """Matchings of steps."""

    steps: list[Matching]
    """That recur."""
    per_second: float
    """−log of the share of disagreement that they leave, a second."""


class _Routes(NamedTuple):
    """Shortest routes of some messages."""

    links: NDArray[np.int64]
    """Link directions, one route after the other."""
    offsets: NDArray[np.int64]
    """[M+1] where each route starts."""
    latency_s: NDArray[np.float64]
    """[M] of each route."""

    @classmethod
    def of(cls, topology: Topology, source: NDArray, target: NDArray) -> "_Routes":
        """Of messages from ranks [M] to ranks [M]."""
        _, _, nodes, offsets = server_routes(topology, source, target)
        links = topology.links_along(nodes, offsets)
        offsets = offsets - np.arange(len(offsets))
        latency = np.concatenate([[0.0], np.cumsum(topology.latency_s[links])])
        return cls(links, offsets, np.diff(latency[offsets]))

    def each(self) -> list[NDArray[np.int64]]:
        """The link directions of each route."""
        return np.split(self.links, self.offsets[1:-1])


class _Pairs:
    """The pairs of workers that may average, and what their messages take."""

    def __init__(self, network: Topology | nx.Graph, graph: nx.Graph, message_bytes: float) -> None:
        self.one, self.other = np.array(sorted(graph.edges()), np.int64).reshape(-1, 2).T
        self.workers = len(graph)
        if isinstance(network, Topology):
            there = _Routes.of(network, self.one, self.other)
            back = _Routes.of(network, self.other, self.one)
            self._per_message = _message_seconds(network, message_bytes)
            self._latency = np.maximum(there.latency_s, back.latency_s)
            ends = zip(there.each(), back.each(), strict=True)
            self._links = [np.concatenate(both) for both in ends]
        else:  # each edge is a link of its own
            self._per_message = np.ones(len(self.one))
            self._latency = np.zeros(len(self.one))
            self._links = list(np.arange(len(self.one))[:, None])
        longest = [self._per_message[links].max() for links in self._links]
        self._alone = np.array(longest) + self._latency
        self.longest_s = float(self._alone.max())
        limits = np.outer(_SHARING, np.quantile(self._alone, _QUANTILES))
        self._limits = np.unique(limits.round(12)) * _TOLERANCE

    def matchings(self, left: NDArray[np.float64]) -> list[Matching]:
        """Matchings that lessen a disagreement [N, N], each within another duration."""
        own = left.diagonal()
        gain = own[self.one] + own[self.other] - 2 * left[self.one, self.other]
        order = np.argsort(-gain, kind="stable")
        order = order[gain[order] > _AGREED * left.trace()]
        within = (self._within(limit, order) for limit in self._limits.tolist())
        return [one for one in within if one.one]

    def _within(self, limit: float, order: NDArray[np.int64]) -> Matching:
        """Pairs in this order, each if both are free and its messages end in time."""
        one, other, latency_s = self.one.tolist(), self.other.tolist(), self._latency.tolist()
        free, load = [True] * self.workers, np.zeros(len(self._per_message))
        taken, idle = [], self.workers
        for pair in order[self._alone[order] <= limit].tolist():
            if not (free[one[pair]] and free[other[pair]]):
                continue
            links = self._links[pair]
            end = ((load[links] + 1) * self._per_message[links]).max() + latency_s[pair]
            if end > limit:
                continue
            load[links] += 1
            free[one[pair]] = free[other[pair]] = False
            taken.append(pair)
            idle -= 2
            if idle < 2:
                break
        return self._of(sorted(taken))

    def matching(self, weights: NDArray[np.float64]) -> Matching:
        """The pairs that average by weights [N, N]."""
        return self._of(np.flatnonzero(weights[self.one, self.other]).tolist())

    def _of(self, taken: list[int]) -> Matching:
        links = [self._links[pair] for pair in taken]
        load = np.zeros(len(self._per_message))
        for each in links:
            load[each] += 1
        held = load * self._per_message
        ends = [
            held[each].max() + self._latency[pair] for each, pair in zip(links, taken, strict=True)
        ]
        one, other = self.one[taken].tolist(), self.other[taken].tolist()
        return Matching(tuple(one), tuple(other), float(max(ends, default=0)))


def _per_second(matching: Matching, left: NDArray[np.float64], beside_s: float) -> float:
    """−log of the share of a disagreement [N, N] that the matching leaves, a second."""
    one, other = list(matching.one), list(matching.other)
    own = left.diagonal()
    gain = (own[one] + own[other] - 2 * left[one, other]).sum() / 2
    # All of it would be infinitely much: then the shortest wins.
    return -math.log(max(1 - gain / left.trace(), _AGREED)) / (matching.seconds + beside_s)


def _after(matching: Matching, left: NDArray[np.float64]) -> NDArray[np.float64]:
    """What a matching leaves of a disagreement [N, N]."""
    weights = _averages(matching, len(left))
    return weights @ left @ weights


def _averages(matching: Matching, workers: int) -> NDArray[np.float64]:
    """[N, N]."""
    one, other = list(matching.one), list(matching.other)
    weights = np.eye(workers)
    weights[one, one] = weights[other, other] = weights[one, other] = weights[other, one] = 0.5
    return weights


def _message_seconds(topology: Topology, message_bytes: float) -> NDArray[np.float64]:
    """[L] for which a message holds each link direction."""
    return message_bytes / topology.bandwidth_bytes_per_s + topology.overhead_s
