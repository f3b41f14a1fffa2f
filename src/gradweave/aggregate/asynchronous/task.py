"""A training by a parameter server: parameters, gradient, optimizer and consistency."""

import dataclasses
import hashlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

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


@dataclasses.dataclass(frozen=True)
class Task:
    """A training by a parameter server."""

    params: Any
    """Initial parameters: a pytree of arrays of one floating-point type."""
    gradient: Gradient
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

    def __post_init__(self) -> None:
        check_at_least_one(self, "workers", "steps", "servers")
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
