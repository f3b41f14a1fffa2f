"""What workers send each other inside `jax.shard_map`, with each byte counted."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from numpy.typing import NDArray

from gradweave.aggregate.compressors import Compressor
from gradweave.aggregate.mixing import MixingMatrix
from gradweave.errors import OptionError
from gradweave.execute.axis import AxisName
from gradweave.execute.jax_mesh.buffers import PyTree


class AveragingState(NamedTuple):
    """State of an exact aggregation, which keeps nothing but its counts."""

    sent_bytes: jax.Array
    """Bytes that this worker sent in the last update; float32, thus exact up to 16 MiB and to one
    part in 16 million above."""
    not_finite: jax.Array
    """Updates so far in which this worker's gradients were not finite, and so left out; int32."""


def initial_counts() -> AveragingState:
    """Before the first update."""
    return AveragingState(jnp.zeros((), jnp.float32), jnp.zeros((), jnp.int32))


def of_this_worker(by_worker: NDArray, axis_name: AxisName) -> jax.Array:
    """This worker's entry of a table [N] that all workers have."""
    return jnp.asarray(by_worker, jnp.float32)[lax.axis_index(axis_name)]


def num_bytes(payload: PyTree) -> int:
    """Of all arrays of a message."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(payload))


def check_workers(expected: int, axis_name: AxisName, of: str) -> None:
    """Refuses an axis of another length.

    Raises:
        OptionError: naming both numbers.
    """
    devices = lax.axis_size(axis_name)
    if devices != expected:
        raise OptionError(
            f"{of} is for {expected} workers, axis {axis_name!r} has {devices} devices; make one "
            "for as many"
        )


@dataclasses.dataclass
class Channel:
    """One communication of one vector [size] with the neighbours, as a rule uses it."""

    number: jax.Array
    """Of the communication, from 1; of the type in which the rule computes."""
    mixing: MixingMatrix
    step: int
    """Of the mixing matrix's period."""
    compressor: Compressor
    key: jax.Array
    """Of the compressor's random numbers."""
    size: int
    dtype: jnp.dtype
    """Of the parameters, and of what is sent."""
    axis_name: AxisName
    sent_bytes: NDArray[np.int64] = dataclasses.field(init=False)
    """[N] sent by each worker so far."""

    def __post_init__(self) -> None:
        self.sent_bytes = np.zeros(self.mixing.workers, np.int64)

    def compress(self, vector: jax.Array) -> PyTree:
        """[size] → payload, of the parameters' precision."""
        return self.compressor.compress(self.key, vector.astype(self.dtype))

    def decompress(self, payload: PyTree) -> jax.Array:
        """Payload → [size]."""
        return self.compressor.decompress(payload, self.size, self.number.dtype)

    def rounded(self, vector: jax.Array) -> jax.Array:
        """To the parameters' type, and back."""
        return vector.astype(self.dtype).astype(vector.dtype)

    def mix(self, payload: PyTree) -> jax.Array:
        """Sends a payload C(z_i) to the neighbours, and returns Σ_j W_ij C(z_j) [size]."""
        weights = self.mixing.weights[self.step]
        total = self._weight(np.diag(weights)) * self.decompress(payload)
        received = [
            (self._weight(np.array(exchange.weights)), self._exchange(payload, exchange.pairs))
            for exchange in self.mixing.exchanges[self.step]
        ]
        for weight, message in received:
            total += weight * self.decompress(message)
        return total

    def _weight(self, by_worker: NDArray) -> jax.Array:
        return of_this_worker(by_worker, self.axis_name).astype(self.number.dtype)

    def _exchange(self, payload: PyTree, pairs: tuple[tuple[int, int], ...]) -> PyTree:
        """What arrives; zeros where nothing does."""
        for source, _ in pairs:
            self.sent_bytes[source] += num_bytes(payload)
        return jax.tree.map(lambda leaf: lax.ppermute(leaf, self.axis_name, pairs), payload)


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
    values = [value for _, value in optax.tree_utils.tree_get_all_with_path(state, name)]
    if len(values) != 1:
        raise OptionError(
            f"the optimizer's state: expected one aggregation in it, found {len(values)}"
        )
    return values[0]
