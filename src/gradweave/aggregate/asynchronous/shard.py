"""A server's shard: its range of the parameters and the optimizer's state for it."""

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
"""Elements along an axis of the arrays that an optimizer is tried on."""
_GRADIENT_SIZES = (1e-3, 1.0, 1e3, 0.1)
"""Of successive gradients; thresholds of clipping lie between them, or are never reached."""


class Shard(NamedTuple):
    """One server's part of the parameters."""

    parameters: jax.Array
    """[length of the range]."""
    optimizer: Any
    """Its state, for these parameters alone."""


Apply = Callable[[Shard, Sequence[Any | None], float], Shard]


def initial_shard(optimizer: optax.GradientTransformation, parameters: Any) -> Shard:
    """A shard before its first update.

    Args:
        optimizer: applied to each shard by itself.
        parameters: [length] values.
    """
    values = jnp.asarray(parameters)
    return Shard(values, optimizer.init(values))


def compiled_apply(optimizer: optax.GradientTransformation) -> Apply:
    """Makes the function (shard, gradients, scale) -> shard, compiled.

    It applies the mean of the gradients, added up in their order, and multiplies the optimizer's
    step by the scale. None stands for a gradient that is left out; if all are, nothing is applied.
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
    """Refuses an optimizer whose updates of a shard differ from those of the whole pytree.

    It is tried: arrays of the parameters' ranks, whole and divided into two shards, get the same
    four random gradients. That detects clipping by a global norm, trust ratios, factored moments
    and whatever else depends on more than one element, but no threshold that none of the gradients
    reaches (sizes 0.001 to 1000).

    Args:
        optimizer: to try.
        params_layout: of the parameters that it is for; long axes are shortened.

    Raises:
        OptionError: where results differ, or the optimizer does not take a vector.
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
            "optimizer: it does not work on a flat range of the parameters, which is what a "
            f"server has ({type(error).__name__}: {str(error).splitlines()[0]:.200}); remove "
            "what needs the pytree, such as masks"
        ) from error
    if not all(map(_close, whole, shards)):
        raise OptionError(
            "optimizer: it is not elementwise: divided into shards it makes other steps than on "
            "the whole, as clipping by a global norm, trust ratios and factored moments do; clip "
            "inside the gradient function, or take an elementwise optimizer: sgd, adam"
        )


def _updates_whole_and_sharded(
    optimizer: optax.GradientTransformation,
    layout: Layout,
    start: jax.Array,
    gradients: list[jax.Array],
) -> tuple[list[jax.Array], list[jax.Array]]:
    """Flat updates of the pytree, and of its two shards."""
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
    """Whether two updates are equal but for rounding, relative to their largest element."""
    return bool(jnp.abs(one - other).max() <= 1e-4 * jnp.abs(one).max())
