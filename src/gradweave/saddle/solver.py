"""Iterations of a method for all workers: pure functions, on one device or over several.

On one device all workers form a batch (`jax.vmap`), and an average is a product with the mixing
matrix. Over several devices (`jax.shard_map`), each device has the same number of workers. With one
worker per device, messages go between neighbours only; with more, devices gather the messages of
all workers.

A worker whose operator is not finite keeps its z in that iteration, takes part in the averages with
it, and is counted, so values that are not finite never spread.
"""

import dataclasses
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from numpy.typing import NDArray

from gradweave.aggregate.compressors import Compressor, Uncompressed
from gradweave.aggregate.finite import is_finite
from gradweave.aggregate.messages import Channel, message_bytes, messages_sent
from gradweave.aggregate.mixing import MixingMatrix
from gradweave.aggregate.replicas import replicate
from gradweave.aggregate.rules import DPSGD, GossipRule, WorkerState, check_gossip_options
from gradweave.errors import OptionError
from gradweave.execute.axis import AXIS, AxisName
from gradweave.execute.jax_mesh.buffers import PyTree, from_vectors, to_vectors
from gradweave.saddle.method import Method
from gradweave.saddle.problem import Problem

WORKER = "worker"
"""Axis of the workers on one device."""


class SolverState(NamedTuple):
    """The state of all workers between two iterations; checkpoints use these names."""

    z: PyTree
    """[N, …] current points."""
    memory: PyTree
    """[N, …] memory of the method."""
    known: tuple[Any, ...]
    """For each tree that the method mixes, the gossip rule's estimate and mixture, [N, …], or None
    if the rule has no estimates."""
    average: PyTree
    """[N, …] mean over all iterations so far of the points at which the operator was evaluated."""
    not_finite: jax.Array
    """[N] int32: number of iterations so far in which a worker's operator was not finite."""
    step: jax.Array
    """Number of iterations so far, int32."""
    key: jax.Array
    """Key of all random numbers; it does not change."""


class _Worker(NamedTuple):
    """One worker's part of `SolverState`."""

    z: PyTree
    memory: PyTree
    known: tuple[Any, ...]
    average: PyTree
    not_finite: jax.Array


