"""Exchanges between workers of local updates inside `jax.shard_map`, with all bytes counted."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from gradweave.aggregate.compressors import Compressor, Uncompressed
from gradweave.aggregate.messages import Channel, num_bytes
from gradweave.aggregate.mixing import MixingMatrix
from gradweave.execute.axis import AxisName
from gradweave.execute.jax_mesh.buffers import PyTree


class Average(NamedTuple):
    """The result of an exchange."""

    own: jax.Array
    """[size] this worker's message as others received it."""
    average: jax.Array
    """[size] Σ_j W_ij of all messages."""
    sent_bytes: jax.Array
    """[] bytes that this worker sent, float32."""


@dataclasses.dataclass(frozen=True)
class AllReduceExchange:
    """The mean over all workers that are in time, the same bits at every worker.

    With compression, a worker sends each other worker the compressed part of its message that this
    worker sums. Each worker adds up its part uncompressed, compresses the mean and sends it to all
    others: two compressions for any number of workers.
    """

    compressor: Compressor
    axis_name: AxisName
    whole: bool = False
    """Whether each worker sends its whole message to each other instead: one compression, whose
    error the worker knows."""

    def average(
        self,
        key: jax.Array,
        message: jax.Array,
        mine: jax.Array,
        counted: jax.Array,
        number: jax.Array,
    ) -> Average:
        """The mean of the messages [size] of the `counted` workers that are in time.

        Args:
            key: key of the compressor's random numbers.
            message: [size] this worker's message.
            mine: [] whether this worker is in time.
            counted: [] number of workers in time, float32.
            number: number of the communication, from 1.
        """
        message = jnp.where(mine, message, 0)
        workers, counted = lax.axis_size(self.axis_name), jnp.maximum(counted, 1)
        if self.whole:
            return self._gathered(key, message, mine, counted)
        if workers == 1:
            return Average(message, message, jnp.zeros((), jnp.float32))
        if isinstance(self.compressor, Uncompressed):
            total = lax.psum(message, self.axis_name)
            # As in `aggregate.mean`: the lower bound of any all-reduce in which all send the same.
            sent = 2 * (workers - 1) / workers * num_bytes(message)
            return Average(message, total / counted, _if(mine, sent))
        total, sent = self._in_parts(key, message, counted)
        return Average(message, total, _if(mine, sent))

    def _in_parts(
        self, key: jax.Array, message: jax.Array, counted: jax.Array
    ) -> tuple[jax.Array, float]:
        compressor, axis = self.compressor, self.axis_name
        workers, size = lax.axis_size(axis), message.size
        part = -(-size // workers)
        rows = jnp.pad(message, (0, workers * part - size)).reshape(workers, part)
        mine, after = jax.random.split(jax.random.fold_in(key, lax.axis_index(axis)))
        payloads = jax.vmap(compressor.compress)(jax.random.split(mine, workers), rows)
        received = jax.tree.map(
            lambda leaf: lax.all_to_all(leaf, axis, split_axis=0, concat_axis=0), payloads
        )
        parts = jax.vmap(lambda one: compressor.decompress(one, part, message.dtype))(received)
        mean = compressor.compress(after, parts.sum(0) / counted)
        every = lax.all_gather(mean, axis)
        whole = jax.vmap(lambda one: compressor.decompress(one, part, message.dtype))(every)
        return whole.reshape(-1)[:size], 2 * (workers - 1) * num_bytes(mean)

    def _gathered(
        self, key: jax.Array, message: jax.Array, mine: jax.Array, counted: jax.Array
    ) -> Average:
        number = lax.axis_index(self.axis_name)
        payload = self.compressor.compress(jax.random.fold_in(key, number), message)

        def arrived(one: PyTree) -> jax.Array:
            return self.compressor.decompress(one, message.size, message.dtype)

        every = jax.vmap(arrived)(lax.all_gather(payload, self.axis_name))
        sent = (lax.axis_size(self.axis_name) - 1) * num_bytes(payload)
        return Average(arrived(payload), every.sum(0) / counted, _if(mine, sent))


@dataclasses.dataclass(frozen=True)
class MixingExchange:
    """The average over neighbours, by a mixing matrix that may change from one to the next."""

    mixing: MixingMatrix
    axis_name: AxisName

    def average(
        self,
        key: jax.Array,
        message: jax.Array,
        mine: jax.Array,
        counted: jax.Array,
        number: jax.Array,
    ) -> Average:
        """Σ_j W_ij of the messages; for the arguments see `AllReduceExchange.average`.

        Workers that are not in time take part, since their neighbours expect their messages.
        """
        channel = Channel(
            number.astype(message.dtype),
            self.mixing,
            (number - 1) % self.mixing.period,
            Uncompressed(),
            key,
            message.size,
            message.dtype,
            self.axis_name,
        )
        return Average(message, channel.mix(message), channel.sent_bytes)


def _if(mine: jax.Array, sent: float) -> jax.Array:
    """The bytes that a worker sent: 0 if it was late."""
    return jnp.where(mine, jnp.float32(sent), jnp.float32(0))
