"""The methods of local updates and their options; made and checked without JAX.

θ are a worker's parameters, φ those with which it began its last local steps, and Δ = θ − φ is its
progress since then. All methods are forms of one outer step: a worker makes a message of θ, φ and
its outer state m, gets the average of messages, Σ_j W_ij z_j, and makes new θ, φ and m of it. W is
1/N for an average over all workers, else a mixing matrix. Methods are one text for JAX and PyTorch.
"""

import abc
import dataclasses
from typing import Any, ClassVar, NamedTuple

import networkx as nx

from gradweave.aggregate.arrays import Array
from gradweave.aggregate.compressors import Compressor, TopKChunks, Uncompressed
from gradweave.aggregate.mixing import MixingMatrix
from gradweave.aggregate.rules import MAX_LOCAL_STEPS
from gradweave.aggregate.sequences import changing_matchings
from gradweave.common.checks import check_above_zero, check_at_least_one, check_share
from gradweave.errors import OptionError

MATCHINGS = 16
"""Number of NoLoCo's random matchings, after which they repeat; a program contains messages for
each of them."""


class Worker(NamedTuple):
    """One worker's vectors, or the parts of them that are averaged."""

    x: Array
    """[size] θ."""
    shared: Array
    """[size] φ."""
    momentum: Array
    """[size] m."""


class Arrived(NamedTuple):
    """A worker's message and the average that it got."""

    message: Array
    """[size] the worker's message, before compression."""
    own: Array
    """[size] the same as the others received it."""
    average: Array
    """[size] Σ_j W_ij of all messages."""


@dataclasses.dataclass(frozen=True)
class LocalMethod(abc.ABC):
    """How workers make a message of their progress, and use the average of messages."""

    name: ClassVar[str]
    mixes: ClassVar[bool] = False
    """Whether workers average with neighbours, uncompressed, so that their φ differ. Otherwise all
    workers average, and their φ are equal."""
    feeds_back: ClassVar[bool] = False
    """Whether a worker needs its message as others received it, so that each must get it whole."""
    scattered: ClassVar[bool] = False
    """Whether fragments are random parts of the parameters; otherwise they are contiguous."""
    fragments: ClassVar[int] = 1
    """Number of parts of the parameters, which are averaged in turn at equal intervals."""
    delay: ClassVar[int] = 0
    """Number of steps that workers continue while an average is being computed."""
    quorum: ClassVar[int] = 1
    """Number of workers that must be in time; with fewer, the round is skipped."""
    keep: ClassVar[float] = 0.0
    """Share of its θ that a worker keeps when an average arrives: θ ← keep·θ + (1 − keep)·φ."""
    in_time: ClassVar[float] = 0.0
    """Share of the steps since the last average that a worker must have made to be in time. A
    worker without any step never is."""

    local_steps: int = 50
    """Steps between two averages of the same parameter."""

    def __post_init__(self) -> None:
        if not 1 <= self.local_steps <= MAX_LOCAL_STEPS:
            raise OptionError(
                f"local_steps: expected 1 to {MAX_LOCAL_STEPS:,}, got {self.local_steps}"
            )
        check_at_least_one(self, "fragments", "quorum")
        check_share(self, "in_time")
        if self.local_steps % self.fragments:
            raise OptionError(
                f"fragments: expected a divisor of local_steps, {self.local_steps}, so that they "
                f"take turns at equal intervals, got {self.fragments}"
            )
        if not 0 <= self.delay < self.interval:
            raise OptionError(
                f"delay: expected 0 to {self.interval - 1}, so that an average arrives before the "
                f"next starts, got {self.delay}"
            )

    @property
    def interval(self) -> int:
        """Steps between two communications."""
        return self.local_steps // self.fragments

    @property
    def default_compressor(self) -> Compressor:
        """The compressor if none is given."""
        return Uncompressed()

    def check_workers(self, workers: int) -> None:
        """Refuses a quorum larger than the number of workers.

        Raises:
            OptionError: the message has both numbers.
        """
        if self.quorum > workers:
            raise OptionError(f"quorum: expected 1 to {workers}, got {self.quorum}")

    def check_messages(self, compressor: Compressor | None, mixing: MixingMatrix | None) -> None:
        """Refuses a compressor or a mixing matrix that the method has no use for.

        Raises:
            OptionError: the message says what is sent instead.
        """
        if mixing is not None and not self.mixes:
            raise OptionError(f"{self.name}: all workers average, without a mixing matrix")
        if self.mixes and not isinstance(compressor, Uncompressed | None):
            raise OptionError(
                f"{self.name}: neighbours send each other one vector, uncompressed; choco_sgd "
                "compresses"
            )

    def default_mixing(self, workers: int, seed: int) -> MixingMatrix:
        """The mixing matrix if none is given."""
        return MixingMatrix.complete(workers)

    def message(self, worker: Worker) -> Array:
        """The message that a worker sends: Δ, unless a method overrides it."""
        return worker.x - worker.shared

    @abc.abstractmethod
    def take(self, worker: Worker, arrived: Arrived, mine: Any) -> Worker:
        """The worker after an average.

        Args:
            worker: the worker when the average arrives, `delay` steps after its message.
            arrived: the average.
            mine: [] whether this worker's message is part of the average.
        """


