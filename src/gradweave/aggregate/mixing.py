"""Mixing matrices: whose parameters a worker averages with its own, and with which weights."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import networkx as nx
import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from gradweave.common.wording import counted
from gradweave.errors import OptionError, TopologyError
from gradweave.execute.matchings import matchings
from gradweave.topology.spec import TopologyLike, as_topology
from gradweave.topology.topology import Topology

_TOLERANCE = 1e-6
"""Tolerance for sums of weights, due to rounding in single precision."""
MOST_PLANS = 16
"""Maximum number of different steps that are compiled with separate messages; with more, all steps
use the messages of all steps."""

Pairs = tuple[tuple[int, int], ...]
"""Sender and receiver of each message."""


@dataclasses.dataclass(frozen=True, eq=False)
class MixingMatrix:
    """Weights of an average over neighbours, x_i ← Σ_j W_ij x_j, constant or periodic in time.

    The matrix must be doubly stochastic, which is checked here: rows sum to 1, so that equal
    parameters stay equal, and columns sum to 1, so that the mean of all parameters stays the same.

    Raises:
        OptionError: the matrix is not doubly stochastic; names the row or column and its sum.

    Source: Lian et al. 2017 (D-PSGD), assumption 1.
    """

    name: str
    weights: NDArray[np.float64]
    """[T, N, N] weights with which worker i averages all workers' parameters in steps t, t+T, …"""

    def __post_init__(self) -> None:
        weights = np.array(self.weights, np.float64)
        if weights.ndim != 3 or weights.shape[1] != weights.shape[2] or 0 in weights.shape:
            raise OptionError(
                f"mixing matrix: expected [N, N] or [T, N, N] weights, got shape {weights.shape}"
            )
        if not np.isfinite(weights).all():
            raise OptionError("mixing matrix: expected finite weights")
        for axis, name in ((2, "row"), (1, "column")):
            sums = weights.sum(axis)
            step, index = np.unravel_index(np.abs(sums - 1).argmax(), sums.shape)
            if abs(sums[step, index] - 1) > _TOLERANCE:
                raise OptionError(
                    f"mixing matrix: expected it to be doubly stochastic, but {name} {index} of "
                    "step "
                    f"{step} sums to {sums[step, index]:.6g}; MixingMatrix.metropolis_hastings "
                    "makes one for any network"
                )
        weights.flags.writeable = False
        object.__setattr__(self, "weights", weights)

    @classmethod
    def of(cls, weights: ArrayLike, name: str = "given") -> "MixingMatrix":
        """The matrix of given weights: [N, N], or [T, N, N] for T steps that repeat."""
        array = np.array(weights, np.float64)
        return cls(name, array[None] if array.ndim == 2 else array)

    @classmethod
    def complete(cls, workers: int) -> "MixingMatrix":
        """All workers average with each other: the exact mean, in one step."""
        return cls(f"complete:{_count(workers)}", np.full((1, workers, workers), 1 / workers))

    @classmethod
    def ring(cls, workers: int) -> "MixingMatrix":
        """Each worker averages with the preceding and the next.

        >>> MixingMatrix.ring(4).weights[0, 0].round(3).tolist()
        [0.333, 0.333, 0.0, 0.333]
        """
        return cls.metropolis_hastings(ring_graph(workers), name=f"ring:{workers}")

    @classmethod
    def metropolis_hastings(
        cls, network: TopologyLike | nx.Graph, *, name: str | None = None
    ) -> "MixingMatrix":
        """Metropolis–Hastings weights: W_ij = 1 / (1 + max(d_i, d_j)) between neighbours.

        Args:
            network: a network whose servers are the workers, with the neighbours that `neighbours`
                finds; or a graph of the workers 0 … N−1.
            name: name for reports.

        Raises:
            TopologyError: the graph's nodes are not 0 … N−1.

        Source: Xiao, Boyd and Kim 2007, equation 5.
        """
        graph, default_name = graph_of_workers(network)
        degree = dict(graph.degree())
        weights = np.zeros((len(graph), len(graph)))
        for a, b in graph.edges():
            weights[a, b] = weights[b, a] = 1 / (1 + max(degree[a], degree[b]))
        np.fill_diagonal(weights, 1 - weights.sum(1))
        return cls(name or default_name, weights[None])

    @classmethod
    def in_matchings(cls, network: TopologyLike | nx.Graph) -> "MixingMatrix":
        """Varies in time: pairs of neighbours average, one matching of an edge colouring per step.

        A worker sends its parameters once per step, regardless of its number of neighbours.
        """
        graph, name = graph_of_workers(network)
        pairs = sorted(tuple(sorted(edge)) for edge in graph.edges())
        return cls(f"matchings of {name}", _disjoint(pairs, len(graph)))

    @classmethod
    def in_clusters(cls, topology: TopologyLike) -> "MixingMatrix":
        """Varies in time: servers on the same switch average, then servers linked directly.

        On server-centric networks a few steps give the exact mean: on BCube one step per level.

        Raises:
            TopologyError: no switch has two servers and no two servers share a link, or the groups
                do not connect the network.
        """
        topology = as_topology(topology)
        groups = _groups(topology)
        servers = topology.num_servers
        graph = nx.Graph()
        graph.add_nodes_from(range(servers))
        for group in groups:
            nx.add_path(graph, group)
        if not nx.is_connected(graph):
            raise TopologyError(
                f"{topology.name}: servers that share a switch or a link are "
                f"{nx.number_connected_components(graph)} separate clusters; use "
                "MixingMatrix.in_matchings, which also joins servers through several switches"
            )
        return cls(f"clusters of {topology.name}", _disjoint(groups, servers))

    @property
    def workers(self) -> int:
        """N, the number of workers."""
        return self.weights.shape[1]

    @property
    def period(self) -> int:
        """T, the number of steps after which the weights repeat."""
        return len(self.weights)

    @cached_property
    def rho(self) -> float:
        """ρ, the factor by which a step shrinks the workers' disagreement: max(|λ₂|, |λ_N|).

        Unless there is a single symmetric matrix, it is the largest singular value of (the period's
        product minus the mean), to the power of 1/T.
        """
        product = np.eye(self.workers)
        for weights in self.weights:
            product = weights @ product
        disagreement = product - 1 / self.workers
        return float(np.linalg.norm(disagreement, 2) ** (1 / self.period))

    @property
    def spectral_gap(self) -> float:
        """1 − ρ: 1 for the exact mean, 0 if some parameters never reach all workers."""
        return 1 - self.rho

    @cached_property
    def mu(self) -> float:
        """μ = max over i ≥ 2 of |λ_i − 1|, the maximum over the period's steps."""
        identity = np.eye(self.workers)
        return max(float(np.linalg.norm(weights - identity, 2)) for weights in self.weights)

    @property
    def symmetric(self) -> bool:
        """Whether the weights are symmetric, in every step."""
        return bool(np.allclose(self.weights, self.weights.swapaxes(1, 2), atol=_TOLERANCE))

    @cached_property
    def exchanges(self) -> tuple[tuple["Exchange", ...], ...]:
        """The smallest set of exchanges for each step of the period."""
        return tuple(_exchanges(weights) for weights in self.weights)

    @cached_property
    def plans(self) -> "Plans":
        """The messages of all steps, for programs that must know them when they are compiled."""
        flat = self.weights.reshape(self.period, -1)
        _, first, of_step = np.unique(flat, axis=0, return_index=True, return_inverse=True)
        if len(first) <= MOST_PLANS:
            exchanges = [_exchanges(self.weights[step]) for step in first.tolist()]
            number = of_step.reshape(-1)
        else:
            exchanges = [_exchanges(np.abs(self.weights).max(0))]
            number = np.zeros(self.period, np.int64)
        return Plans(tuple(tuple(each.pairs for each in one) for one in exchanges), number)

    def check_workers(self, processes: int, name: str = "the mixing matrix") -> None:
        """Refuses a group with another number of processes.

        Raises:
            OptionError: the message has both numbers.
        """
        if processes != self.workers:
            raise OptionError(
                f"{name} is for {counted(self.workers, 'worker')}, the group has "
                f"{counted(processes, 'process', 'processes')}; make both for the same number"
            )

    def weights_in(self, dtype: DTypeLike) -> NDArray[Any]:
        """[T, N, N] weights for computing, whose diagonal corrects the rounding error of each row.

        Otherwise averages would grow or shrink a little in each step, and sums of them would drift.
        """
        weights = self.weights.astype(dtype)
        own = np.arange(self.workers)
        excess = weights.sum(2, dtype=np.float64) - 1
        weights[:, own, own] = weights[:, own, own] - excess
        return weights

    def __repr__(self) -> str:
        period = f", period {self.period}" if self.period > 1 else ""
        workers = counted(self.workers, "worker")
        return f"MixingMatrix({self.name!r}, {workers}{period}, rho={self.rho:.4f})"


