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

from gradweave.aggregate.compressors import Compressor
from gradweave.aggregate.finite import check_all_take_part, is_finite
from gradweave.aggregate.local.exchange import AllReduceExchange, MixingExchange
from gradweave.aggregate.local.methods import (
    Arrived,
    DiLoCo,
    LocalMethod,
    NoLoCo,
    StreamingDiLoCo,
    Worker,
)
from gradweave.aggregate.messages import (
    check_floating,
    check_workers,
    initial_counts,
    of_this_worker,
    widened,
)
from gradweave.aggregate.mixing import MixingMatrix
from gradweave.errors import OptionError
from gradweave.execute.axis import AXIS, AxisName
from gradweave.execute.jax_mesh.buffers import PyTree, by_dtype, from_vectors, to_vectors


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
    """The average that is being computed, an `Arrived` of each type, or None without delay."""
    taken: jax.Array
    """Number of steps that this worker has made since the last communication, int32."""
    in_time: jax.Array
    """[] whether this worker was in time for the last communication."""
    counted: jax.Array
    """Number of workers that were in time for the last communication, float32; all of them if the
    method mixes."""
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
    mixing: MixingMatrix | None = None,
    seed: int = 0,
) -> optax.GradientTransformationExtraArgs:
    """Wraps an optimizer in a method of local updates; all workers start with the same parameters.

    Args:
        method: what workers exchange and when, and how they apply it.
        optimizer: optimizer of a worker's local steps.
        workers: N, which is also the number of devices along the axis.
        compressor: compressor of messages; by default the method's.
        axis_name: name of the workers' axis.
        mixing: weights with which neighbours average, for methods that mix; by default the
            method's.
        seed: seed of all random numbers.

    Raises:
        OptionError: the method does not support that number of workers, or an argument.
    """
    if workers < 1:
        raise OptionError(f"workers: expected at least 1, got {workers}")
    method.check_workers(workers)
    method.check_messages(compressor, mixing)
    if method.mixes:
        mixing = mixing or method.default_mixing(workers, seed)
        exchange = MixingExchange(mixing, axis_name)
    else:
        compressor = compressor or method.default_compressor
        exchange = AllReduceExchange(compressor, axis_name, method.feeds_back)
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
    axis_name: AxisName = AXIS,
    *,
    mixing: MixingMatrix | None = None,
    seed: int = 0,
    **options: Any,
) -> optax.GradientTransformationExtraArgs:
    """`NoLoCo` with these options; other arguments and errors are those of `local_updates`."""
    method = NoLoCo(**options)
    return local_updates(method, optimizer, workers, None, axis_name, mixing=mixing, seed=seed)


