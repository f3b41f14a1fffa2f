"""The messages between workers inside `jax.shard_map`, with their bytes counted."""

import dataclasses
from collections.abc import Iterable
from functools import cached_property, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from numpy.typing import NDArray

from gradweave.aggregate.compressors import Compressor
from gradweave.aggregate.mixing import MixingMatrix, Pairs
from gradweave.aggregate.validity import advised_consensus
from gradweave.common.wording import counted
from gradweave.errors import OptionError
from gradweave.execute.axis import AxisName
from gradweave.execute.jax_mesh.buffers import PyTree


class AveragingState(NamedTuple):
    """State of an exact aggregation, which only has counts."""

    sent_bytes: jax.Array
    """Bytes that this worker sent in the last update; as a float32 it is exact up to 16 MiB, and to
    one part in 16 million above."""
    not_finite: jax.Array
    """Number of updates so far in which this worker's gradients were not finite and therefore
    skipped; int32."""


def initial_counts() -> AveragingState:
    """The counts before the first update."""
    return AveragingState(jnp.zeros((), jnp.float32), jnp.zeros((), jnp.int32))


def of_this_worker(
    by_worker: NDArray | jax.Array, axis_name: AxisName, dtype: jnp.dtype | type = jnp.float32
) -> jax.Array:
    """This worker's entry of a table [N] that is the same at all workers."""
    return jnp.asarray(by_worker, dtype)[lax.axis_index(axis_name)]


