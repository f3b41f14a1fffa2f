"""A training with a parameter server: parameters, gradient, optimizer and consistency."""

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
from gradweave.common.checks import check_at_least_one
from gradweave.errors import OptionError


class Draw(NamedTuple):
    """Selects the data of a gradient; the same worker and clock always have the same key."""

    key: jax.Array
    """Random key, derived from the seed, the worker and the clock."""
    worker: jax.Array
    clock: jax.Array
    """Clock of the worker's step, from 0."""


Gradient = Callable[[Any, Draw], tuple[Any, Any]]
"""(params, draw) -> (loss, gradient), as by ``jax.value_and_grad(loss)``; workers compile it."""


class Pulled(NamedTuple):
    """Parameters as pulled from the servers."""

    version: int
    """The smallest number of updates that any server had applied."""
    vector: NDArray[Any]
    """Parameters, [size]."""


class Stepped(NamedTuple):
    """The result of a worker's step."""

    loss: float
    gradient: NDArray[Any]
    """Gradient to push, [size]."""
    aux: Any = None
    """Information about the step for `UpdateReport.aux`."""


class Computation(Protocol):
    """A worker's sequence of steps, which may depend on earlier steps; runs in its process."""

    @property
    def state(self) -> Any:
        """A pytree of arrays that the next step depends on, or None if there is no such state."""
        ...

    @state.setter
    def state(self, state: Any) -> None: ...

    share: float
    """Share of a step's duration before the parameters are pulled again."""

    def ready(self, vector: NDArray[Any]) -> None:
        """Compiles the step for parameters [size], without changing the state."""
        ...

    def step(self, clock: int, pull: Callable[[], Pulled]) -> Stepped:
        """One step, which replaces the state without modifying its arrays.

        Args:
            clock: clock of the step.
            pull: gets the parameters; called at the start of the step, and again if required.
        """
        ...


@dataclasses.dataclass(frozen=True)
class Task:
    """A training with a parameter server."""

    params: Any
    """Initial parameters: a pytree of arrays of one floating-point type."""
    gradient: Gradient | None
    """The gradient function, or None if there is a `computation`."""
    optimizer: optax.GradientTransformation
    """An elementwise optimizer: each server applies it to its range of the flattened parameters."""
    workers: int
    steps: int
    """The run ends when `steps` × `workers` gradients have been applied, from any workers."""
    consistency: Consistency | str = dataclasses.field(default_factory=Sync)
    """`Sync`, `SSP`, `Async`, or a specification."""
    servers: int = 1
    seed: int = 0
    scale_by_staleness: bool = False
    """Whether to divide the update with a gradient of staleness τ by max(τ, 1). Source: Zhang et
    al., Staleness-aware Async-SGD (2016)."""
    elastic: bool = True
    """Whether the other workers continue while one that died is replaced. If not, they wait for its
    replacement, which repeats the lost step: under `Sync` the result is then bit-identical."""
    stragglers: Stragglers = dataclasses.field(default_factory=Stragglers)
    """Planned durations of steps."""
    computation: Callable[[int, int], Computation] | None = None
    """(worker, clock) -> the worker's computation from that step on; replaces `gradient`."""
    about: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Metadata of the training for checkpoints, as JSON."""

    def __post_init__(self) -> None:
        check_at_least_one(self, "workers", "steps", "servers")
        if (self.gradient is None) == (self.computation is None):
            raise OptionError("gradient: expected either a gradient or a computation")
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
        """The consistency, parsed."""
        return from_spec(self.consistency)

    @property
    def gradients(self) -> int:
        """Number of gradients in the whole run."""
        return self.steps * self.workers

    def layout(self) -> Layout:
        """Layout of the parameters."""
        return layout(self.params)

    def ranges(self) -> tuple[tuple[int, int], ...]:
        """Range of each server."""
        return ranges(self.layout().size, self.servers)

    def scale(self, update: Update) -> float:
        """Factor for the optimizer's step in an update."""
        return 1 / max(1, *update.staleness) if self.scale_by_staleness else 1.0

    @property
    def computations(self) -> Callable[[int, int], Computation]:
        """(worker, clock) -> the worker's computation from that step on."""
        if self.computation is not None:
            return self.computation
        assert self.gradient is not None
        return _OfGradients(self.gradient, self.layout(), self.seed)

    def digest(self) -> str:
        """A fingerprint, so that a checkpoint of another training is not resumed.

        It does not cover the gradient function, the optimizer and the number of steps.
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
    """Makes computations from a gradient function, which is compiled once for all workers."""

    gradient: Gradient
    layout: Layout
    seed: int

    def __call__(self, worker: int, clock: int) -> Computation:
        return _Gradients(self._compiled, worker)

    @functools.cached_property
    def _compiled(self) -> Callable[..., Any]:
        return flat_gradient(self.gradient, self.layout, self.seed)


class _Gradients:
    """A computation from a gradient function, without state."""

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
    """Makes the compiled function (vector, worker, clock) -> (loss, flat gradient).

    Args:
        gradient: the user's gradient function.
        layout: layout of the parameters.
        seed: seed of the task.
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
