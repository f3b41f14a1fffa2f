"""Sequences of pairs that average, chosen to reduce the disagreement as fast as possible.

`MixingMatrix.in_matchings` colours the edges between neighbours and uses the colours in turn,
regardless of how long a step's messages take and of what earlier steps have mixed already. Here
each step is chosen with regard to both.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from gradweave.aggregate.mixing import MOST_PLANS, MixingMatrix, graph_of_workers
from gradweave.common.checks import check_above_zero, check_at_least_one, check_not_below_zero
from gradweave.topology.routes import server_routes
from gradweave.topology.spec import TopologyLike, as_topology
from gradweave.topology.topology import Topology
from gradweave.topology.units import as_size

MESSAGE_BYTES = 4e6
"""Default size of a message: a million parameters."""
_AGREED = 1e-9
"""Share of the initial disagreement that counts as none."""
_QUANTILES = (0, 0.25, 0.5, 0.75, 1)
"""Quantiles of the seconds that each pair takes by itself. Matchings are built for these time
limits …"""
_SHARING = (1, 2, 4)
"""… times these factors, for pairs that share links."""
_BIASES = (0, 1, 8)
"""Extra duration per step in the choice of steps, in units of the slowest pair's messages. The
choice is greedy, and short steps use up pairs that long steps would mix best."""
_TOLERANCE = 1 + 1e-9
"""Tolerance for rounding errors in durations."""


@dataclasses.dataclass(frozen=True)
class FastMatchings:
    """Settings of `fast_matchings`; the fields are its arguments."""

    message_bytes: float = MESSAGE_BYTES
    steps: int = 64
    step_s: float = 0.0
    distinct: int = MOST_PLANS

    def __post_init__(self) -> None:
        check_above_zero(self, "message_bytes")
        check_at_least_one(self, "steps", "distinct")
        check_not_below_zero(self, "step_s")

    def make(self, network: TopologyLike | nx.Graph, seed: int = 0) -> MixingMatrix:
        """The sequence; it involves no randomness."""
        del seed
        network = network if isinstance(network, nx.Graph) else as_topology(network)
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
        """A sequence chosen with `bias` times the slowest pair's messages added to each step."""
        chosen = self._until_agreed(pairs, bias, None)
        kinds = list(dict.fromkeys(chosen))
        if len(kinds) > self.distinct:
            chosen = self._until_agreed(pairs, bias, kinds[: self.distinct])
        return self._played(pairs, chosen)

    def _until_agreed(
        self, pairs: "_Pairs", bias: float, among: "list[Matching] | None"
    ) -> "list[Matching]":
        """A matching for each step until all workers agree.

        Each is chosen among the given matchings, or among all that the network allows.
        """
        apart = np.eye(pairs.workers) - 1 / pairs.workers
        left, steps = apart, []
        beside_s = self.step_s + bias * pairs.longest_s
        while len(steps) < self.steps and left.trace() > _AGREED * apart.trace():
            of_all = pairs.matchings(left) if among is None else among
            steps.append(max(of_all, key=partial(_per_second, left=left, beside_s=beside_s)))
            left = _after(steps[-1], left)
        return steps

    def _played(self, pairs: "_Pairs", period: "list[Matching]") -> "_Sequence":
        """The speed of a period, repeated up to the maximum number of steps or until all agree."""
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
    network: TopologyLike | nx.Graph,
    message_bytes: float | str = MESSAGE_BYTES,
    steps: int = 64,
    *,
    step_s: float = 0.0,
    distinct: int = MOST_PLANS,
) -> MixingMatrix:
    """Pairs of neighbours average; each step has the pairs that reduce disagreement fastest.

    The disagreement that remains after some steps does not depend on the workers' parameters: it is
    V = P·Pᵀ for the product P of the steps' matrices. The next step is the matching W with the
    largest −log(tr(W·V·W) / tr V) per second. Candidates are built pair by pair, starting with the
    pairs that disagree most, each for a different time limit: a pair is skipped if its messages
    would exceed the limit, given the others on shared links. When all workers agree, the sequence
    repeats. The choice is greedy, so faster sequences may exist.

    The sequence varies in time, so it is for rules without estimates (`DPSGD`). If a network
    changes or is measured again, make a new sequence.

    Args:
        network: a network whose servers are the workers, or a graph of workers, in which all edges
            take equally long.
        message_bytes: bytes that a worker sends per step.
        steps: maximum length of the sequence, which ends earlier if all workers agree.
        step_s: seconds that a step takes in addition to its messages.
        distinct: maximum number of different matchings. JAX compiles separate messages for each.

    Raises:
        OptionError: an argument is out of its range.
        TopologyError: servers are not connected.

    >>> from gradweave.topology import torus
    >>> fast_matchings(torus((4, 4)))
    MixingMatrix('fast matchings of torus:4x4', 16 workers, period 4, rho=0.0000)
    """
    message_bytes = as_size(message_bytes)
    return FastMatchings(message_bytes, steps, step_s, distinct).make(network)