def num_bytes(payload: PyTree) -> int:
    """Number of bytes of all arrays in a message."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(payload))


def message_bytes(
    compressor: Compressor, vectors: Iterable[jax.Array | jax.ShapeDtypeStruct]
) -> int:
    """Bytes that a worker sends to one neighbour, with each vector compressed separately."""
    key = jax.random.key(0)
    return sum(num_bytes(jax.eval_shape(compressor.compress, key, vector)) for vector in vectors)


def messages_sent(mixing: MixingMatrix, gathers: bool = False) -> NDArray[np.int64]:
    """[T, N] number of messages that each worker sends in each step of the mixing matrix's period.

    Args:
        mixing: the mixing matrix.
        gathers: see `Channel.gathers`.
    """
    if gathers:
        weights = mixing.weights
        return (weights != 0).sum(1) - (np.diagonal(weights, axis1=1, axis2=2) != 0)
    plans = mixing.plans
    sent = [_senders(pairs, mixing.workers) for pairs in plans.exchanges]
    return np.array(sent, np.int64)[plans.of_step]


def check_workers(expected: int, axis_name: AxisName, of: str) -> None:
    """Refuses an axis of another length.

    Raises:
        OptionError: the message has both numbers.
    """
    devices = lax.axis_size(axis_name)
    if devices != expected:
        raise OptionError(
            f"{of} is for {counted(expected, 'worker')}, axis {axis_name!r} has "
            f"{counted(devices, 'device')}; make both for the same number"
        )


def widened(leaf: jax.Array) -> jax.Array:
    """The array as float32, unless its type is more precise."""
    leaf = jnp.asarray(leaf)
    return leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32))


def check_floating(params: PyTree) -> None:
    """Refuses parameters that cannot be mixed.

    Raises:
        OptionError: some are not floating-point numbers.
    """
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if not jnp.issubdtype(jnp.asarray(leaf).dtype, jnp.floating):
            name = jax.tree_util.keystr(path)
            raise OptionError(
                f"parameter {name or 'given'}: expected floating-point numbers, which can be "
                f"mixed, got {jnp.asarray(leaf).dtype}; exclude it, for instance with optax.masked"
            )


@dataclasses.dataclass
class Channel:
    """One communication of one vector [size] with the neighbours, as used by a rule."""

    number: jax.Array
    """Number of the communication, from 1; has the type in which the rule computes."""
    mixing: MixingMatrix
    turn: jax.Array
    """Step of the mixing matrix's period, int32."""
    compressor: Compressor
    key: jax.Array
    """Key of the compressor's random numbers."""
    size: int
    dtype: jnp.dtype
    """Type of the parameters, and of the messages."""
    axis_name: AxisName
    gathers: bool = False
    """Whether each worker reads all payloads and weights them, which suits workers on one device,
    where no messages are sent; otherwise messages go between neighbours only."""
    sent_bytes: jax.Array = dataclasses.field(init=False)
    """[] bytes that this worker has sent so far, float32."""

    def __post_init__(self) -> None:
        # A value that varies over the axis, whether this worker sends or not, as `check_vma`
        # requires.
        self.sent_bytes = of_this_worker(np.zeros(self.mixing.workers), self.axis_name)

    @property
    def consensus(self) -> float:
        """γ that the mixing matrix and the compressor allow for vectors of this size."""
        return advised_consensus(self.mixing.mu, self.compressor.relative_error(self.size))

    def compress(self, vector: jax.Array) -> PyTree:
        """[size] → payload, in the parameters' precision."""
        return self.compressor.compress(self.key, vector.astype(self.dtype))

    def decompress(self, payload: PyTree) -> jax.Array:
        """Payload → [size]."""
        return self.compressor.decompress(payload, self.size, self.number.dtype)

    def rounded(self, vector: jax.Array) -> jax.Array:
        """The vector rounded to the parameters' type."""
        return vector.astype(self.dtype).astype(vector.dtype)

    def mix(self, payload: PyTree) -> jax.Array:
        """Sends a payload to all neighbours; returns Σ_j W_ij of all, its own included."""
        if self.gathers:
            return self._mix_all(payload)
        plans = self.mixing.plans
        branches = [partial(self._mix_by, pairs) for pairs in plans.exchanges]
        self._count(messages_sent(self.mixing), payload)
        if len(branches) == 1:
            return branches[0](payload)
        return lax.switch(jnp.asarray(plans.of_step)[self.turn], branches, payload)

    @cached_property
    def _weights(self) -> NDArray:
        """[T, N, N] weights in the type used for computing."""
        return self.mixing.weights_in(self.number.dtype)

    def _mix_by(self, exchanges: tuple[Pairs, ...], payload: PyTree) -> jax.Array:
        """Like `mix`, with given messages."""
        weights = self._weights
        own = np.diagonal(weights, axis1=1, axis2=2)
        total = self._weight(own) * self.decompress(payload)
        received = [
            (self._weight(_received(weights, pairs)), self._exchange(payload, pairs))
            for pairs in exchanges
        ]
        for weight, message in received:
            total += weight * self.decompress(message)
        return total

    def _mix_all(self, payload: PyTree) -> jax.Array:
        """Like `mix`, from a table of all payloads."""
        self._count(messages_sent(self.mixing, gathers=True), payload)
        names = (self.axis_name,) if isinstance(self.axis_name, str) else self.axis_name
        for place, name in enumerate(reversed(names)):
            payload = lax.all_gather(payload, name)
            if place:
                payload = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), payload)
        row = jnp.asarray(self._weights)[self.turn, lax.axis_index(self.axis_name)]
        return jnp.dot(row, jax.vmap(self.decompress)(payload), precision=lax.Precision.HIGHEST)

    def _weight(self, by_turn: NDArray) -> jax.Array:
        """This worker's entry of a table [T, N], in this turn."""
        now = jnp.asarray(by_turn, self.number.dtype)[self.turn]
        return of_this_worker(now, self.axis_name, self.number.dtype)

    def _count(self, messages: NDArray, payload: PyTree) -> None:
        """Adds the bytes of the messages [T, N]."""
        by_worker = jnp.asarray(messages * num_bytes(payload), jnp.float32)[self.turn]
        self.sent_bytes += of_this_worker(by_worker, self.axis_name)

    def _exchange(self, payload: PyTree, pairs: Pairs) -> PyTree:
        """The received payload; that of an idle worker is its own, and zeros arrive at others."""
        # `jax.vmap` refuses a permutation of some of the workers.
        busy = {worker for pair in pairs for worker in pair}
        pairs += tuple((idle, idle) for idle in range(self.mixing.workers) if idle not in busy)
        return jax.tree.map(lambda leaf: lax.ppermute(leaf, self.axis_name, pairs), payload)


def _senders(exchanges: tuple[Pairs, ...], workers: int) -> NDArray[np.int64]:
    """[N] number of messages that each worker sends."""
    sources = [source for pairs in exchanges for source, _ in pairs]
    return np.bincount(np.array(sources, np.int64), minlength=workers)


def _received(weights: NDArray, pairs: Pairs) -> NDArray:
    """[T, N] weight of the message that each worker receives; 0 if it receives none."""
    sources, targets = np.array(pairs).T
    received = np.zeros(weights.shape[:2])
    received[:, targets] = weights[:, targets, sources]
    return received


def sent_bytes(state: optax.OptState) -> jax.Array:
    """Bytes that this worker sent in the last update.

    Args:
        state: state of an optimizer with one aggregation in it.

    Raises:
        OptionError: there is none, or more than one.
    """
    return _of_aggregation(state, "sent_bytes")


def not_finite(state: optax.OptState) -> jax.Array:
    """Number of updates so far that skipped this worker's gradients, as they were not finite.

    Args:
        state: state of an optimizer with one aggregation in it.

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
