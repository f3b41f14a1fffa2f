"""Exchanges between workers of local updates inside `jax.shard_map`, with all bytes counted."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import networkx as nx
from jax import lax

from gradweave.aggregate.compressors import Compressor, Uncompressed
from gradweave.aggregate.messages import Channel, num_bytes
from gradweave.aggregate.mixing import MixingMatrix
from gradweave.aggregate.sequences import changing_matchings
from gradweave.execute.axis import AxisName

MATCHINGS = 16
"""Number of random matchings, after which they repeat; a program contains messages for each of
them."""


class Average(NamedTuple):
    """The result of an exchange."""

    change: jax.Array
    """[size] mean of the vectors sent."""
    shared: jax.Array
    """[size] mean of φ over a pair. If all workers exchange, φ is equal on all and is unchanged."""
    sent_bytes: jax.Array
    """[] bytes that this worker sent, float32."""


@dataclasses.dataclass(frozen=True)
class AllReduceExchange:
    """The mean over all workers that are in time.

    With compression, a worker sends each other worker the compressed part of Δ that this worker
    sums. Each worker adds up its part uncompressed, compresses the mean and sends it to all others:
    two compressions for any number of workers, and the same bits at every worker.
    """

    compressor: Compressor
    axis_name: AxisName

    def average(
        self,
        key: jax.Array,
        change: jax.Array,
        shared: jax.Array,
        mine: jax.Array,
        counted: jax.Array,
        number: jax.Array,
    ) -> Average:
        """The mean of Δ [size] over the `counted` workers that are in time.

        Args:
            key: key of the compressor's random numbers.
            change: [size] Δ.
            shared: [size] φ.
            mine: [] whether this worker is in time.
            counted: [] number of workers in time, float32.
            number: number of the communication, from 1.
        """
        change = jnp.where(mine, change, 0)
        workers = lax.axis_size(self.axis_name)
        if workers == 1:
            return Average(change, shared, jnp.zeros((), jnp.float32))
        if isinstance(self.compressor, Uncompressed):
            total = lax.psum(change, self.axis_name)
            # As in `aggregate.mean`: the lower bound of any all-reduce in which all send the same.
            sent = 2 * (workers - 1) / workers * num_bytes(change)
            return Average(total / jnp.maximum(counted, 1), shared, _if(mine, sent))
        total, sent = self._compressed(key, change, jnp.maximum(counted, 1))
        return Average(total, shared, _if(mine, sent))

    def _compressed(
        self, key: jax.Array, change: jax.Array, counted: jax.Array
    ) -> tuple[jax.Array, float]:
        compressor, axis = self.compressor, self.axis_name
        workers, size = lax.axis_size(axis), change.size
        part = -(-size // workers)
        rows = jnp.pad(change, (0, workers * part - size)).reshape(workers, part)
        mine, after = jax.random.split(jax.random.fold_in(key, lax.axis_index(axis)))
        payloads = jax.vmap(compressor.compress)(jax.random.split(mine, workers), rows)
        received = jax.tree.map(
            lambda leaf: lax.all_to_all(leaf, axis, split_axis=0, concat_axis=0), payloads
        )
        parts = jax.vmap(lambda one: compressor.decompress(one, part, change.dtype))(received)
        mean = compressor.compress(after, parts.sum(0) / counted)
        every = lax.all_gather(mean, axis)
        whole = jax.vmap(lambda one: compressor.decompress(one, part, change.dtype))(every)
        return whole.reshape(-1)[:size], 2 * (workers - 1) * num_bytes(mean)


@dataclasses.dataclass(frozen=True)
class PairwiseExchange:
    """The mean over random pairs; φ is sent uncompressed."""

    compressor: Compressor
    axis_name: AxisName
    mixing: MixingMatrix

    @classmethod
    def drawn(
        cls, compressor: Compressor, axis_name: AxisName, workers: int, seed: int
    ) -> "PairwiseExchange":
        """Random pairs of workers; any two workers may meet."""
        if workers < 2:
            return cls(compressor, axis_name, MixingMatrix.complete(workers))
        graph = nx.complete_graph(workers)
        return cls(compressor, axis_name, changing_matchings(graph, MATCHINGS, seed))

    def average(
        self,
        key: jax.Array,
        change: jax.Array,
        shared: jax.Array,
        mine: jax.Array,
        counted: jax.Array,
        number: jax.Array,
    ) -> Average:
        """The means of Δ and φ over this worker and its partner.

        For the arguments see `AllReduceExchange.average`.
        """
        change = jnp.where(mine, change, 0)
        channels = [
            Channel(
                number.astype(change.dtype),
                self.mixing,
                (number - 1) % self.mixing.period,
                compressor,
                jax.random.fold_in(key, lax.axis_index(self.axis_name)),
                change.size,
                change.dtype,
                self.axis_name,
            )
            for compressor in (self.compressor, Uncompressed())
        ]
        means = [
            channel.mix(channel.compress(vector))
            for channel, vector in zip(channels, (change, shared), strict=True)
        ]
        return Average(means[0], means[1], channels[0].sent_bytes + channels[1].sent_bytes)


def _if(mine: jax.Array, sent: float) -> jax.Array:
    """The bytes that a worker sent: 0 if it was late."""
    return jnp.where(mine, jnp.float32(sent), jnp.float32(0))
