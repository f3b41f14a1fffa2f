"""Optimizers whose workers train separately for many steps, then average their progress.

Each wraps an optimizer that defines a worker's local steps, and is an
`optax.GradientTransformation` for use inside `jax.shard_map`; `update` needs the parameters. The
notation is that of `gradweave.aggregate.local.methods`; φ and m are at least float32.

A worker that makes no step, because it is slow or gone, calls `update` with ``active=False``, and
its parameters do not change. At a communication, workers with too few steps are late: they are
excluded from the average, send nothing, and catch up by taking φ. This simulates the loss of a
training with a quorum without real waiting. In a run with processes that really are late, as in
`gradweave.execute.torch_distributed`, the same happens to them.
"""

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from gradweave.aggregate.compressors import Compressor, Uncompressed
from gradweave.aggregate.finite import check_all_take_part, is_finite
from gradweave.aggregate.local.exchange import AllReduceExchange, PairwiseExchange
from gradweave.aggregate.local.methods import DiLoCo, LocalMethod, NoLoCo, StreamingDiLoCo
from gradweave.aggregate.messages import (
    check_floating,
    check_workers,
    initial_counts,
    of_this_worker,
    widened,
)
from gradweave.errors import OptionError
from gradweave.execute.axis import AXIS, AxisName
from gradweave.execute.jax_mesh.buffers import PyTree, by_dtype, from_vectors, to_vectors

Vectors = tuple[jax.Array, ...]
"""The elements of a tree, [size] for each type of its leaves; or of a fragment of it."""


class Arriving(NamedTuple):
    """Averages of a fragment, one vector per type of its leaves."""

    change: Vectors
    """Mean of Δ."""
    shared: Vectors
    """Mean of φ; see `Average.shared`."""


class LocalState(NamedTuple):
    """What a worker remembers between updates; checkpoints use these names."""

    inner: optax.OptState
    """State of the wrapped optimizer."""
    step: jax.Array
    """Number of updates so far, int32."""
    shared: PyTree
    """φ."""
    momentum: PyTree
    """m."""
    arriving: PyTree
    """The average that is being computed, `Arriving`, or None without delay."""
    taken: jax.Array
    """Number of steps that this worker has made since the last communication, int32."""
    in_time: jax.Array
    """[] whether this worker was in time for the last communication."""
    counted: jax.Array
    """Number of workers that were in time for the last communication, float32."""
    sent_bytes: jax.Array
    """Bytes that this worker sent in the last update, float32."""
    not_finite: jax.Array
    """Number of updates so far in which this worker's gradients were not finite and therefore
    skipped; int32."""


def local_updates(
    method: LocalMethod,
    optimizer: optax.GradientTransformation,
    workers: int,
    compressor: Compressor | None = None,
    axis_name: AxisName = AXIS,
    *,
    seed: int = 0,
) -> optax.GradientTransformationExtraArgs:
    """Wraps an optimizer in a method of local updates; all workers start with the same parameters.

    Args:
        method: what workers exchange and when, and how they apply it.
        optimizer: optimizer of a worker's local steps.
        workers: N, which is also the number of devices along the axis.
        compressor: compressor of Δ; by default no compression.
        axis_name: name of the workers' axis.
        seed: seed of the compressor's random numbers and of random pairs.

    Raises:
        OptionError: the method does not support that number of workers.
    """
    if workers < 1:
        raise OptionError(f"workers: expected at least 1, got {workers}")
    method.check_workers(workers)
    compressor = compressor or Uncompressed()
    exchange = (
        PairwiseExchange.drawn(compressor, axis_name, workers, seed)
        if method.pairwise
        else AllReduceExchange(compressor, axis_name)
    )
    inner = optax.with_extra_args_support(optimizer)
    made = _LocalUpdates(method, inner, workers, exchange, axis_name, seed)
    return optax.GradientTransformationExtraArgs(made.init, made.update)


def diloco(
    optimizer: optax.GradientTransformation,
    workers: int,
    compressor: Compressor | None = None,
    axis_name: AxisName = AXIS,
    *,
    seed: int = 0,
    **options: Any,
) -> optax.GradientTransformationExtraArgs:
    """`DiLoCo` with these options; other arguments and errors are those of `local_updates`."""
    method = DiLoCo(**options)
    return local_updates(method, optimizer, workers, compressor, axis_name, seed=seed)


def streaming_diloco(
    optimizer: optax.GradientTransformation,
    workers: int,
    compressor: Compressor | None = None,
    axis_name: AxisName = AXIS,
    *,
    seed: int = 0,
    **options: Any,
) -> optax.GradientTransformationExtraArgs:
    """`StreamingDiLoCo` with these options; other arguments are those of `local_updates`."""
    method = StreamingDiLoCo(**options)
    return local_updates(method, optimizer, workers, compressor, axis_name, seed=seed)


