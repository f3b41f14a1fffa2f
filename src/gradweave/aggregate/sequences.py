"""Sequences of mixing matrices: networks that change from step to step, and how well they mix.

Each sequence is a `MixingMatrix` with a given number of steps, which then repeat. All methods that
take a mixing matrix accept it, D-PSGD as well as those of `gradweave.saddle`. Random choices are
made here, once, from a seed, so workers that know the seed know all neighbours in each step without
communication.
"""

import csv
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from gradweave.aggregate.chosen_matchings import FastMatchings
from gradweave.aggregate.mixing import MixingMatrix
from gradweave.common.checks import check_share
from gradweave.errors import FileError, OptionError
from gradweave.topology.spec import TopologyLike, as_topology

Network = TopologyLike | nx.Graph
MOST_ENTRIES = 1 << 25
"""Maximum number of entries in all matrices of a recorded trace: 256 MiB."""
STEPS = 256
"""Default number of steps of a random sequence: long compared with the time that a network takes to
mix."""


def changing_matchings(network: Network, steps: int = STEPS, seed: int = 0) -> MixingMatrix:
    """Pairs of neighbours average; each step has a new random maximal matching of the links.

    `MixingMatrix.in_matchings` repeats the same few matchings instead. On `networkx.complete_graph`
    any two workers may meet.
    """
    base = MixingMatrix.metropolis_hastings(network)
    links = _links(base)

    def matching(rng: np.random.Generator) -> NDArray[np.float64]:
        weights, free = np.eye(base.workers), np.ones(base.workers, bool)
        for a, b in rng.permutation(links):
            if free[a] and free[b]:
                free[[a, b]] = False
                weights[np.ix_([a, b], [a, b])] = 0.5
        return weights

    return _drawn(f"changing matchings of {base.name}", matching, steps, seed)


def changing_clusters(
    workers: int, clusters: int, steps: int = STEPS, seed: int = 0
) -> MixingMatrix:
    """Clusters average; each step divides all workers randomly into parts of about equal size.

    Raises:
        OptionError: there are more clusters than workers, or none.
    """
    if not 1 <= clusters <= workers:
        raise OptionError(f"clusters: expected 1 to {workers}, got {clusters}")

    def divided(rng: np.random.Generator) -> NDArray[np.float64]:
        weights = np.zeros((workers, workers))
        for members in np.array_split(rng.permutation(workers), clusters):
            weights[np.ix_(members, members)] = 1 / len(members)
        return weights

    return _drawn(f"{clusters} changing clusters of {workers}", divided, steps, seed)


def failing_links(
    network: Network, probability: float, steps: int = STEPS, seed: int = 0
) -> MixingMatrix:
    """Metropolis–Hastings weights, with links that fail in each step, independently.

    Both ends of a failed link keep its weight for themselves: the matrix stays doubly stochastic,
    and a worker only has to know which neighbours answer.

    Raises:
        OptionError: the probability is not between 0 and 1.
    """
    _check_probability("probability", probability)
    base = MixingMatrix.metropolis_hastings(network)
    links = _links(base)

    def left(rng: np.random.Generator) -> NDArray[np.float64]:
        return _without(base.weights[0], links[rng.random(len(links)) < probability])

    return _drawn(f"{base.name}, links failing at {probability:g}", left, steps, seed)


def absent_workers(
    network: Network, leave: float, come_back: float, steps: int = STEPS, seed: int = 0
) -> MixingMatrix:
    """Metropolis–Hastings weights, with workers that leave and come back.

    An absent worker exchanges nothing and keeps its parameters; the process on its machine may
    continue with local steps.

    Args:
        network: network of all workers.
        leave: probability that a present worker is absent in the next step.
        come_back: probability that an absent worker is present in the next step.
        steps: length of the sequence; all workers are present in the first step.
        seed: seed of the random choices.

    Raises:
        OptionError: a probability is not between 0 and 1.
    """
    _check_probability("leave", leave)
    _check_probability("come_back", come_back)
    base = MixingMatrix.metropolis_hastings(network)
    links, present = _links(base), np.ones(base.workers, bool)

    def left(rng: np.random.Generator) -> NDArray[np.float64]:
        weights = _without(base.weights[0], links[~present[links].all(1)])
        changes = rng.random(base.workers)
        present[:] = np.where(present, changes >= leave, changes < come_back)
        return weights

    return _drawn(f"{base.name}, workers leaving at {leave:g}", left, steps, seed)


