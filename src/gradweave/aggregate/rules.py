"""The rules of decentralized training: what workers send each other, and what they make of it.

x are a worker's parameters, u what its optimizer adds to them (−ηg of plain gradient descent), W
the mixing matrix, C the compressor. A rule that keeps estimates x̂_j of others' parameters keeps
their mixture s = Σ_j W_ij x̂_j, to which everything sent is added: one more copy of the parameters
instead of one for each neighbour.

Vectors are JAX's arrays or PyTorch's tensors; a rule can be made and checked without both.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, Protocol

from gradweave.aggregate.arrays import Array, PyTree, arrays_of
from gradweave.errors import OptionError

if TYPE_CHECKING:
    from gradweave.aggregate.mixing import MixingMatrix

CONSENSUS = 0.3
"""γ of CHOCO-SGD where none is given, and the compressor may lose more than all."""
MAX_LOCAL_STEPS = 1_000_000
"""With more, workers would in effect never communicate."""

Strictness = Literal["refuse", "warn", "ignore"]
"""What to do about a doubtful choice. What cannot work at all is always refused."""


class WorkerState(NamedTuple):
    """One worker's vectors: pytrees, or in a rule [size]; float32 at least."""

    x: PyTree
    """Parameters, after earlier local steps."""
    estimate: PyTree
    """x̂_i, by which its neighbours know it, or its parameters after the last communication."""
    mixture: PyTree
    """s."""


class Channel(Protocol):
    """One communication of one vector [size] with the neighbours, as a rule uses it."""

    @property
    def number(self) -> Array:
        """Of the communication, from 1."""
        ...

    @property
    def consensus(self) -> float:
        """γ that the mixing matrix and the compressor bear for vectors of this size."""
        ...

    def compress(self, vector: Array) -> PyTree:
        """[size] → payload, of the parameters' precision."""
        ...

    def decompress(self, payload: PyTree) -> Array:
        """Payload → [size]."""
        ...

    def rounded(self, vector: Array) -> Array:
        """To the parameters' type, and back."""
        ...

    def mix(self, payload: PyTree) -> Array:
        """Sends a payload to all neighbours: Σ_j W_ij of what arrives, its own with it, [size]."""
        ...


class GossipRule(abc.ABC):
    """How workers communicate."""

    name: ClassVar[str]
    compresses: ClassVar[bool] = True
    keeps_estimates: ClassVar[bool] = True
    """Whether `WorkerState.estimate` and `WorkerState.mixture` are kept between updates."""

    @abc.abstractmethod
    def communicate(self, worker: WorkerState, u: Array, channel: Channel) -> WorkerState:
        """One communication, and what follows from it for this worker."""

    def check_mixing(self, mixing: MixingMatrix) -> None:
        """Refuses a mixing matrix that changes, where estimates are kept.

        Raises:
            OptionError: naming it.
        """
        if self.keeps_estimates and mixing.period > 1:
            raise OptionError(
                f"{self.name}: expected a mixing matrix that is the same in all steps, got "
                f"{mixing}; a neighbour that listens only now and then misses what was sent "
                "meanwhile. d_psgd takes it"
            )


@dataclasses.dataclass(frozen=True)
class DPSGD(GossipRule):
    """Sends parameters as they are: x_i ← Σ_j W_ij x_j + u_i."""

    name: ClassVar[str] = "d_psgd"
    compresses: ClassVar[bool] = False
    keeps_estimates: ClassVar[bool] = False

    def communicate(self, worker: WorkerState, u: Array, channel: Channel) -> WorkerState:
        """One communication."""
        return worker._replace(x=channel.mix(channel.compress(worker.x)) + u)


@dataclasses.dataclass(frozen=True)
class NaivePSGD(DPSGD):
    """The same with compressed parameters: x_i ← Σ_j W_ij C(x_j) + u_i."""

    name: ClassVar[str] = "naive_psgd"
    compresses: ClassVar[bool] = True


@dataclasses.dataclass(frozen=True)
class DCDPSGD(GossipRule):
    """Sends compressed differences; the estimate is the parameters, which all neighbours know."""

    name: ClassVar[str] = "dcd_psgd"

    def communicate(self, worker: WorkerState, u: Array, channel: Channel) -> WorkerState:
        """One communication."""
        ahead = worker.mixture + _progress(worker, u, channel)
        payload = channel.compress(ahead - worker.estimate)
        x = worker.estimate + channel.decompress(payload)
        return WorkerState(x, x, worker.mixture + channel.mix(payload))


@dataclasses.dataclass(frozen=True)
class ECDPSGD(GossipRule):
    """Sends compressed extrapolations; the estimate is the parameters it last communicated."""

    name: ClassVar[str] = "ecd_psgd"

    def communicate(self, worker: WorkerState, u: Array, channel: Channel) -> WorkerState:
        """One communication."""
        t = channel.number
        ahead = worker.mixture + _progress(worker, u, channel)
        z = (1 - t / 2) * worker.estimate + (t / 2) * ahead
        mixed = channel.mix(channel.compress(z))
        return WorkerState(ahead, ahead, (1 - 2 / t) * worker.mixture + (2 / t) * mixed)


@dataclasses.dataclass(frozen=True)
class ChocoSGD(GossipRule):
    """Sends compressed differences from x̂, and keeps what was not sent for later."""

    name: ClassVar[str] = "choco_sgd"
    consensus: float | None = None
    """γ, above 0 and at most 1; None: as `gradweave.aggregate.check` advises."""

    def __post_init__(self) -> None:
        if self.consensus is not None and not 0 < self.consensus <= 1:
            raise OptionError(f"consensus: expected above 0 and at most 1, got {self.consensus}")

    def communicate(self, worker: WorkerState, u: Array, channel: Channel) -> WorkerState:
        """One communication."""
        ahead = worker.x + u
        payload = channel.compress(ahead - worker.estimate)
        estimate = worker.estimate + channel.decompress(payload)
        mixture = worker.mixture + channel.mix(payload)
        gamma = channel.consensus if self.consensus is None else self.consensus
        return WorkerState(ahead + gamma * (mixture - estimate), estimate, mixture)


RULES: dict[str, type[GossipRule]] = {
    rule.name: rule for rule in (DPSGD, DCDPSGD, ECDPSGD, ChocoSGD, NaivePSGD)
}
"""Every rule by its name."""


def _progress(worker: WorkerState, u: Array, channel: Channel) -> Array:
    """U and earlier local steps, where the estimate is the parameters last communicated.

    Without the rounding with which the parameters have been kept since.
    """
    unmoved = worker.x == channel.rounded(worker.estimate)
    return arrays_of(u).where(unmoved, 0, worker.x - worker.estimate) + u


def check_gossip_options(local_steps: int, strictness: str) -> None:
    """Refuses values out of their range.

    Raises:
        OptionError: naming them.
    """
    if not 1 <= local_steps <= MAX_LOCAL_STEPS:
        raise OptionError(f"local_steps: expected 1 to {MAX_LOCAL_STEPS:,}, got {local_steps}")
    if strictness not in ("refuse", "warn", "ignore"):
        raise OptionError(f"strictness: expected refuse, warn or ignore, got {strictness!r}")