MIXINGS: dict[str, Callable[[Topology], MixingMatrix]] = {
    "weights": MixingMatrix.metropolis_hastings,
    "matchings": MixingMatrix.in_matchings,
    "clusters": MixingMatrix.in_clusters,
}
"""All ways to make a mixing matrix from a network, by their names in specifications."""


@dataclasses.dataclass(frozen=True)
class Exchange:
    """Messages sent at the same time: each worker sends at most one and receives at most one."""

    pairs: Pairs
    weights: tuple[float, ...]
    """[N] weight of the message that each worker receives; 0 if it receives none."""


class Plans(NamedTuple):
    """Messages of the steps of a period."""

    exchanges: tuple[tuple[Pairs, ...], ...]
    """The smallest set of exchanges for each different step. If these are too many, all steps use
    the same exchanges, in which some messages arrive with weight 0."""
    of_step: NDArray[np.int64]
    """[T] index of the exchanges that each step uses."""


def ring_graph(workers: int) -> nx.Graph:
    """Workers in a ring; two workers have a single link."""
    return nx.cycle_graph(_count(workers)) if workers > 2 else nx.path_graph(_count(workers))


def neighbours(topology: TopologyLike) -> nx.Graph:
    """Determines neighbours: servers that are joined by the smallest number of links.

    Servers are neighbours if they are joined by a route of at most h links that crosses no other
    server, where h is the smallest number that connects all servers. So h is 1 if servers are
    linked directly, 2 if a single switch is between them, and larger with several switches.

    Returns:
        A graph of ranks.

    Raises:
        TopologyError: some servers are reached only through others, with switches on the way.

    >>> from gradweave.topology import bcube
    >>> sorted(neighbours(bcube(n=3, k=1))[0])
    [1, 2, 3, 6]
    """
    topology = as_topology(topology)
    distances = [_distances(topology, server) for server in topology.servers.tolist()]
    graph = nx.Graph()
    graph.add_nodes_from(range(topology.num_servers))
    for hops in sorted({length for row in distances for length in row.values()}):
        for rank, row in enumerate(distances):
            graph.add_edges_from((rank, other) for other, length in row.items() if length == hops)
        if nx.is_connected(graph):
            return graph
    raise TopologyError(f"{topology.name}: its servers are not connected")


