"""What a server holds, its range of the parameters and the optimizer's state for it."""

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

LONGEST = 160
"""Elements along an axis of the arrays that an optimizer is tried on."""
_GRADIENTS = (1e-3, 1.0, 1e3, 0.1)
"""Their sizes, one after the other; thresholds of clipping lie between, or nowhere near."""


class Shard(NamedTuple):
    """One server's part."""

    parameters: jax.Array
    """[length of the range]."""
    optimizer: Any
    """Its state for these parameters alone."""


Apply = Callable[[Shard, Sequence[Any | None], float], Shard]


def fresh(optimizer: optax.GradientTransformation, parameters: Any) -> Shard:
    """A shard before its first update.

    Args:
        optimizer: applied to each shard by itself.
        parameters: [length] values.
    """
    values = jnp.asarray(parameters)
    return Shard(values, optimizer.init(values))


def applying(optimizer: optax.GradientTransformation) -> Apply:
    """Makes the function (shard, gradients, scale) -> shard, compiled.

    It applies the mean of the gradients, added up in their order, and multiplies the optimizer's
    step by the scale. None stands for a gradient that is left out; of nothing else nothing is done.
    """

    @jax.jit
    def run(shard: Shard, gradients: list[jax.Array], scale: jax.Array) -> Shard:
        mean = functools.reduce(jnp.add, gradients) / len(gradients)
        change, state = optimizer.update(mean, shard.optimizer, shard.parameters)
        change = jax.tree.map(lambda c: (c * scale).astype(c.dtype), change)
        return Shard(optax.apply_updates(shard.parameters, change), state)  # pyright: ignore[reportArgumentType]

    def apply(shard: Shard, gradients: Sequence[Any | None], scale: float) -> Shard:
        there = [gradient for gradient in gradients if gradient is not None]
        return run(shard, there, jnp.float32(scale)) if there else shard

    return apply


def check_elementwise(optimizer: optax.GradientTransformation, params_layout: Layout) -> None:
    """Refuses an optimizer that does to a shard something else than to the whole pytree.

    It is tried: arrays of the parameters' ranks, whole and cut in two shards, get the same four
    random gradients. That finds clipping by a global norm, trust ratios, factored moments and
    whatever else looks at more than one element; a threshold that none of the gradients reaches
    (sizes 0.001 to 1000) is not found.

    Args:
        optimizer: to try.
        params_layout: of the parameters that it is for; long axes are shortened.

    Raises:
        OptionError: where results differ, or the optimizer does not take a vector.
    """
    template = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(tuple(min(n, LONGEST) for n in x.shape), jnp.float32),
        params_layout.template,
    )
    small = Layout(template)
    if small.size < 2:
        return
    draws = np.random.default_rng(0).standard_normal((len(_GRADIENTS) + 1, small.size))
    start = jnp.asarray(draws[-1].astype(small.dtype))
    given = [size * draw for size, draw in zip(_GRADIENTS, draws, strict=False)]
    given = [jnp.asarray(gradient.astype(small.dtype)) for gradient in given]
    try:
        whole = updates_of(optimizer, small.tree(start), [small.tree(g) for g in given])
        parts = [
            updates_of(optimizer, start[begin:end], [g[begin:end] for g in given])
            for begin, end in ranges(small.size, 2)
        ]
    except Exception as error:
        raise OptionError(
            "optimizer: it does not work on a flat range of the parameters, which is what a "
            f"server has ({type(error).__name__}: {str(error).splitlines()[0]:.200}); leave out "
            "what needs the pytree, such as masks"
        ) from error
    changes = zip(whole, *parts, strict=True)
    if not all(_close(small.flat(one), jnp.concatenate(cut)) for one, *cut in changes):
        raise OptionError(
            "optimizer: it is not elementwise: cut into shards it makes other steps than on the "
            "whole, as clipping by a global norm, trust ratios and factored moments do; clip "
            "inside the gradient function, or take an elementwise optimizer: sgd, adam"
        )


def _close(one: jax.Array, other: jax.Array) -> bool:
    """Whether two changes are equal but for rounding, beside their largest element."""
    return bool(jnp.abs(one - other).max() <= 1e-4 * jnp.abs(one).max())