def noloco(
    optimizer: optax.GradientTransformation,
    workers: int,
    compressor: Compressor | None = None,
    axis_name: AxisName = AXIS,
    *,
    seed: int = 0,
    **options: Any,
) -> optax.GradientTransformationExtraArgs:
    """`NoLoCo` with these options; other arguments and errors are those of `local_updates`."""
    method = NoLoCo(**options)
    return local_updates(method, optimizer, workers, compressor, axis_name, seed=seed)


class _Worker(NamedTuple):
    """One worker's vectors, for one type of leaves."""

    x: jax.Array
    """[size] θ."""
    shared: jax.Array
    """[size] φ."""
    momentum: jax.Array
    """[size] m."""


@dataclasses.dataclass(frozen=True)
class _LocalUpdates:
    """`init` and `update` of `local_updates`, with its arguments."""

    method: LocalMethod
    optimizer: optax.GradientTransformationExtraArgs
    workers: int
    exchange: AllReduceExchange | PairwiseExchange
    axis_name: AxisName
    seed: int

    @property
    def _fragments(self) -> int:
        return self.method.fragments if isinstance(self.method, DiLoCo) else 1

    @property
    def _interval(self) -> int:
        return self.method.local_steps // self._fragments

    @property
    def _delay(self) -> int:
        return self.method.delay if isinstance(self.method, DiLoCo) else 0

    def init(self, params: PyTree) -> LocalState:
        check_floating(params)
        shared = jax.tree.map(widened, params)
        zero = jnp.zeros((), jnp.int32)
        return LocalState(
            inner=self.optimizer.init(params),
            step=zero,
            shared=shared,
            momentum=jax.tree.map(jnp.zeros_like, shared),
            arriving=self._nothing(params) if self._delay else None,
            taken=zero,
            in_time=jnp.zeros((), bool),
            counted=jnp.zeros((), jnp.float32),
            **initial_counts()._asdict(),
        )

    def update(
        self,
        updates: PyTree,
        state: optax.OptState,
        params: PyTree | None = None,
        *,
        active: jax.Array | bool = True,
        **extra: Any,
    ) -> tuple[PyTree, LocalState]:
        assert isinstance(state, LocalState)
        name = self.method.name
        if params is None:
            raise OptionError(f"{name} exchanges parameters: call update(gradients, state, params)")
        check_all_take_part()
        check_workers(self.workers, self.axis_name, name)
        u, inner, finite = self._local_update(updates, state.inner, params, active, extra)
        before = jax.tree.map(widened, params)
        x = jax.tree.map(lambda leaf, change: leaf + change.astype(leaf.dtype), before, u)
        moved = state._replace(
            inner=inner,
            step=state.step + 1,
            taken=state.taken + (finite & active),
            sent_bytes=of_this_worker(jnp.zeros(self.workers), self.axis_name),
            not_finite=state.not_finite + (~finite & active),
        )
        after, moved = self._communicate(x, moved)
        return jax.tree.map(lambda new, old: new - old, after, before), moved

    def _local_update(
        self,
        gradients: PyTree,
        state: optax.OptState,
        params: PyTree,
        active: jax.Array | bool,
        extra: dict[str, Any],
    ) -> tuple[PyTree, optax.OptState, jax.Array]:
        """U, the optimizer's state, and [] whether all is finite; U is 0 if not, or if inactive."""
        u, after = self.optimizer.update(gradients, state, params, **extra)
        finite = is_finite((gradients, u))
        moves = finite & active
        u = jax.tree.map(lambda leaf: jnp.where(moves, leaf, 0), u)
        return u, jax.tree.map(partial(jnp.where, moves), after, state), finite

    def _communicate(self, x: PyTree, state: LocalState) -> tuple[PyTree, LocalState]:
        """The communication due after the step: sends a fragment, or takes an arrived one."""
        phase = state.step % self._interval
        if not self._delay:
            return lax.cond(phase == 0, self._send_and_take, _stay, x, state)
        _, state = lax.cond(phase == 0, self._send, _stay, x, state)
        due = (phase == self._delay) & (state.step >= self._interval)
        return lax.cond(due, self._take, _stay, x, state)

    def _send_and_take(self, x: PyTree, state: LocalState) -> tuple[PyTree, LocalState]:
        x, sent = self._send(x, state)
        after, taken = self._take(x, sent)
        return after, taken._replace(arriving=None)

    def _send(self, x: PyTree, state: LocalState) -> tuple[PyTree, LocalState]:
        """Averages the fragment that is due."""
        number = state.step // self._interval
        mine = state.taken > 0
        if isinstance(self.method, DiLoCo):
            mine &= state.taken >= self.method.in_time * self._interval
        counted = lax.psum(mine.astype(jnp.float32), self.axis_name)
        key = jax.random.fold_in(jax.random.key(self.seed), number)
        averages = [
            self.exchange.average(
                jax.random.fold_in(key, group),
                self._fragment(worker.x - worker.shared, number),
                self._fragment(worker.shared, number),
                mine,
                counted,
                number,
            )
            for group, worker in enumerate(self._vectors(x, state))
        ]
        columns = [tuple(column) for column in zip(*averages, strict=True)]
        return x, state._replace(
            arriving=Arriving(columns[0], columns[1]),
            taken=jnp.zeros_like(state.taken),
            in_time=mine,
            counted=counted,
            sent_bytes=state.sent_bytes + sum(columns[2], jnp.zeros(())),
        )

    def _take(self, x: PyTree, state: LocalState) -> tuple[PyTree, LocalState]:
        """Moves φ by an average, and θ towards it."""
        number = state.step // self._interval
        workers = self._vectors(x, state)
        assert state.arriving is not None
        arriving = zip(state.arriving.change, state.arriving.shared, strict=True)
        moved = []
        for worker, average in zip(workers, arriving, strict=True):
            parts = _Worker(*(self._fragment(vector, number) for vector in worker))
            after = self._moved(parts, *average, state)
            moved.append(
                [
                    self._with_fragment(vector, part, number)
                    for vector, part in zip(worker, after, strict=True)
                ]
            )
        groups = list(by_dtype(jax.tree.leaves(x)).values())
        trees = [from_vectors(list(column), x, groups) for column in zip(*moved, strict=True)]
        return trees[0], state._replace(shared=trees[1], momentum=trees[2])

    def _moved(
        self, worker: _Worker, change: jax.Array, shared: jax.Array, state: LocalState
    ) -> _Worker:
        """A worker's fragment after an average."""
        method = self.method
        if isinstance(method, NoLoCo):
            apart = worker.shared - shared
            momentum = method.outer_momentum * worker.momentum
            momentum += method.outer_rate * change - method.consensus * apart
            shared = worker.shared + momentum
            return _Worker(shared, shared, momentum)
        shared, momentum = method.outer_step(worker.shared, worker.momentum, change)
        keep = jnp.where(state.in_time, method.keep, 0.0)
        x = keep * worker.x + (1 - keep) * shared
        enough = state.counted >= method.quorum
        return jax.tree.map(partial(jnp.where, enough), _Worker(x, shared, momentum), worker)

    def _vectors(self, x: PyTree, state: LocalState) -> list[_Worker]:
        groups = list(by_dtype(jax.tree.leaves(x)).values())
        columns = (to_vectors(tree, groups) for tree in (x, state.shared, state.momentum))
        return [_Worker(*vectors) for vectors in zip(*columns, strict=True)]

    def _fragment(self, vector: jax.Array, number: jax.Array) -> jax.Array:
        """[size] → [size of a fragment], that of communication `number`, padded with zeros."""
        if self._fragments == 1:
            return vector
        return self._rows(vector)[(number - 1) % self._fragments]

    def _with_fragment(self, vector: jax.Array, part: jax.Array, number: jax.Array) -> jax.Array:
        """The vector with one fragment replaced."""
        if self._fragments == 1:
            return part
        rows = self._rows(vector).at[(number - 1) % self._fragments].set(part)
        return rows.reshape(-1)[: vector.size]

    def _rows(self, vector: jax.Array) -> jax.Array:
        size = -(-vector.size // self._fragments)
        padded = jnp.pad(vector, (0, self._fragments * size - vector.size))
        return padded.reshape(self._fragments, size)

    def _nothing(self, params: PyTree) -> Arriving:
        """An average of the right shapes, before any has been sent."""
        vectors = to_vectors(jax.tree.map(widened, params))
        empty = tuple(jnp.zeros(-(-one.size // self._fragments), one.dtype) for one in vectors)
        return Arriving(empty, empty)


def _stay(x: PyTree, state: LocalState) -> tuple[PyTree, LocalState]:
    return x, state


def counted(state: optax.OptState) -> jax.Array:
    """Number of workers in time for the last communication of an optimizer with local updates."""
    found = [value for _, value in optax.tree_utils.tree_get_all_with_path(state, "counted")]
    if len(found) != 1:
        raise OptionError(
            f"the optimizer's state: expected one method of local updates in it, found {len(found)}"
        )
    return found[0]