@dataclasses.dataclass(frozen=True, eq=False)
class Solver:
    """A method applied to a problem: `init`, and `step`, which is pure and can be compiled.

    Raises:
        OptionError: the parts have different numbers of workers, or do not fit together.
    """

    problem: Problem
    method: Method
    mixing: MixingMatrix
    """Weights of a worker's average over its neighbours' z and its own; may change in time."""
    rule: GossipRule = DPSGD()  # noqa: RUF009 (it is frozen)
    """How neighbours learn the values that they average: `DPSGD` sends them uncompressed,
    `ChocoSGD` and `DCDPSGD` send compressed differences."""
    compressor: Compressor | None = None
    """Compressor of the messages; by default no compression."""
    local_steps: int = 1
    """H, the number of iterations per communication."""
    mesh: Mesh | None = None
    """Devices among which the workers are divided, along one axis; by default this process's first
    device."""

    def __post_init__(self) -> None:
        check_gossip_options(self.local_steps, "warn")
        self.rule.check_mixing(self.mixing)
        workers = self.problem.workers
        if self.mixing.workers != workers:
            raise OptionError(
                f"{self.problem.name} has {workers} workers, the mixing matrix {self.mixing.name} "
                f"has {self.mixing.workers}; make both for the same number"
            )
        if self.compressor is not None and not self.rule.compresses:
            raise OptionError(
                f"compressor: {self.rule.name} sends everything uncompressed; use ChocoSGD() or "
                "DCDPSGD() as rule"
            )
        if self.mesh is not None and (len(self.mesh.axis_names) != 1 or workers % self.mesh.size):
            raise OptionError(
                f"mesh: expected one axis of devices among which {workers} workers can be divided "
                f"equally, got {dict(self.mesh.shape)}"
            )

    def init(self, key: jax.Array) -> SolverState:
        """The state of all workers before the first iteration.

        Args:
            key: key of all random numbers, from `jax.random.key`.
        """
        z = jax.tree.map(jnp.asarray, self.problem.start)
        mixed = (z, *self.method.extra(z))
        known = tuple((tree, tree) if self.rule.keeps_estimates else None for tree in mixed)
        average = jax.tree.map(jnp.zeros_like, z)
        nothing = jnp.zeros((), jnp.int32)
        worker = _Worker(z, self.method.start(z), known, average, nothing)
        return SolverState(*replicate(worker, self.problem.workers), step=nothing, key=key)

    def step(self, state: SolverState) -> SolverState:
        """One iteration of all workers."""
        spread: Any = self._on_one_device if self.mesh is None else self._over_devices(self.mesh)
        workers = spread(_Worker(*state[:5]), self.problem.data, state.step, state.key)
        return SolverState(*workers, step=state.step + 1, key=state.key)

    def run(self, state: SolverState, iterations: int | jax.Array) -> SolverState:
        """Runs any number of iterations with one compiled program."""
        return self._run(state, iterations)

    def sent_bytes(self, iterations: int) -> NDArray[np.int64]:
        """[N] bytes that each worker has sent in the first iterations, counted by message.

        With several workers per device, messages between workers of one device are counted too.
        """
        communications = iterations // self.local_steps
        times = np.bincount(
            np.arange(communications) % self.mixing.period, minlength=self.mixing.period
        )
        return times @ messages_sent(self.mixing, self._gathers) * self.message_bytes

    @cached_property
    def message_bytes(self) -> int:
        """Bytes that a worker sends to one neighbour per communication."""
        z = jax.tree.map(jnp.asarray, self.problem.start)
        vectors = (vector for tree in (z, *self.method.extra(z)) for vector in to_vectors(tree))
        return message_bytes(self.compressor or Uncompressed(), vectors)

    @property
    def _gathers(self) -> bool:
        """Whether workers share devices, which then gather the messages of all workers."""
        return self.mesh is None or self.mesh.size < self.problem.workers

    @cached_property
    def _run(self) -> Any:
        return jax.jit(lambda state, n: lax.fori_loop(0, n, lambda _, now: self.step(now), state))

    def _on_one_device(
        self, workers: _Worker, data: PyTree, step: jax.Array, key: jax.Array
    ) -> _Worker:
        advance = partial(self._advance, axis_name=WORKER)
        batched = jax.vmap(advance, (0, 0, None, None), axis_name=WORKER)
        return batched(workers, data, step, key)

    def _over_devices(self, mesh: Mesh) -> Any:
        (axis,) = mesh.axis_names
        alone = mesh.size == self.problem.workers

        def on_device(workers: _Worker, data: PyTree, step: jax.Array, key: jax.Array) -> _Worker:
            if alone:
                mine, known = jax.tree.map(lambda leaf: leaf[0], (workers, data))
                after = self._advance(mine, known, step, key, axis_name=axis)
                return jax.tree.map(lambda leaf: leaf[None], after)
            advance = partial(self._advance, axis_name=(axis, WORKER))
            batched: Any = jax.vmap(advance, (0, 0, None, None), axis_name=WORKER)
            return batched(workers, data, step, key)

        return jax.shard_map(
            on_device,
            mesh=mesh,
            in_specs=(P(axis), P(axis), P(), P()),
            out_specs=P(axis),
            check_vma=False,
        )

    def _advance(
        self, worker: _Worker, data: PyTree, step: jax.Array, key: jax.Array, axis_name: AxisName
    ) -> _Worker:
        """One worker's iteration, inside an axis over all workers."""
        method = self.method
        key = jax.random.fold_in(jax.random.fold_in(key, step), lax.axis_index(axis_name))
        rate = jnp.asarray(method.rate(step) if callable(method.rate) else method.rate)

        def operator(z: PyTree, sample: int) -> PyTree:
            return self.problem.operator(data, z, jax.random.fold_in(key, sample))

        proposal = method.propose(worker.z, worker.memory, operator, rate)
        finite = is_finite((proposal.send, proposal.memory))
        idle = method.idle(worker.z, worker.memory)
        proposal = jax.tree.map(partial(jnp.where, finite), proposal, idle)
        mixed, known = self._communicate(proposal.send, worker.known, step, key, axis_name)
        z, memory = method.receive(proposal.send, mixed, proposal.memory, rate, self.local_steps)
        average = jax.tree.map(
            lambda mean, new: mean + (new - mean) / (step + 1).astype(mean.dtype),
            worker.average,
            proposal.point,
        )
        return _Worker(z, memory, known, average, worker.not_finite + ~finite)

    def _communicate(
        self,
        send: tuple[PyTree, ...],
        known: tuple[Any, ...],
        step: jax.Array,
        key: jax.Array,
        axis_name: AxisName,
    ) -> tuple[tuple[PyTree, ...], tuple[Any, ...]]:
        """Averages of the trees that all workers send, and the gossip rule's new estimates."""
        number = (step + 1) // self.local_steps
        mix = partial(self._mix, number=number, key=key, axis_name=axis_name)
        if self.local_steps == 1:
            return mix(send, known)
        communicates = (step + 1) % self.local_steps == 0
        return lax.cond(communicates, mix, lambda *unchanged: unchanged, send, known)

    def _mix(
        self,
        send: tuple[PyTree, ...],
        known: tuple[Any, ...],
        number: jax.Array,
        key: jax.Array,
        axis_name: AxisName,
    ) -> tuple[tuple[PyTree, ...], tuple[Any, ...]]:
        """Communication `number`, from 1."""
        mixed, knows = [], []
        for place, (tree, memory) in enumerate(zip(send, known, strict=True)):
            estimates = (tree, tree) if memory is None else memory
            vectors = zip(to_vectors(tree), *(to_vectors(each) for each in estimates), strict=True)
            after = [
                self._mix_vector(WorkerState(*worker), number, (key, place, part), axis_name)
                for part, worker in enumerate(vectors)
            ]
            mixed.append(from_vectors([each.x for each in after], tree))
            estimate, mixture = (from_vectors([each[i] for each in after], tree) for i in (1, 2))
            knows.append(None if memory is None else (estimate, mixture))
        return tuple(mixed), tuple(knows)

    def _mix_vector(
        self,
        worker: WorkerState,
        number: jax.Array,
        random: tuple[jax.Array, int, int],
        axis_name: AxisName,
    ) -> WorkerState:
        """Communication `number` for one vector."""
        key, place, part = random
        for fold in (_MESSAGES + place, part):
            key = jax.random.fold_in(key, fold)
        channel = Channel(
            number.astype(worker.x.dtype),
            self.mixing,
            (number - 1) % self.mixing.period,
            self.compressor or Uncompressed(),
            key,
            worker.x.size,
            worker.x.dtype,
            axis_name,
            gathers=self._gathers,
        )
        return self.rule.communicate(worker, jnp.zeros_like(worker.x), channel)


_MESSAGES = 1 << 16
"""First number for the random keys of messages; smaller numbers are for samples."""


def mesh_of(devices: int, axis: str = AXIS) -> Mesh:
    """A mesh of the first devices, for `Solver`.

    Raises:
        OptionError: there are fewer devices.
    """
    there = jax.devices()
    if not 1 <= devices <= len(there):
        raise OptionError(f"devices: expected 1 to {len(there)} (all there are), got {devices}")
    return Mesh(np.array(there[:devices]), (axis,))