@dataclasses.dataclass(frozen=True)
class DiLoCo(LocalMethod):
    """All workers average Δ every `local_steps` steps, and apply it like a gradient with momentum.

    m ← μ·m + mean Δ, φ ← φ + η·(mean Δ + μ·m), θ ← φ.

    Source: Douillard et al. 2023 (DiLoCo), algorithm 1. η and μ are the recommended values for
    trainings with many averages; `outer_settings` has others for few averages.
    """

    name: ClassVar[str] = "diloco"

    outer_rate: float = 0.7
    """η."""
    outer_momentum: float = 0.9
    """μ, from 0 to below 1."""
    fragments: int = 1  # pyright: ignore[reportIncompatibleVariableOverride]
    delay: int = 0  # pyright: ignore[reportIncompatibleVariableOverride]
    keep: float = 0.0  # pyright: ignore[reportIncompatibleVariableOverride]
    quorum: int = 1  # pyright: ignore[reportIncompatibleVariableOverride]
    in_time: float = 0.0  # pyright: ignore[reportIncompatibleVariableOverride]

    def __post_init__(self) -> None:
        super().__post_init__()
        check_above_zero(self, "outer_rate")
        _check_momentum(self.outer_momentum)
        check_share(self, "keep")

    def take(self, worker: Worker, arrived: Arrived, mine: Any) -> Worker:
        """See `LocalMethod.take`."""
        shared, momentum = self.outer_step(worker.shared, worker.momentum, arrived.average)
        keep = self.keep * mine
        return Worker(keep * worker.x + (1 - keep) * shared, shared, momentum)

    def outer_step(self, shared: Array, momentum: Array, change: Array) -> tuple[Array, Array]:
        """New φ and m after an average.

        Args:
            shared: φ.
            momentum: m.
            change: mean of Δ.

        >>> DiLoCo(outer_rate=0.5, outer_momentum=0.5).outer_step(10.0, 2.0, 4.0)
        (13.25, 5.0)
        """
        after = self.outer_momentum * momentum + change
        return shared + self.outer_rate * (change + self.outer_momentum * after), after


FEW_AVERAGES = 100
"""Number of averages below which less momentum is better: it was with 30 averages, but not with
120."""


def outer_settings(averages: int) -> dict[str, float]:
    """Outer rate and momentum of DiLoCo for a training with a given number of averages.

    A momentum of 0.9 needs tens of averages to take effect and to forget outdated changes. With
    fewer than `FEW_AVERAGES`, the momentum is 0.7 at a rate of 1; otherwise both are the values
    that DiLoCo's authors recommend, which are the defaults.

    Args:
        averages: steps of the training divided by `local_steps`.

    Raises:
        OptionError: fewer than one.

    >>> outer_settings(30)
    {'outer_rate': 1.0, 'outer_momentum': 0.7}
    >>> DiLoCo(local_steps=10, **outer_settings(3000 // 10)) == DiLoCo(local_steps=10)
    True
    """
    if averages < 1:
        raise OptionError(f"averages: expected at least 1, got {averages}")
    if averages < FEW_AVERAGES:
        return {"outer_rate": 1.0, "outer_momentum": 0.7}
    return {"outer_rate": DiLoCo.outer_rate, "outer_momentum": DiLoCo.outer_momentum}