def recorded(graphs: Sequence[nx.Graph], name: str = "recorded") -> MixingMatrix:
    """Metropolis–Hastings weights for a recorded sequence of graphs of workers 0 … N−1.

    Raises:
        OptionError: there are no graphs, or they have different numbers of workers.
        TopologyError: a graph's nodes are not 0 … N−1.
    """
    sizes = sorted({len(graph) for graph in graphs})
    if len(sizes) != 1:
        raise OptionError(f"recorded: expected graphs of one number of workers, got {sizes}")
    steps = [MixingMatrix.metropolis_hastings(graph).weights[0] for graph in graphs]
    return MixingMatrix(name, np.stack(steps))


def read_trace(path: Path, workers: int) -> MixingMatrix:
    """The mixing matrices of a recorded trace: a CSV file of lines ``step,a,b``.

    Each line says that workers a and b could reach each other in that step, counted from 0. Steps
    without a line have no communication. The trace ends with the largest step in the file, which is
    limited so that all matrices together have at most `MOST_ENTRIES` entries.

    Raises:
        FileError: the file cannot be read; names the line that cannot be parsed.
    """
    links: dict[int, list[tuple[int, int]]] = {}
    try:
        with path.open(newline="") as file:
            for number, row in enumerate(csv.reader(file), 1):
                if number == 1 and row == ["step", "a", "b"]:
                    continue
                step, a, b = _line(path, number, row, workers)
                links.setdefault(step, []).append((a, b))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise FileError(f"{path}: cannot be read: {error}") from None
    if not links:
        raise FileError(f"{path}: expected lines of step,a,b, got none")
    weights = np.tile(np.eye(workers), (max(links) + 1, 1, 1))  # nobody communicates
    for step, pairs in links.items():
        graph = nx.empty_graph(workers)
        graph.add_edges_from(pairs)
        weights[step] = MixingMatrix.metropolis_hastings(graph).weights[0]
    return MixingMatrix(path.name, weights)


def with_local_steps(mixing: MixingMatrix, local_steps: int) -> MixingMatrix:
    """The same sequence with steps without communication in between, W = I.

    Use it to compute their `contraction`. Methods have an option `local_steps`, which does the same
    without messages.

    Raises:
        OptionError: fewer than 1.
    """
    if local_steps < 1:
        raise OptionError(f"local_steps: expected at least 1, got {local_steps}")
    if local_steps == 1:
        return mixing
    weights = np.tile(np.eye(mixing.workers), (mixing.period, local_steps, 1, 1))
    weights[:, -1] = mixing.weights
    name = f"{mixing.name}, one in {local_steps}"
    return MixingMatrix(name, weights.reshape(-1, mixing.workers, mixing.workers))


class Drawn(Protocol):
    """A sequence as specifications describe it; its fields are the options."""

    def make(self, network: Network, seed: int) -> MixingMatrix:
        """The sequence.

        Args:
            network: network of all workers; some sequences only use its number of workers.
            seed: seed of the random choices.
        """
        ...


@dataclasses.dataclass(frozen=True)
class ChangingMatchings:
    """`changing_matchings`."""

    steps: int = STEPS

    def make(self, network: Network, seed: int) -> MixingMatrix:
        """See `Drawn`."""
        return changing_matchings(network, self.steps, seed)


@dataclasses.dataclass(frozen=True)
class ChangingClusters:
    """`changing_clusters`."""

    clusters: int = 2
    steps: int = STEPS

    def make(self, network: Network, seed: int) -> MixingMatrix:
        """See `Drawn`; any workers may meet, regardless of the network."""
        return changing_clusters(_workers(network), self.clusters, self.steps, seed)


@dataclasses.dataclass(frozen=True)
class FailingLinks:
    """`failing_links`."""

    probability: float = 0.1
    steps: int = STEPS

    def make(self, network: Network, seed: int) -> MixingMatrix:
        """See `Drawn`."""
        return failing_links(network, self.probability, self.steps, seed)


@dataclasses.dataclass(frozen=True)
class AbsentWorkers:
    """`absent_workers`."""

    leave: float = 0.05
    come_back: float = 0.2
    steps: int = STEPS

    def make(self, network: Network, seed: int) -> MixingMatrix:
        """See `Drawn`."""
        return absent_workers(network, self.leave, self.come_back, self.steps, seed)


@dataclasses.dataclass(frozen=True)
class Trace:
    """`read_trace`."""

    file: str = ""

    def __post_init__(self) -> None:
        if not self.file:
            raise OptionError("trace: expected file=PATH, of lines step,a,b")

    def make(self, network: Network, seed: int) -> MixingMatrix:
        """See `Drawn`; uses no randomness, and only the network's number of workers."""
        return read_trace(Path(self.file), _workers(network))


