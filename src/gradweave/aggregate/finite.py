"""One policy for numbers that are not finite: the worker is counted, and the others do without.

A worker whose gradients are NaN or infinite takes part in all messages, as the others wait for
them, but with nothing of its own: averages are those of the other workers, and under gossip it
mixes as if its optimizer had stood still. Its count of such updates is in the aggregation's state.
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
    each = [jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(tree)]
    return jnp.stack(each).all() if each else jnp.ones((), bool)


def mean_of_finite(
    mean: Callable[[PyTree], PyTree], gradients: PyTree, axis_name: AxisName
) -> tuple[PyTree, jax.Array]:
    """The mean over the workers whose gradients are finite: NaN where there are none.

    Workers tell each other by one number whether theirs are. With all finite the result has the
    bits of `mean` alone.

    Args:
        mean: over all workers of the axis.
        gradients: this worker's.
        axis_name: of the workers' axis.

    Returns:
        The mean, and [] whether this worker's gradients are finite.
    """
    finite = is_finite(gradients)
    workers = lax.axis_size(axis_name)
    counted = lax.psum(finite.astype(jnp.float32), axis_name)
    average = mean(jax.tree.map(lambda leaf: jnp.where(finite, leaf, 0), gradients))
    share = counted / workers

    def of_counted(leaf: jax.Array) -> jax.Array:
        return jnp.where(counted == workers, leaf, leaf / share.astype(leaf.dtype))

    return jax.tree.map(of_counted, average), finite


def check_all_take_part() -> None:
    """Refuses `optax.apply_if_finite` around an aggregation, seen while the update is traced.

    A worker whose gradients are not finite would leave its messages out, for which all others wait
    without end.

    Raises:
        OptionError: saying where it belongs.
    """
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_qualname == _SKIPPING:
            raise OptionError(
                "optax.apply_if_finite around an aggregation: one worker would skip messages that "
                "the others wait for; leave it out, as aggregations leave out what is not finite "
                "themselves, or put it around the optimizer inside"
            )
        frame = frame.f_back