def _distances(topology: Topology, server: int) -> dict[int, int]:
    """Number of links to each other server through switches only, by breadth-first search."""
    successors: dict[int, list[int]] = {}
    for a, b in zip(topology.source.tolist(), topology.target.tolist(), strict=True):
        successors.setdefault(a, []).append(b)
    distances, visited, frontier, hops = {}, {server}, [server], 0
    while frontier:
        hops += 1
        switches = []
        for node in frontier:
            for other in successors[node]:
                if other in visited:
                    continue
                visited.add(other)
                if topology.is_server[other]:
                    distances[int(topology.rank[other])] = hops
                else:
                    switches.append(other)
        frontier = switches
    return distances


def _groups(topology: Topology) -> list[tuple[int, ...]]:
    """Ranks of the servers on each switch, and of those linked directly."""
    on_switch: dict[int, list[int]] = {}
    pairs = []
    rank = topology.rank
    for a, b in zip(topology.source.tolist(), topology.target.tolist(), strict=True):
        if topology.is_server[a] and not topology.is_server[b]:
            on_switch.setdefault(b, []).append(int(rank[a]))
        elif topology.is_server[a] and topology.is_server[b] and a < b:
            pairs.append((int(rank[a]), int(rank[b])))
    shared = [tuple(sorted(group)) for group in on_switch.values() if len(group) > 1]
    if not shared and not pairs:
        raise TopologyError(
            f"{topology.name}: no two servers share a switch or a link; use "
            "MixingMatrix.in_matchings"
        )
    return sorted(set(shared + pairs))


def _disjoint(groups: Sequence[Sequence[int]], workers: int) -> NDArray[np.float64]:
    """[T, N, N] averages within groups, each in the first step where it overlaps no other."""
    steps: list[tuple[set[int], list[Sequence[int]]]] = []
    for group in sorted(groups, key=lambda group: (-len(group), group)):
        for busy, members in steps:
            if busy.isdisjoint(group):
                busy.update(group)
                members.append(group)
                break
        else:
            steps.append((set(group), [group]))
    weights = np.tile(np.eye(workers), (len(steps), 1, 1))
    for matrix, (_, members) in zip(weights, steps, strict=True):
        for group in members:
            matrix[np.ix_(group, group)] = 1 / len(group)
    return weights


def _exchanges(weights: NDArray[np.float64]) -> tuple[Exchange, ...]:
    """The messages of one step."""
    off_diagonal = weights * (1 - np.eye(len(weights)))
    target, source = np.nonzero(off_diagonal)
    matching = matchings(source, target, len(weights))
    exchanges = []
    for number in range(int(matching.max(initial=-1)) + 1):
        sources, targets = source[matching == number], target[matching == number]
        received = np.zeros(len(weights))
        received[targets] = off_diagonal[targets, sources]
        pairs = zip(sources.tolist(), targets.tolist(), strict=True)
        exchanges.append(Exchange(tuple(pairs), tuple(received.tolist())))
    return tuple(exchanges)


def graph_of_workers(network: TopologyLike | nx.Graph) -> tuple[nx.Graph, str]:
    """The graph of workers 0 … N−1, with an edge between neighbours, and its name.

    Raises:
        TopologyError: a graph's nodes are not 0 … N−1, or servers are not connected.
    """
    if not isinstance(network, nx.Graph):
        network = as_topology(network)
        return neighbours(network), network.name
    if set(network.nodes()) != set(range(len(network))):
        raise TopologyError(
            f"a graph of workers: expected the nodes 0 to {len(network) - 1}, got "
            f"{_shown(network.nodes())}; networkx.convert_node_labels_to_integers renames them"
        )
    graph = nx.Graph(network.edges())
    graph.add_nodes_from(network.nodes())
    graph.remove_edges_from(list(nx.selfloop_edges(graph)))
    return graph, f"graph of {len(graph)}"


def _shown(nodes: Iterable[Any]) -> str:
    return ", ".join(repr(node) for node in list(nodes)[:4]) + ", …"


def _count(workers: int) -> int:
    if workers < 1:
        raise OptionError(f"workers: expected at least 1, got {workers}")
    return workers
