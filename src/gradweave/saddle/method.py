"""The work of a worker between two communications: the protocol of methods, and the plain methods.

γ is the rate, F the worker's operator, W the average over neighbours after each iteration.
"""

import abc
import dataclasses
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from gradweave.common.checks import check_above_zero
from gradweave.execute.jax_mesh.buffers import PyTree

Rate = float | Callable[[jax.Array], ArrayLike]
"""γ, or a function of the iteration, from 0, such as an `optax.Schedule`."""
Sampled = Callable[[PyTree, int], PyTree]
"""(z, number of the sample) → F(z, ξ), with one sample per number in each iteration."""


class Proposal(NamedTuple):
    """The result of a worker's local computation."""

    send: tuple[PyTree, ...]
    """Trees to average with neighbours': the next z, and any others that the method mixes."""
    memory: PyTree
    """Memory for the next iteration."""
    point: PyTree
    """The last point at which the operator was evaluated. For problems that are only monotone,
    theory is about the mean of these points."""


@dataclasses.dataclass(frozen=True)
class Method(abc.ABC):
    """One worker's part of an iteration: `propose`, a communication, then `receive`."""

    name: ClassVar[str]
    calls: ClassVar[int]
    """Calls of the operator per iteration."""
    vectors: ClassVar[int] = 1
    """Number of vectors of z's size sent to each neighbour per communication."""

    rate: Rate
    """γ, above 0."""

    def __post_init__(self) -> None:
        if not callable(self.rate):
            check_above_zero(self, "rate")

    def start(self, z: PyTree) -> PyTree:
        """The memory before the first iteration."""
        return ()

    def extra(self, z: PyTree) -> tuple[PyTree, ...]:
        """The initial values of trees that are mixed in addition to z; equal at all workers."""
        return ()

    @abc.abstractmethod
    def propose(self, z: PyTree, memory: PyTree, operator: Sampled, rate: jax.Array) -> Proposal:
        """The local computation of a worker."""

    def idle(self, z: PyTree, memory: PyTree) -> Proposal:
        """The proposal of a worker whose operator is not finite."""
        return Proposal((z,), memory, z)

    def receive(
        self,
        sent: tuple[PyTree, ...],
        mixed: tuple[PyTree, ...],
        memory: PyTree,
        rate: jax.Array,
        local_steps: int,
    ) -> tuple[PyTree, PyTree]:
        """The next z and the memory, from the trees that were sent and their averages."""
        return mixed[0], memory


@dataclasses.dataclass(frozen=True)
class GradientDescentAscent(Method):
    """Local gradient descent–ascent, z ← W(z − γF(z)); it diverges on bilinear problems."""

    name: ClassVar[str] = "gradient_descent_ascent"
    calls: ClassVar[int] = 1

    def propose(self, z: PyTree, memory: PyTree, operator: Sampled, rate: jax.Array) -> Proposal:
        """Z − γF(z)."""
        return Proposal((moved(z, -rate, operator(z, 0)),), memory, z)


@dataclasses.dataclass(frozen=True)
class ExtraGradient(Method):
    """Local stochastic extra-gradient, as published: z ← W(z − γF(z − γF(z, ξ), ξ′)).

    If operators differ, it ends at a distance of order γ from the solution, because each worker's
    half step uses only that worker's operator.

    Source: Beznosikov et al. 2022, algorithm 1.
    """

    name: ClassVar[str] = "extra_gradient"
    calls: ClassVar[int] = 2

    def propose(self, z: PyTree, memory: PyTree, operator: Sampled, rate: jax.Array) -> Proposal:
        """z^{2/3}."""
        half = moved(z, -rate, operator(z, 0))
        return Proposal((moved(z, -rate, operator(half, 1)),), memory, half)


@dataclasses.dataclass(frozen=True)
class PastGradient(Method):
    """The single-call form, whose half step uses the operator's value at the last half point.

    z^{1/3} = z − γF(previous z^{1/3}); z ← W(z − γF(z^{1/3})).

    Source: Popov 1980; Gidel et al. 2019, equation 10.
    """

    name: ClassVar[str] = "past_gradient"
    calls: ClassVar[int] = 1

    def start(self, z: PyTree) -> PyTree:
        """F at the previous half point: zero at first, so the first half step does not move."""
        return zeros(z)

    def propose(self, z: PyTree, memory: PyTree, operator: Sampled, rate: jax.Array) -> Proposal:
        """Z and F at its half point."""
        half = moved(z, -rate, memory)
        now = operator(half, 0)
        return Proposal((moved(z, -rate, now),), now, half)


@dataclasses.dataclass(frozen=True)
class Optimistic(Method):
    """Optimistic gradient: z ← W(z − γ(2F(z) − F(previous z))).

    Source: Daskalakis et al. 2018.
    """

    name: ClassVar[str] = "optimistic"
    calls: ClassVar[int] = 1

    def start(self, z: PyTree) -> PyTree:
        """Whether there is a previous z, and F at that point."""
        return {"any": jnp.zeros((), bool), "last": zeros(z)}

    def propose(self, z: PyTree, memory: PyTree, operator: Sampled, rate: jax.Array) -> Proposal:
        """Z − γ(2F(z) − F(previous z))."""
        now = operator(z, 0)
        last = jax.tree.map(lambda a, b: jnp.where(memory["any"], a, b), memory["last"], now)
        ahead = jax.tree.map(lambda a, b: 2 * a - b, now, last)
        kept = {"any": jnp.ones((), bool), "last": now}
        return Proposal((moved(z, -rate, ahead),), kept, z)


@dataclasses.dataclass(frozen=True)
class AdamSteps:
    """Options of Adam's steps, with defaults that are usual for GANs."""

    b1: float = 0.5
    """Decay of the first moments."""
    b2: float = 0.9
    """Decay of the second moments."""
    eps: float = 1e-8

    def _adam(self) -> optax.GradientTransformation:
        return optax.scale_by_adam(self.b1, self.b2, self.eps)


@dataclasses.dataclass(frozen=True)
class ExtraAdam(AdamSteps, Method):
    """Extra-gradient whose two steps are Adam's, as for GANs.

    Each worker has separate moments, which both operator values update.

    Source: Gidel et al. 2019, algorithm 4; Beznosikov et al. 2022, section 5.2.
    """

    name: ClassVar[str] = "extra_adam"
    calls: ClassVar[int] = 2

    def start(self, z: PyTree) -> PyTree:
        """Adam's moments."""
        return self._adam().init(z)

    def propose(self, z: PyTree, memory: PyTree, operator: Sampled, rate: jax.Array) -> Proposal:
        """z^{2/3}."""
        first, memory = self._adam().update(operator(z, 0), memory)
        half = moved(z, -rate, first)
        second, memory = self._adam().update(operator(half, 1), memory)
        return Proposal((moved(z, -rate, second),), memory, half)


def moved(z: PyTree, by: jax.Array | float, along: PyTree) -> PyTree:
    """The tree z + by · along, with z's types."""
    return jax.tree.map(lambda a, b: a + (by * b).astype(a.dtype), z, along)


def zeros(z: PyTree) -> PyTree:
    """A tree of zeros like z."""
    return jax.tree.map(jnp.zeros_like, z)
