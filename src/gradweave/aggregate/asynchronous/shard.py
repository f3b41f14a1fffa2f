"""A server's shard: its range of the parameters, and the optimizer's state for it."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from gradweave.aggregate.asynchronous.layout import Layout, ranges
from gradweave.aggregate.trial import updates_of
from gradweave.errors import OptionError

MAX_AXIS = 160
"""Maximum length of an axis of the arrays on which an optimizer is tested."""
_GRADIENT_SIZES = (1e-3, 1.0, 1e3, 0.1)
"""Sizes of the four test gradients; clipping thresholds lie between them, or are never reached."""


class Shard(NamedTuple):
    """One server's part of the parameters."""

    parameters: jax.Array
    """Parameters, [length of the range]."""
    optimizer: Any
    """The optimizer's state for these parameters only."""


Apply = Callable[[Shard, Sequence[Any | None], float], Shard]


def initial_shard(optimizer: optax.GradientTransformation, parameters: Any) -> Shard:
    """A shard before its first update.

    Args:
        optimizer: the optimizer, which is applied to each shard separately.
        parameters: [length] values.
    """
    values = jnp.asarray(parameters)
    return Shard(values, optimizer.init(values))


def compiled_apply(optimizer: optax.GradientTransformation) -> Apply:
    """Makes the function (shard, gradients, scale) -> shard, compiled.

    It applies the mean of the gradients, added up in order, and multiplies the optimizer's step by
    the scale. None represents a gradient that is skipped; if all are None, nothing is applied.
    """

    @jax.jit
    def run(shard: Shard, gradients: list[jax.Array], scale: jax.Array) -> Shard:
        mean = functools.reduce(jnp.add, gradients) / len(gradients)
        update, state = optimizer.update(mean, shard.optimizer, shard.parameters)
        update = jax.tree.map(lambda u: (u * scale).astype(u.dtype), update)
        return Shard(optax.apply_updates(shard.parameters, update), state)  # pyright: ignore[reportArgumentType]

    def apply(shard: Shard, gradients: Sequence[Any | None], scale: float) -> Shard:
        finite = [gradient for gradient in gradients if gradient is not None]
        return run(shard, finite, jnp.float32(scale)) if finite else shard

    return apply


def check_elementwise(optimizer: optax.GradientTransformation, params_layout: Layout) -> None:
    """Refuses an optimizer that updates a shard differently from the whole pytree.

    It is tested: arrays with the parameters' numbers of axes, both whole and divided into two
    shards, get the same four random gradients. This detects clipping by a global norm, trust
    ratios, factored moments and any other dependence on more than one element, unless it has a
    threshold that none of the gradients reaches (their sizes are 0.001 to 1000).

    Args:
        optimizer: the optimizer to test.
        params_layout: layout of the parameters; long axes are shortened.

    Raises:
        OptionError: the results differ, or the optimizer does not accept a vector.
    """
    template = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(tuple(min(n, MAX_AXIS) for n in x.shape), jnp.float32),
        params_layout.template,
    )
    small = Layout(template)
    if small.size < 2:
        return
    normal = np.random.default_rng(0).standard_normal((len(_GRADIENT_SIZES) + 1, small.size))
    start = jnp.asarray(normal[-1].astype(small.dtype))
    gradients = [
        jnp.asarray((size * row).astype(small.dtype))
        for size, row in zip(_GRADIENT_SIZES, normal, strict=False)
    ]
    try:
        whole, shards = _updates_whole_and_sharded(optimizer, small, start, gradients)
    except Exception as error:
        raise OptionError(
            "optimizer: it does not work on a flat range of the parameters, which is all that a "
            f"server has ({type(error).__name__}: {str(error).splitlines()[0]:.200}); remove parts "
            "that need the pytree, such as masks"
        ) from error
    if not all(map(_close, whole, shards)):
        raise OptionError(
            "optimizer: it is not elementwise: its steps on shards differ from those on the whole, "
            "as with clipping by a global norm, trust ratios and factored moments; clip "
            "inside the gradient function, or use an elementwise optimizer: sgd, adam"
        )


def _updates_whole_and_sharded(
    optimizer: optax.GradientTransformation,
    layout: Layout,
    start: jax.Array,
    gradients: list[jax.Array],
) -> tuple[list[jax.Array], list[jax.Array]]:
    """Flat updates of the whole pytree, and of its two shards."""
    whole = updates_of(optimizer, layout.tree(start), [layout.tree(g) for g in gradients])
    shards = [
        updates_of(optimizer, start[begin:end], [g[begin:end] for g in gradients])
        for begin, end in ranges(layout.size, 2)
    ]
    return (
        [layout.flat(update) for update in whole],
        [jnp.concatenate(parts) for parts in zip(*shards, strict=True)],
    )


def _close(one: jax.Array, other: jax.Array) -> bool:
    """Whether two updates are equal up to rounding, relative to their largest element."""
    return bool(jnp.abs(one - other).max() <= 1e-4 * jnp.abs(one).max())
