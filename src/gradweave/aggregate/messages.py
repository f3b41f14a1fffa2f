"""What workers send each other inside `jax.shard_map`, with each byte counted."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from numpy.typing import NDArray

from gradweave.aggregate.mixing import MixingMatrix
from gradweave.errors import OptionError
from gradweave.execute.axis import AxisName
from gradweave.execute.jax_mesh.buffers import PyTree


class Sent(NamedTuple):
    """State of what sends without remembering anything."""

    sent_bytes: jax.Array
    """Bytes that this worker sent in the last update; float32, thus exact up to 16 MiB and to one
    part in 16 million above."""
    not_finite: jax.Array
    """Updates so far in which this worker's gradients were not finite, and so left out; int32."""


def nothing_sent() -> jax.Array:
    """Bytes before the first update."""
    return jnp.zeros((), jnp.float32)


def none_left_out() -> jax.Array:
    """`Sent.not_finite` before the first update."""
    return jnp.zeros((), jnp.int32)


def of_this_worker(by_worker: NDArray, axis_name: AxisName) -> jax.Array:
    """Its entry of a table [N] that all have."""
    return jnp.asarray(by_worker, jnp.float32)[lax.axis_index(axis_name)]


def num_bytes(payload: PyTree) -> int:
    """Of all arrays of a message."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(payload))


def check_workers(expected: int, axis_name: AxisName, what: str) -> None:
    """Refuses an axis of another length.

    Raises:
        OptionError: naming both numbers.
    """
    found = lax.axis_size(axis_name)
    if found != expected:
        raise OptionError(
            f"{what} is for {expected} workers, axis {axis_name!r} has {found} devices; make one "
            "for as many"
        )


def exchanged(
    payload: PyTree, mixing: MixingMatrix, step: int, axis_name: AxisName
) -> tuple[list[tuple[jax.Array, PyTree]], NDArray[np.int64]]:
    """Sends a message to all that listen in a step.

    Args:
        payload: the message.
        mixing: who listens to whom.
        step: of its period.
        axis_name: of the workers' axis.

    Returns:
        What came, each with its weight, which is 0 where nothing came; and [N] the bytes that each
        worker sent.
    """
    arrived, sent = [], np.zeros(mixing.workers, np.int64)
    for exchange in mixing.exchanges[step]:
        came = jax.tree.map(
            lambda leaf, e=exchange: lax.ppermute(leaf, axis_name, e.pairs), payload
        )
        arrived.append((of_this_worker(np.array(exchange.weights), axis_name), came))
        for source, _ in exchange.pairs:
            sent[source] += num_bytes(payload)
    return arrived, sent


def sent_bytes(state: optax.OptState) -> jax.Array:
    """Bytes that this worker sent in the last update.

    Args:
        state: of an optimizer with one aggregation in it.

    Raises:
        OptionError: there is none, or more than one.
    """
    return _of_aggregation(state, "sent_bytes")


def not_finite(state: optax.OptState) -> jax.Array:
    """Updates so far in which this worker's gradients were not finite, and so were left out.

    Args:
        state: of an optimizer with one aggregation in it.

    Raises:
        OptionError: there is none, or more than one.
    """
    return _of_aggregation(state, "not_finite")


def _of_aggregation(state: optax.OptState, name: str) -> jax.Array:
    found = [value for _, value in optax.tree_utils.tree_get_all_with_path(state, name)]
    if len(found) != 1:
        raise OptionError(
            f"the optimizer's state: expected one aggregation in it, found {len(found)}"
        )
    return found[0]