@dataclasses.dataclass(frozen=True)
class StreamingDiLoCo(DiLoCo):
    """DiLoCo in fragments, with averages computed while the workers continue.

    A communication has only one fragment, which lowers the peak bandwidth by that factor.

    Source: Douillard et al. 2025 (Streaming DiLoCo), algorithm 2; `delay` and `keep` are its τ and
    α.
    """

    name: ClassVar[str] = "streaming_diloco"

    fragments: int = 5
    delay: int = 5
    keep: float = 0.5


@dataclasses.dataclass(frozen=True)
class Mixed(LocalMethod):
    """A method whose workers average with neighbours, so nobody waits for all.

    A worker sends one uncompressed vector to each neighbour. It contains Δ and φ, so compressing Δ
    alone, with φ next to it, would be more bytes.
    """

    mixes: ClassVar[bool] = True

    outer_rate: float = 0.7
    """η."""
    outer_momentum: float = 0.5
    """μ, from 0 to below 1."""
    consensus: float = 1.0
    """γ, how strongly a worker moves to the average of its neighbours."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_above_zero(self, "outer_rate")
        _check_momentum(self.outer_momentum)


@dataclasses.dataclass(frozen=True)
class NoLoCo(Mixed):
    """Random pairs average, so nobody waits for more than one other worker.

    m ← μ·m + η·ΣWΔ − γ·(φ − ΣWφ), φ ← φ + m, θ ← φ. Workers' φ differ, and γ draws them together.
    It is above μ and below 2 + μ: within these bounds differences between the workers decay. The
    momentum is of φ; `GASLoC` differs from it in the momentum alone if γ = 1. By default W has
    random pairs of all workers.

    Source: Kolehmainen et al. 2025 (NoLoCo), section 3, with n = 2. There Δ and φ are two vectors.
    """

    name: ClassVar[str] = "noloco"

    def __post_init__(self) -> None:
        super().__post_init__()
        least, most = self.outer_momentum, 2 + self.outer_momentum
        if not least < self.consensus < most:
            raise OptionError(
                f"consensus: expected above outer_momentum and below 2 more, {least:g} to "
                f"{most:g}, got {self.consensus:g}"
            )

    def default_mixing(self, workers: int, seed: int) -> MixingMatrix:
        """Random pairs; if the number of workers is odd, one has no partner in each exchange."""
        if workers < 2:
            return MixingMatrix.complete(workers)
        return changing_matchings(nx.complete_graph(workers), MATCHINGS, seed)

    def message(self, worker: Worker) -> Array:
        """η·Δ + γ·φ."""
        return self.outer_rate * (worker.x - worker.shared) + self.consensus * worker.shared

    def take(self, worker: Worker, arrived: Arrived, mine: Any) -> Worker:
        """See `LocalMethod.take`."""
        momentum = self.outer_momentum * worker.momentum + arrived.average
        momentum = momentum - self.consensus * worker.shared
        shared = worker.shared + momentum
        return Worker(shared, shared, momentum)


@dataclasses.dataclass(frozen=True)
class GASLoC(Mixed):
    """Neighbours average their parameters after an outer step, in which each has separate momentum.

    y = φ + η·Δ, φ ← y − γ·(y − ΣWy) + μ·(y − the last y), θ ← φ. m is φ minus the last y. The mean
    of all workers moves exactly as in `DiLoCo`, whose m is (y − the last y) / η. By default W are
    the weights of a ring.

    Source: Cagnasso, Belilovsky and Oyallon 2026 (GASLoC, arXiv 2606.11081). The rule is that of a
    published summary of the paper (junaidaliop.github.io/zij/math/gasloc), whose step α·Λ is
    γ·(I − W) here; the paper itself was not at hand.
    """

    name: ClassVar[str] = "gasloc"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.consensus <= 1:
            raise OptionError(f"consensus: expected above 0 and at most 1, got {self.consensus:g}")

    def default_mixing(self, workers: int, seed: int) -> MixingMatrix:
        """Metropolis–Hastings weights of a ring."""
        return MixingMatrix.ring(workers)

    def message(self, worker: Worker) -> Array:
        """Returns y."""
        return worker.shared + self.outer_rate * (worker.x - worker.shared)

    def take(self, worker: Worker, arrived: Arrived, mine: Any) -> Worker:
        """See `LocalMethod.take`."""
        y = arrived.message
        ahead = self.outer_momentum * (y - worker.shared + worker.momentum)
        shared = y + self.consensus * (arrived.average - y) + ahead
        return Worker(shared, shared, shared - y)


@dataclasses.dataclass(frozen=True)
class SparseLoCo(LocalMethod):
    """All workers average compressed changes; the compression error is the outer momentum.

    e ← β·e + Δ, send C(e), e ← e − C(e), φ ← φ + η·mean C(e), θ ← φ, with m = e. Each worker sends
    C(e) to each other worker. By default C keeps the largest elements of each chunk in two bits,
    `TopKChunks`.

    Source: Sarfi et al. 2025 (SparseLoCo, arXiv 2508.15706), as summarised at
    junaidaliop.github.io/zij/math/sparseloco; the paper itself was not at hand. Default values are
    those published for Covenant-72B (arXiv 2603.08163).
    """

    name: ClassVar[str] = "sparseloco"
    feeds_back: ClassVar[bool] = True

    outer_rate: float = 1.0
    """η."""
    decay: float = 0.95
    """β, from 0 to below 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_above_zero(self, "outer_rate")
        if not 0 <= self.decay < 1:
            raise OptionError(f"decay: expected 0 to below 1, got {self.decay}")

    @property
    def default_compressor(self) -> Compressor:
        """The compressor if none is given."""
        return TopKChunks()

    def message(self, worker: Worker) -> Array:
        """β·e + Δ."""
        return self.decay * worker.momentum + (worker.x - worker.shared)

    def take(self, worker: Worker, arrived: Arrived, mine: Any) -> Worker:
        """See `LocalMethod.take`."""
        shared = worker.shared + self.outer_rate * arrived.average
        return Worker(shared, shared, arrived.message - arrived.own * mine)


