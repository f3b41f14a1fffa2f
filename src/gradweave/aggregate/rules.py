"""The rules of decentralized training: what workers send, and how they use what they receive.

x are a worker's parameters, u is what its optimizer adds to them (−ηg for plain gradient descent),
W the mixing matrix, C the compressor. A rule that keeps estimates x̂_j of others' parameters stores
their mixture s = Σ_j W_ij x̂_j, to which every message is added: one more copy of the parameters,
instead of one per neighbour.

Vectors are JAX's arrays or PyTorch's tensors; a rule can be made and checked without either
framework.
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
"""Default γ of CHOCO-SGD if the compressor's error may exceed the vector itself."""
MAX_LOCAL_STEPS = 1_000_000
"""Limit above which workers would effectively never communicate."""

Strictness = Literal["refuse", "warn", "ignore"]
"""How to handle a doubtful choice. A choice that cannot work at all is always refused."""


class WorkerState(NamedTuple):
    """One worker's vectors: pytrees, or within a rule [size]; at least float32."""

    x: PyTree
    """Parameters, after local steps since the last communication."""
    estimate: PyTree
    """x̂_i, by which its neighbours know it, or its parameters after the last communication."""
    mixture: PyTree
    """s."""


class Channel(Protocol):
    """One communication of one vector [size] with the neighbours, as a rule uses it."""

    @property
    def number(self) -> Array:
        """Number of the communication, from 1."""
        ...

    @property
    def consensus(self) -> float:
        """γ that the mixing matrix and the compressor allow for vectors of this size."""
        ...

    def compress(self, vector: Array) -> PyTree:
        """[size] → payload, in the parameters' precision."""
        ...

    def decompress(self, payload: PyTree) -> Array:
        """Payload → [size]."""
        ...

    def rounded(self, vector: Array) -> Array:
        """The vector rounded to the parameters' type."""
        ...

    def mix(self, payload: PyTree) -> Array:
        """Sends a payload to all neighbours; returns Σ_j W_ij of all, its own included."""
        ...


class GossipRule(abc.ABC):
    """How workers communicate."""

    name: ClassVar[str]
    compresses: ClassVar[bool] = True
    keeps_estimates: ClassVar[bool] = True
    """Whether `WorkerState.estimate` and `WorkerState.mixture` are kept between updates."""

    @abc.abstractmethod
    def communicate(self, worker: WorkerState, u: Array, channel: Channel) -> WorkerState:
        """One communication, and the worker's state afterwards."""

    def check_mixing(self, mixing: MixingMatrix) -> None:
        """Refuses a mixing matrix that changes if the rule keeps estimates.

        Raises:
            OptionError: the message names the matrix.
        """
        if self.keeps_estimates and mixing.period > 1:
            raise OptionError(
                f"{self.name}: expected a mixing matrix that is the same in all steps, got "
                f"{mixing}; a neighbour that is absent for some steps misses their messages. "
                "d_psgd supports it"
            )


@dataclasses.dataclass(frozen=True)
class DPSGD(GossipRule):
    """Sends uncompressed parameters: x_i ← Σ_j W_ij x_j + u_i."""

    name: ClassVar[str] = "d_psgd"
    compresses: ClassVar[bool] = False
    keeps_estimates: ClassVar[bool] = False

    def communicate(self, worker: WorkerState, u: Array, channel: Channel) -> WorkerState:
        """One communication."""
        return worker._replace(x=channel.mix(channel.compress(worker.x)) + u)


@dataclasses.dataclass(frozen=True)
class NaivePSGD(DPSGD):
    """D-PSGD with compressed parameters: x_i ← Σ_j W_ij C(x_j) + u_i."""

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
    """Sends compressed extrapolations; the estimate is the parameters last communicated."""

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
    """Sends compressed differences from x̂, and keeps the compression error for later messages."""

    name: ClassVar[str] = "choco_sgd"
    consensus: float | None = None
    """γ, above 0 and at most 1, or None for the value that `aggregate.check_validity` advises."""

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
"""All rules by name."""


def _progress(worker: WorkerState, u: Array, channel: Channel) -> Array:
    """The change of the parameters since the last communication: u and earlier local steps.

    For rules whose estimate is the parameters last communicated. The estimate is more precise than
    the stored parameters, so without local steps their difference is rounding, and counts as 0.
    """
    unmoved = worker.x == channel.rounded(worker.estimate)
    return arrays_of(u).where(unmoved, 0, worker.x - worker.estimate) + u


def check_gossip_options(local_steps: int, strictness: str) -> None:
    """Refuses values out of their range.

    Raises:
        OptionError: the message names the option.
    """
    if not 1 <= local_steps <= MAX_LOCAL_STEPS:
        raise OptionError(f"local_steps: expected 1 to {MAX_LOCAL_STEPS:,}, got {local_steps}")
    if strictness not in ("refuse", "warn", "ignore"):
        raise OptionError(f"strictness: expected refuse, warn or ignore, got {strictness!r}")