@dataclasses.dataclass(frozen=True)
class _LocalUpdates:
    """`init` and `update` of `local_updates`, with its arguments."""

    method: LocalMethod
    optimizer: optax.GradientTransformationExtraArgs
    workers: int
    exchange: AllReduceExchange | MixingExchange
    axis_name: AxisName
    seed: int

    def init(self, params: PyTree) -> LocalState:
        check_floating(params)
        shared = jax.tree.map(widened, params)
        zero = jnp.zeros((), jnp.int32)
        return LocalState(
            inner=self.optimizer.init(params),
            step=zero,
            shared=shared,
            momentum=jax.tree.map(jnp.zeros_like, shared),
            arriving=self._nothing(params) if self.method.delay else None,
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
        method = self.method
        phase = state.step % method.interval
        if not method.delay:
            return lax.cond(phase == 0, self._send_and_take, _stay, x, state)
        _, state = lax.cond(phase == 0, self._send, _stay, x, state)
        due = (phase == method.delay) & (state.step >= method.interval)
        return lax.cond(due, self._take, _stay, x, state)

    def _send_and_take(self, x: PyTree, state: LocalState) -> tuple[PyTree, LocalState]:
        x, sent = self._send(x, state)
        after, taken = self._take(x, sent)
        return after, taken._replace(arriving=None)

    def _send(self, x: PyTree, state: LocalState) -> tuple[PyTree, LocalState]:
        """Averages the fragment that is due."""
        method, number = self.method, state.step // self.method.interval
        mine = (state.taken > 0) & (state.taken >= method.in_time * method.interval)
        counted = jnp.float32(self.workers)
        if not method.mixes:
            counted = lax.psum(mine.astype(jnp.float32), self.axis_name)
        key = jax.random.fold_in(jax.random.key(self.seed), number)
        arriving, sent_bytes = [], state.sent_bytes
        for group, worker in enumerate(self._vectors(x, state)):
            part = self._fragment(worker, number)
            message = method.message(part._replace(x=jnp.where(mine, part.x, part.shared)))
            group_key = jax.random.fold_in(key, group)
            sent = self.exchange.average(group_key, message, mine, counted, number)
            arriving.append(Arrived(message, sent.own, sent.average))
            sent_bytes += sent.sent_bytes
        return x, state._replace(
            arriving=arriving,
            taken=jnp.zeros_like(state.taken),
            in_time=mine,
            counted=counted,
            sent_bytes=sent_bytes,
        )

    def _take(self, x: PyTree, state: LocalState) -> tuple[PyTree, LocalState]:
        """Takes an average; without enough workers in time, everything stays as it is."""
        number = state.step // self.method.interval
        enough = state.counted >= self.method.quorum
        assert state.arriving is not None
        moved = []
        for worker, arrived in zip(self._vectors(x, state), state.arriving, strict=True):
            part = self._fragment(worker, number)
            after = self.method.take(part, arrived, state.in_time)
            after = jax.tree.map(partial(jnp.where, enough), after, part)
            moved.append(self._with_fragment(worker, after, number))
        groups = list(by_dtype(jax.tree.leaves(x)).values())
        trees = [from_vectors(list(column), x, groups) for column in zip(*moved, strict=True)]
        return trees[0], state._replace(shared=trees[1], momentum=trees[2])

    def _vectors(self, x: PyTree, state: LocalState) -> list[Worker]:
        groups = list(by_dtype(jax.tree.leaves(x)).values())
        columns = (to_vectors(tree, groups) for tree in (x, state.shared, state.momentum))
        return [Worker(*vectors) for vectors in zip(*columns, strict=True)]

    def _fragment(self, worker: Worker, number: jax.Array) -> Worker:
        """The fragment of communication `number`, each vector padded with zeros."""
        if self.method.fragments == 1:
            return worker
        places = self._places(worker.x.size, number)
        return jax.tree.map(lambda vector: vector.at[places].get(mode="fill", fill_value=0), worker)

    def _with_fragment(self, worker: Worker, part: Worker, number: jax.Array) -> Worker:
        """The vectors with one fragment replaced."""
        if self.method.fragments == 1:
            return part
        places = self._places(worker.x.size, number)
        return jax.tree.map(lambda vector, new: vector.at[places].set(new), worker, part)

    def _places(self, size: int, number: jax.Array) -> jax.Array:
        """[size of a fragment] places of a fragment's elements, some of them beyond the last."""
        fragments = self.method.fragments
        turn, length = (number - 1) % fragments, -(-size // fragments)
        places = turn * length + jnp.arange(length)
        if not self.method.scattered:
            return places
        key = jax.random.fold_in(jax.random.key(self.seed), 0)
        key = jax.random.fold_in(key, (number - 1) // fragments)
        order = jax.random.permutation(key, size)
        return order.at[places].get(mode="fill", fill_value=size)

    def _nothing(self, params: PyTree) -> list[Arrived]:
        """An average of the right shapes, before any has been sent."""
        vectors = to_vectors(jax.tree.map(widened, params))
        lengths = [(-(-one.size // self.method.fragments), one.dtype) for one in vectors]
        return [Arrived(*[jnp.zeros(*length)] * 3) for length in lengths]


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
