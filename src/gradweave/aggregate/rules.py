"""What each decentralized method does when workers communicate: one class a method.

The signs are those of `gradweave.aggregate.gossip`.
"""

import abc
import dataclasses
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from gradweave.execute.jax_mesh.buffers import PyTree

CONSENSUS = 0.3
"""γ of CHOCO-SGD where none is given."""


class Local(NamedTuple):
    """Where a worker is before it communicates: pytrees, or in a rule vectors [size].

    All are of float32 at least, whatever the parameters' type.
    """

    x: PyTree
    """Parameters, with earlier local steps in them."""
    u: PyTree
    """What this step adds."""
    own: PyTree
    mixed: PyTree


class After(NamedTuple):
    """Where it goes on."""

    x: PyTree
    own: PyTree
    mixed: PyTree


class Talk(NamedTuple):
    """What a rule may do with others."""

    time: jax.Array
    """Which communication this is, from 1; float32."""
    compress: Callable[[jax.Array], PyTree]
    decompress: Callable[[PyTree], jax.Array]
    mix: Callable[[PyTree], jax.Array]
    """Sends a payload to the neighbours; W_ii times it, plus Σ W_ij times what came."""
    rounded: Callable[[jax.Array], jax.Array]
    """To the parameters' type, and back."""

    def progress(self, here: Local) -> jax.Array:
        """u, and earlier local steps, where `Local.own` are the parameters last communicated.

        Not the rounding with which the parameters were kept since.
        """
        return jnp.where(here.x == self.rounded(here.own), 0, here.x - here.own) + here.u


class Rule(abc.ABC):
    """How a method communicates."""

    name: ClassVar[str]
    compresses: ClassVar[bool] = True
    remembers: ClassVar[bool] = True
    """Whether the state holds `own` and `mixed`."""

    @abc.abstractmethod
    def communicate(self, here: Local, talk: Talk) -> After:
        """From where a worker is to where it goes on."""


@dataclasses.dataclass(frozen=True)
class Mix(Rule):
    """Parameters as they are."""

    name: ClassVar[str] = "d_psgd"
    compresses: ClassVar[bool] = False
    remembers: ClassVar[bool] = False

    def communicate(self, here: Local, talk: Talk) -> After:
        """One communication."""
        return After(talk.mix(talk.compress(here.x)) + here.u, here.own, here.mixed)


@dataclasses.dataclass(frozen=True)
class Naive(Rule):
    """Compressed parameters."""

    name: ClassVar[str] = "naive_psgd"
    remembers: ClassVar[bool] = False

    def communicate(self, here: Local, talk: Talk) -> After:
        """One communication."""
        return After(talk.mix(talk.compress(here.x)) + here.u, here.own, here.mixed)


@dataclasses.dataclass(frozen=True)
class Difference(Rule):
    """Compressed differences; own: the parameters, which all know."""

    name: ClassVar[str] = "dcd_psgd"

    def communicate(self, here: Local, talk: Talk) -> After:
        """One communication."""
        moved = here.mixed + talk.progress(here)
        payload = talk.compress(moved - here.own)
        own = here.own + talk.decompress(payload)
        return After(own, own, here.mixed + talk.mix(payload))


@dataclasses.dataclass(frozen=True)
class Extrapolation(Rule):
    """Compressed extrapolations; own: the parameters after the last communication."""

    name: ClassVar[str] = "ecd_psgd"

    def communicate(self, here: Local, talk: Talk) -> After:
        """One communication."""
        moved = here.mixed + talk.progress(here)
        z = (1 - talk.time / 2) * here.own + (talk.time / 2) * moved
        came = talk.mix(talk.compress(z))
        return After(moved, moved, (1 - 2 / talk.time) * here.mixed + (2 / talk.time) * came)


@dataclasses.dataclass(frozen=True)
class Choco(Rule):
    """Compressed differences from x̂; own: x̂, what others take its parameters for."""

    name: ClassVar[str] = "choco_sgd"
    consensus: float = CONSENSUS
    """γ."""

    def communicate(self, here: Local, talk: Talk) -> After:
        """One communication."""
        ahead = here.x + here.u
        payload = talk.compress(ahead - here.own)
        own = here.own + talk.decompress(payload)
        mixed = here.mixed + talk.mix(payload)
        return After(ahead + self.consensus * (mixed - own), own, mixed)
