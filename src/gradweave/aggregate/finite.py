"""One policy for gradients that are not finite: they are left out, and counted.

A worker whose gradients are NaN or infinite takes part in all messages, as the others wait for
them, but contributes nothing: averages are those of the other workers, and under gossip it mixes as
if its optimizer had not been called. Its count of such updates is in the aggregation's state.
"""

import inspect
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from jax import lax

from gradweave.errors import OptionError
from gradweave.execute.axis import AxisName
from gradweave.execute.jax_mesh.buffers import PyTree

_SKIPPING = f"{optax.apply_if_finite.__name__}.<locals>.update"
"""Qualified name of the function in which optax leaves a worker's update out."""


def is_finite(tree: PyTree) -> jax.Array:
    """[] Whether all elements are; true of no elements."""
    leaves = [jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(tree)]
    return jnp.stack(leaves).all() if leaves else jnp.ones((), bool)


def mean_of_finite(
    mean: Callable[[PyTree], PyTree], gradients: PyTree, axis_name: AxisName
) -> tuple[PyTree, jax.Array]:
    """The mean over the workers whose gradients are finite: NaN where there are none.

    The workers count themselves by one all-reduce of one number. Where all gradients are finite,
    the result has the bits of `mean` alone.

    Args:
        mean: over all workers of the axis.
        gradients: this worker's.
        axis_name: of the workers' axis.

    Returns:
        The mean, and [] whether this worker's gradients are finite.
    """
    finite = is_finite(gradients)
    workers = lax.axis_size(axis_name)
    num_finite = lax.psum(finite.astype(jnp.float32), axis_name)
    average = mean(jax.tree.map(lambda leaf: jnp.where(finite, leaf, 0), gradients))
    share = num_finite / workers

    def over_finite(leaf: jax.Array) -> jax.Array:
        return jnp.where(num_finite == workers, leaf, leaf / share.astype(leaf.dtype))

    return jax.tree.map(over_finite, average), finite


def check_all_take_part() -> None:
    """Refuses `optax.apply_if_finite` around an aggregation, seen while the update is traced.

    A worker whose gradients are not finite would not send, and all others would wait for ever.

    Raises:
        OptionError: saying where to put it.
    """
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_qualname == _SKIPPING:
            raise OptionError(
                "optax.apply_if_finite around an aggregation: one worker would skip messages that "
                "the others wait for; remove it, as aggregations leave out what is not finite "
                "themselves, or put it around the optimizer inside"
            )
        frame = frame.f_back
