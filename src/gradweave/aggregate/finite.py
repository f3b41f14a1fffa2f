"""The policy for gradients that are not finite: they are skipped, and counted.

A worker whose gradients are NaN or infinite takes part in all messages, since the others wait for
them, but contributes nothing. Averages are those of the other workers; under gossip the worker
mixes as if its optimizer had not been called. The aggregation's state counts its skipped updates.
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
"""Qualified name of the function in which optax skips a worker's update."""


def is_finite(tree: PyTree) -> jax.Array:
    """[] whether all elements are finite; True without elements."""
    leaves = [jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(tree)]
    return jnp.stack(leaves).all() if leaves else jnp.ones((), bool)


def mean_of_finite(
    mean: Callable[[PyTree], PyTree], gradients: PyTree, axis_name: AxisName
) -> tuple[PyTree, jax.Array]:
    """The mean over the workers whose gradients are finite, or NaN if there are none.

    An all-reduce of one number counts those workers. If all gradients are finite, the result has
    the same bits as `mean` by itself.

    Args:
        mean: mean over all workers of the axis.
        gradients: this worker's gradients.
        axis_name: name of the workers' axis.

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
    """Refuses `optax.apply_if_finite` around an aggregation, which it detects during tracing.

    A worker whose gradients are not finite would not send, so all others would wait forever.

    Raises:
        OptionError: the message says where `apply_if_finite` may be used.
    """
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_qualname == _SKIPPING:
            raise OptionError(
                "optax.apply_if_finite around an aggregation: one worker would skip messages that "
                "the others wait for; remove it, as aggregations skip gradients that are not "
                "finite themselves, or put it around the inner optimizer"
            )
        frame = frame.f_back
