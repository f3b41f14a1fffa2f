"""A training by a parameter server: parameters, gradient, optimizer and consistency."""

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np
import optax
from numpy.typing import NDArray

from gradweave.aggregate.asynchronous.clocks import Update
from gradweave.aggregate.asynchronous.consistency import Consistency, Sync, from_spec
from gradweave.aggregate.asynchronous.layout import Layout, layout, ranges, to_host
from gradweave.aggregate.asynchronous.shard import check_elementwise
from gradweave.aggregate.asynchronous.stragglers import Stragglers
from gradweave.checks import check_at_least_one
from gradweave.errors import OptionError


class Draw(NamedTuple):
    """Which data a gradient is of; the same worker and clock always have the same key."""

    key: jax.Array
    """Made of the seed, the worker and the clock."""
    worker: jax.Array
    clock: jax.Array
    """Of the worker's step, from 0."""


Gradient = Callable[[Any, Draw], tuple[Any, Any]]
"""(params, draw) -> (loss, gradient), as ``jax.value_and_grad(loss)`` makes it; compiled by the
worker."""


class Pulled(NamedTuple):
    """Parameters as the servers had them."""

    version: int
    """The fewest updates that any server had applied."""
    vector: NDArray[Any]
    """[size]."""


class Stepped(NamedTuple):
    """What a worker's step came to."""

    loss: float
    gradient: NDArray[Any]
    """[size], to be pushed."""
    aux: Any = None
    """Of the step, for `UpdateReport.aux`."""


class Computation(Protocol):
    """A worker's steps, where each depends on those before it; it lives in the worker's process."""

    @property
    def state(self) -> Any:
        """A pytree of arrays that the next step depends on; None if there is nothing."""
        ...

    @state.setter
    def state(self, state: Any) -> None: ...

    share: float
    """Of a step's duration, that which comes before the parameters are pulled again."""

    def ready(self, vector: NDArray[Any]) -> None:
        """Compiles what it needs, for parameters [size]; the state stays."""
        ...

    def step(self, clock: int, pull: Callable[[], Pulled]) -> Stepped:
        """One step, which replaces the state and changes no array of it.

        Args:
            clock: of the step.
            pull: gets the parameters, at the beginning and, if need be, again.
        """
        ...


@dataclasses.dataclass(frozen=True)
class Task:
    """A training by a parameter server."""

    params: Any
    """Initial parameters: a pytree of arrays of one floating-point type."""
    gradient: Gradient | None
    """None where there is a `computation`."""
    optimizer: optax.GradientTransformation
    """Elementwise: it is applied at each server to its range of the flattened parameters."""
    workers: int
    steps: int
    """The run ends when `steps` × `workers` gradients were applied, whoever computed them."""
    consistency: Consistency | str = dataclasses.field(default_factory=Sync)
    """`Sync`, `SSP`, `Async`, or a specification of one."""
    servers: int = 1
    seed: int = 0
    scale_by_staleness: bool = False
    """Whether an update by a gradient of staleness τ is divided by max(τ, 1). Source: Zhang et al.,
    Staleness-aware Async-SGD (2016)."""
    elastic: bool = True
    """Whether the others continue without a worker that died, until it is replaced. If not, they
    wait for its replacement, which repeats the lost step: under `Sync` no bit of the result
    changes."""
    stragglers: Stragglers = dataclasses.field(default_factory=Stragglers)
    """Planned durations of steps."""
    computation: Callable[[int, int], Computation] | None = None
    """(worker, clock) -> what the worker computes from that step on, in place of `gradient`."""
    about: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """What checkpoints say of the training, as JSON."""

    def __post_init__(self) -> None:
        check_at_least_one(self, "workers", "steps", "servers")
        if (self.gradient is None) == (self.computation is None):
            raise OptionError("gradient: expected it, or a computation in place of it")
        if not 0 <= self.seed < 2**31:
            raise OptionError(f"seed: expected 0 to {2**31 - 1}, got {self.seed}")
        for worker, _ in self.stragglers.slow:
            if not 0 <= worker < self.workers:
                raise OptionError(
                    f"stragglers: slow: expected workers 0 to {self.workers - 1}, got {worker}"
                )
        object.__setattr__(self, "consistency", from_spec(self.consistency))
        self.ranges()
        check_elementwise(self.optimizer, self.layout())

    @property
    def rule(self) -> Consistency:
        """The consistency."""
        return from_spec(self.consistency)

    @property
    def gradients(self) -> int:
        """To be applied in the whole run."""
        return self.steps * self.workers

    def layout(self) -> Layout:
        """Of the parameters."""
        return layout(self.params)

    def ranges(self) -> tuple[tuple[int, int], ...]:
        """Of each server."""
        return ranges(self.layout().size, self.servers)

    def scale(self, update: Update) -> float:
        """By which the optimizer's step is multiplied."""
        return 1 / max(1, *update.staleness) if self.scale_by_staleness else 1.0

    @property
    def computations(self) -> Callable[[int, int], Computation]:
        """(worker, clock) -> what the worker computes from that step on."""
        if self.computation is not None:
            return self.computation
        assert self.gradient is not None
        return _OfGradients(self.gradient, self.layout(), self.seed)

    def digest(self) -> str:
        """A fingerprint: a checkpoint of another training is not resumed.

        The gradient function and the optimizer are not in it, and neither is the number of steps.
        """
        layout = self.layout()
        text = (
            f"{layout.names()} {self.workers} {self.servers} {self.seed} {self.rule} "
            f"{self.scale_by_staleness}"
        )
        start = np.ascontiguousarray(to_host(self.params, layout)).tobytes()
        return hashlib.sha256(text.encode() + start).hexdigest()[:16]


@dataclasses.dataclass(frozen=True)
class _OfGradients:
    """Makes the computations of a gradient function, which is compiled once for all."""

    gradient: Gradient
    layout: Layout
    seed: int

    def __call__(self, worker: int, clock: int) -> Computation:
        return _Gradients(self._compiled, worker)

    @functools.cached_property
    def _compiled(self) -> Callable[..., Any]:
        return flat_gradient(self.gradient, self.layout, self.seed)


class _Gradients:
    """The computation of a gradient function, which keeps nothing."""

    state: Any = None
    share = 1.0

    def __init__(self, gradient: Callable[..., Any], worker: int) -> None:
        self._worker, self._gradient = worker, gradient

    def ready(self, vector: NDArray[Any]) -> None:
        """See `Computation.ready`."""
        self.step(0, lambda: Pulled(0, vector))

    def step(self, clock: int, pull: Callable[[], Pulled]) -> Stepped:
        """See `Computation.step`."""
        loss, gradient = self._gradient(pull().vector, self._worker, clock)
        return Stepped(float(loss), np.asarray(gradient))


def flat_gradient(gradient: Gradient, layout: Layout, seed: int) -> Callable[..., Any]:
    """Makes the compiled function (vector, worker, clock) -> (loss, gradient's vector).

    Args:
        gradient: the user's.
        layout: of the parameters.
        seed: of the task.
    """

    @jax.jit
    def run(vector: jax.Array, worker: jax.Array, clock: jax.Array) -> tuple[Any, jax.Array]:
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), worker), clock)
        loss, tree = gradient(layout.tree(vector), Draw(key, worker, clock))
        expected = jax.tree.structure(layout.template)
        if jax.tree.structure(tree) != expected:
            raise OptionError(
                f"gradient: expected (loss, a pytree like params: {expected}), "
                f"got {jax.tree.structure(tree)}"
            )
        return loss, layout.flat(tree).astype(layout.dtype)

    return run