def exchange_seconds(
    topology: TopologyLike, mixing: MixingMatrix, message_bytes: float | str = MESSAGE_BYTES
) -> NDArray[np.float64]:
    """[T] seconds for each step's messages, all sent at once by shortest routes.

    This is the time of the busiest link direction, plus the latency of the longest route.
    """
    topology = as_topology(topology)
    message_bytes = as_size(message_bytes)
    return np.array(
        [messages_seconds(topology, *ends, message_bytes) for ends in messages_of(mixing)]
    )


def messages_of(mixing: MixingMatrix) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Sender and receiver of each message [M], for each step of the mixing matrix's period."""
    for weights in mixing.weights:
        target, source = np.nonzero(weights * (1 - np.eye(mixing.workers)))
        yield source, target


def messages_seconds(
    topology: Topology, source: NDArray, target: NDArray, message_bytes: float
) -> float:
    """Seconds of messages from ranks [M] to ranks [M], as `exchange_seconds` counts them."""
    routes = _Routes.of(topology, source, target)
    load = np.bincount(routes.links, minlength=len(topology.source))
    busiest = (load * _message_seconds(topology, message_bytes)).max()
    return float(busiest + routes.latency_s.max(initial=0))


class Matching(NamedTuple):
    """Pairs of workers that average in one step."""

    one: tuple[int, ...]
    """[M] one worker of each pair."""
    other: tuple[int, ...]
    """[M] the other worker of each pair."""
    seconds: float
    """Time until the last message has arrived."""


class _Sequence(NamedTuple):
    """A sequence of matchings."""

    steps: list[Matching]
    """The matchings of one period."""
    per_second: float
    """−log of the remaining share of the disagreement, per second."""


class _Routes(NamedTuple):
    """Shortest routes of some messages."""

    links: NDArray[np.int64]
    """Link directions, route after route."""
    offsets: NDArray[np.int64]
    """[M+1] offset of each route."""
    latency_s: NDArray[np.float64]
    """[M] latency of each route."""

    @classmethod
    def of(cls, topology: Topology, source: NDArray, target: NDArray) -> "_Routes":
        """Routes of messages from ranks [M] to ranks [M]."""
        _, _, nodes, offsets = server_routes(topology, source, target)
        links = topology.links_along(nodes, offsets)
        offsets = offsets - np.arange(len(offsets))
        latency = np.concatenate([[0.0], np.cumsum(topology.latency_s[links])])
        return cls(links, offsets, np.diff(latency[offsets]))

    def each(self) -> list[NDArray[np.int64]]:
        """The link directions of each route."""
        return np.split(self.links, self.offsets[1:-1])


class _Pairs:
    """The pairs of workers that may average, and the durations of their messages."""

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
        else:  # each edge is a separate link
            self._per_message = np.ones(len(self.one))
            self._latency = np.zeros(len(self.one))
            self._links = list(np.arange(len(self.one))[:, None])
        longest = [self._per_message[links].max() for links in self._links]
        self._alone = np.array(longest) + self._latency
        self.longest_s = float(self._alone.max())
        limits = np.outer(_SHARING, np.quantile(self._alone, _QUANTILES))
        self._limits = np.unique(limits.round(12)) * _TOLERANCE

    def matchings(self, left: NDArray[np.float64]) -> list[Matching]:
        """Matchings that reduce a disagreement [N, N], one per time limit."""
        own = left.diagonal()
        gain = own[self.one] + own[self.other] - 2 * left[self.one, self.other]
        order = np.argsort(-gain, kind="stable")
        order = order[gain[order] > _AGREED * left.trace()]
        within = (self._within(limit, order) for limit in self._limits.tolist())
        return [one for one in within if one.one]

    def _within(self, limit: float, order: NDArray[np.int64]) -> Matching:
        """Takes pairs in this order, if both workers are free and the messages end in time."""
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
        """The pairs that average under weights [N, N]."""
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
    """−log of the share of a disagreement [N, N] that the matching leaves, per second."""
    one, other = list(matching.one), list(matching.other)
    own = left.diagonal()
    gain = (own[one] + own[other] - 2 * left[one, other]).sum() / 2
    # Removing all disagreement would be infinitely good; the limit lets the shortest step win then.
    return -math.log(max(1 - gain / left.trace(), _AGREED)) / (matching.seconds + beside_s)


def _after(matching: Matching, left: NDArray[np.float64]) -> NDArray[np.float64]:
    """The disagreement [N, N] that a matching leaves."""
    weights = _averages(matching, len(left))
    return weights @ left @ weights


def _averages(matching: Matching, workers: int) -> NDArray[np.float64]:
    """The weights [N, N] of a matching."""
    one, other = list(matching.one), list(matching.other)
    weights = np.eye(workers)
    weights[one, one] = weights[other, other] = weights[one, other] = weights[other, one] = 0.5
    return weights


def _message_seconds(topology: Topology, message_bytes: float) -> NDArray[np.float64]:
    """[L] seconds for which a message occupies each link direction."""
    return message_bytes / topology.bandwidth_bytes_per_s + topology.overhead_s