@dataclasses.dataclass(frozen=True)
class SparseAveraging(LocalMethod):
    """Random parts of the parameters are averaged in turn, while the workers continue.

    The average of θ over all workers arrives `delay` steps later, and a worker adds the change that
    it usually makes in that time: s ← μ·s + (1 − μ)·(θ now − θ sent), θ ← mean θ sent + λ·s, for
    the part that was sent, with m = s. The parts are drawn again when all have had their turn.

    Source: Ajanthan et al. 2026 (AsyncMesh, arXiv 2601.22442), the half of it for data
    parallelism; the rule follows the authors' published implementation. Two things differ: s begins
    at zero, and only one average can be under way, so `delay` is below the interval. Pipelines with
    stale weights, the paper's other half, are not covered.
    """

    name: ClassVar[str] = "sparse_averaging"
    scattered: ClassVar[bool] = True

    fragments: int = 5  # pyright: ignore[reportIncompatibleVariableOverride]
    delay: int = 5  # pyright: ignore[reportIncompatibleVariableOverride]
    correction: float = 1.0
    """λ, from 0."""
    smoothing: float = 0.5
    """μ, from 0 to below 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.smoothing < 1:
            raise OptionError(f"smoothing: expected 0 to below 1, got {self.smoothing}")
        if not 0 <= self.correction < float("inf"):
            raise OptionError(f"correction: expected a number from 0, got {self.correction}")

    def message(self, worker: Worker) -> Array:
        """θ."""
        return worker.x

    def take(self, worker: Worker, arrived: Arrived, mine: Any) -> Worker:
        """See `LocalMethod.take`."""
        since = worker.x - arrived.message
        momentum = self.smoothing * worker.momentum + (1 - self.smoothing) * since
        x = arrived.average + self.correction * momentum
        return Worker(x, x, momentum)


LOCAL: dict[str, type[LocalMethod]] = {
    method.name: method
    for method in (DiLoCo, StreamingDiLoCo, NoLoCo, GASLoC, SparseLoCo, SparseAveraging)
}
"""The methods of local updates by name."""


def _check_momentum(momentum: float) -> None:
    if not 0 <= momentum < 1:
        raise OptionError(f"outer_momentum: expected 0 to below 1, got {momentum}")