SEQUENCES: dict[str, type[Drawn]] = {
    "fast_matchings": FastMatchings,
    "changing_matchings": ChangingMatchings,
    "changing_clusters": ChangingClusters,
    "failing_links": FailingLinks,
    "absent_workers": AbsentWorkers,
    "trace": Trace,
}
"""All sequences by their names in specifications."""


@dataclasses.dataclass(frozen=True)
class Contraction:
    """How well a window of τ steps mixes: the p of ‖ZW…W − Z̄‖² ≤ (1 − p)‖Z − Z̄‖²."""

    window: int
    """τ, the number of steps."""
    p: float
    """p of the worst window, for the worst Z; 0 if some workers get no information from others in
    it."""
    expected: float
    """p for the mean over all windows, as theory requires for random sequences."""


def contraction(mixing: MixingMatrix, window: int) -> Contraction:
    """Computes p, over windows that start in any step of the period.

    Source: Beznosikov et al. 2022, assumption on the sequence of matrices; Koloskova et al. 2020,
    assumption 4.

    Raises:
        OptionError: the window has no steps.

    >>> round(contraction(MixingMatrix.ring(16), 1).p, 4)
    0.0989
    >>> contraction(MixingMatrix.complete(16), 1)
    Contraction(window=1, p=1.0, expected=1.0)
    """
    if window < 1:
        raise OptionError(f"window: expected at least 1 step, got {window}")
    apart = mixing.weights - 1 / mixing.workers
    product = apart
    for later in range(1, window):
        product = np.roll(apart, -later, axis=0) @ product
    squares = product.swapaxes(1, 2) @ product
    worst = float(np.linalg.norm(squares, 2, axis=(1, 2)).max())
    mean = float(np.linalg.norm(squares.mean(0), 2))
    return Contraction(window, _share(1 - worst), _share(1 - mean))


def best_contraction(mixing: MixingMatrix, longest: int = 64) -> Contraction:
    """The window with the smallest τ/p, on which rates in theory depend; of 1, 2, 4, … steps.

    Windows of more than `longest` steps are tried only while p is 0, up to 4096.
    """
    best, window = contraction(mixing, 1), 1
    while window < longest or (best.expected == 0 and window < 4096):
        window *= 2
        other = contraction(mixing, window)
        if other.expected > 0 and (
            best.expected == 0 or window / other.expected < best.window / best.expected
        ):
            best = other
    return best


def _share(value: float) -> float:
    """The value limited to 0 … 1, against rounding errors."""
    return 0.0 if value < 1e-12 else 1.0 if value > 1 - 1e-12 else value


def _drawn(
    name: str, draw: Callable[[np.random.Generator], NDArray], steps: int, seed: int
) -> MixingMatrix:
    if steps < 1:
        raise OptionError(f"steps: expected at least 1, got {steps}")
    rng = np.random.default_rng(seed)
    return MixingMatrix(name, np.stack([draw(rng) for _ in range(steps)]))


def _workers(network: Network) -> int:
    return len(network) if isinstance(network, nx.Graph) else as_topology(network).num_servers


def _links(mixing: MixingMatrix) -> NDArray[np.int64]:
    """[E, 2] pairs of neighbours."""
    return np.argwhere(np.triu(mixing.weights[0], 1) > 0)


def _without(weights: NDArray[np.float64], failed: NDArray[np.int64]) -> NDArray[np.float64]:
    """Weights without some links, whose weights their ends keep."""
    left = weights.copy()
    for a, b in failed:
        left[[a, b], [a, b]] += left[a, b]
        left[a, b] = left[b, a] = 0
    return left


def _check_probability(name: str, value: float) -> None:
    check_share(dataclasses.make_dataclass("Given", [name])(value), name)


def _line(path: Path, number: int, row: list[str], workers: int) -> tuple[int, int, int]:
    try:
        step, a, b = (int(cell) for cell in row)
    except ValueError:
        raise FileError(f"{path}, line {number}: expected step,a,b, got {row!r:.60}") from None
    most = min(1_000_000, MOST_ENTRIES // max(1, workers**2))
    if not (0 <= a < workers and 0 <= b < workers and 0 <= step < most):
        raise FileError(
            f"{path}, line {number}: expected a step from 0 to {most - 1} and workers from 0 to "
            f"{workers - 1}, got {f'{step},{a},{b}':.60}"
        )
    return step, a, b
