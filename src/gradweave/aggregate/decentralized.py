"""Optimizers in which each worker keeps separate parameters and mixes them with its neighbours'.

Each wraps an optimizer that defines a worker's local step, and is an `optax.GradientTransformation`
for use inside `jax.shard_map`; `update` needs the parameters. Unlike aggregations of gradients,
these leave workers with different parameters: make a copy per worker
(`gradweave.aggregate.replicate`), and read out their mean (`gradweave.aggregate.consensus`).

The notation is that of `gradweave.aggregate.rules`. Estimates and sums are at least float32, while
messages have the parameters' type: in bfloat16 the estimates would drift from the true values, by a
rounding error per step.

If a worker's gradients or its optimizer's updates are not finite, it mixes as if its optimizer had
not been called (u = 0, and the optimizer's state is unchanged), and counts this. Parameters that
are finite at the start stay finite.
"""

import dataclasses
from functools import partial
from typing import Any, NamedTuple, TypedDict, Unpack

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from gradweave.aggregate.compressors import Compressor, Uncompressed
from gradweave.aggregate.finite import check_all_take_part, is_finite
from gradweave.aggregate.messages import (
    Channel,
    check_floating,
    check_workers,
    initial_counts,
    of_this_worker,
    widened,
)
from gradweave.aggregate.mixing import MixingMatrix
from gradweave.aggregate.rules import (
    DCDPSGD,
    DPSGD,
    ECDPSGD,
    ChocoSGD,
    GossipRule,
    NaivePSGD,
    Strictness,
    WorkerState,
    check_gossip_options,
)
from gradweave.aggregate.validity import check_validity, enforce
from gradweave.errors import OptionError
from gradweave.execute.axis import AXIS, AxisName
from gradweave.execute.jax_mesh.buffers import PyTree, by_dtype, from_vectors, to_vectors

Groups = dict[jnp.dtype, list[int]]
"""Numbers of the parameters' leaves, by type: leaves of one type share a message."""


class GossipState(NamedTuple):
    """What a worker remembers between updates; checkpoints use these names."""

    inner: optax.OptState
    """State of the wrapped optimizer."""
    step: jax.Array
    """Number of updates so far, int32."""
    own: PyTree
    """`WorkerState.estimate`, or None if the rule has no estimates."""
    mixed: PyTree
    """`WorkerState.mixture`, or None if the rule has no estimates."""
    sent_bytes: jax.Array
    """Bytes that this worker sent in the last update; as a float32 it is exact up to 16 MiB, and to
    one part in 16 million above."""
    not_finite: jax.Array
    """Number of updates so far in which this worker's gradients were not finite and therefore
    skipped; int32."""


class GossipOptions(TypedDict, total=False):
    """Options of `gossip` that its variants pass on."""

    local_steps: int
    seed: int
    strictness: Strictness
    same_data: bool


def gossip(
    rule: GossipRule,
    optimizer: optax.GradientTransformation,
    mixing: MixingMatrix,
    compressor: Compressor | None = None,
    axis_name: AxisName = AXIS,
    *,
    local_steps: int = 1,
    seed: int = 0,
    strictness: Strictness = "warn",
    same_data: bool = False,
) -> optax.GradientTransformationExtraArgs:
    """Wraps an optimizer in a rule; the optimizer also gets the extra arguments of `update`.

    All workers must start with the same parameters if the rule keeps estimates.

    Args:
        rule: what workers send, and how they use what they receive.
        optimizer: optimizer of a worker's local steps.
        mixing: weights with which a worker averages its neighbours' parameters with its own;
            constant in time if the rule keeps estimates.
        compressor: compressor of all messages; by default no compression.
        axis_name: name of the workers' axis; worker i is device i along it.
        local_steps: updates per communication; the others send nothing.
        seed: seed of the compressor's random numbers.
        strictness: how to handle a doubtful choice, see `gradweave.aggregate.check_validity`.
        same_data: whether all workers draw their data from one distribution.

    Raises:
        OptionError: an argument is out of its range, or doubtful with ``"refuse"``.
    """
    check_gossip_options(local_steps, strictness)
    rule.check_mixing(mixing)
    method = _Gossip(
        rule,
        optax.with_extra_args_support(optimizer),
        mixing,
        compressor or Uncompressed(),
        axis_name,
        local_steps,
        seed,
        strictness,
        same_data,
    )
    return optax.GradientTransformationExtraArgs(method.init, method.update)


def d_psgd(
    optimizer: optax.GradientTransformation,
    mixing: MixingMatrix,
    axis_name: AxisName = AXIS,
    **options: Unpack[GossipOptions],
) -> optax.GradientTransformationExtraArgs:
    """Decentralized parallel SGD: x_i ← Σ_j W_ij x_j + u_i.

    The mixing matrix may vary in time. With `MixingMatrix.complete` and local steps it is local SGD
    (Stich 2019). Arguments and errors are those of `gossip`.

    Source: Lian et al. 2017, algorithm 1.
    """
    return gossip(DPSGD(), optimizer, mixing, None, axis_name, **options)


def naive_psgd(
    optimizer: optax.GradientTransformation,
    mixing: MixingMatrix,
    compressor: Compressor,
    axis_name: AxisName = AXIS,
    **options: Unpack[GossipOptions],
) -> optax.GradientTransformationExtraArgs:
    """D-PSGD with compressed parameters, x_i ← Σ_j W_ij C(x_j) + u_i; for comparison only.

    The compression error stays in the parameters, and does not vanish with the step size. Doubts
    are ignored unless `strictness` is given. The arguments are those of `gossip`.

    Source: Tang et al. 2018, section 3.
    """
    options = {"strictness": "ignore", **options}
    return gossip(NaivePSGD(), optimizer, mixing, compressor, axis_name, **options)


def dcd_psgd(
    optimizer: optax.GradientTransformation,
    mixing: MixingMatrix,
    compressor: Compressor,
    axis_name: AxisName = AXIS,
    **options: Unpack[GossipOptions],
) -> optax.GradientTransformationExtraArgs:
    """Difference compression: only C of the parameters' change is sent, and applied everywhere.

    q = C(Σ_j W_ij x̂_j + u_i − x_i), then x_i ← x_i + q at its owner and all its neighbours. The
    compressor must be unbiased, with a small `Compressor.relative_error`. Arguments and errors are
    those of `gossip`.

    Source: Tang et al. 2018, algorithm 1.
    """
    return gossip(DCDPSGD(), optimizer, mixing, compressor, axis_name, **options)


def ecd_psgd(
    optimizer: optax.GradientTransformation,
    mixing: MixingMatrix,
    compressor: Compressor,
    axis_name: AxisName = AXIS,
    **options: Unpack[GossipOptions],
) -> optax.GradientTransformationExtraArgs:
    """Extrapolation compression: C(z) is sent, where z extrapolates the parameters ever further.

    x⁺ = Σ_j W_ij x̂_j + u_i, z = (1 − t/2)·x_i + (t/2)·x⁺, x̂_i ← (1 − 2/t)·x̂_i + (2/t)·C(z), x_i
    ← x⁺, in communication t = 1, 2, … Errors average out if they do not grow with z, so the
    compressor must be unbiased, with a bounded `Compressor.absolute_error`. Arguments and errors
    are those of `gossip`.

    Source: Tang et al. 2018, algorithm 2.
    """
    return gossip(ECDPSGD(), optimizer, mixing, compressor, axis_name, **options)


def choco_sgd(
    optimizer: optax.GradientTransformation,
    mixing: MixingMatrix,
    compressor: Compressor,
    axis_name: AxisName = AXIS,
    *,
    consensus: float | None = None,
    **options: Unpack[GossipOptions],
) -> optax.GradientTransformationExtraArgs:
    """CHOCO-SGD: the compression error is kept and sent later, so that any compressor works.

    y = x_i + u_i, x̂_i ← x̂_i + C(y − x̂_i) at its owner and all its neighbours, x_i ← y + γ·(Σ_j
    W_ij x̂_j − x̂_i). The compressor may be biased, with `Compressor.relative_error` below 1. γ is
    `consensus`, above 0 and at most 1; stronger compression needs a smaller γ. By default it is the
    value that `check` recommends. Other arguments and errors are those of `gossip`.

    Source: Koloskova, Stich and Jaggi 2019, algorithm 2.
    """
    return gossip(ChocoSGD(consensus), optimizer, mixing, compressor, axis_name, **options)


@dataclasses.dataclass(frozen=True)
class _Gossip:
    """`init` and `update` of `gossip`, with its arguments."""

    rule: GossipRule
    optimizer: optax.GradientTransformationExtraArgs
    mixing: MixingMatrix
    compressor: Compressor
    axis_name: AxisName
    local_steps: int
    seed: int
    strictness: Strictness
    same_data: bool

    def init(self, params: PyTree) -> GossipState:
        self._check_validity(params)
        estimates = jax.tree.map(widened, params) if self.rule.keeps_estimates else None
        step = jnp.zeros((), jnp.int32)
        return GossipState(
            self.optimizer.init(params), step, estimates, estimates, *initial_counts()
        )

    def update(
        self,
        updates: PyTree,
        state: optax.OptState,
        params: PyTree | None = None,
        **extra: Any,
    ) -> tuple[PyTree, GossipState]:
        assert isinstance(state, GossipState)
        self._check_call(params)
        x = jax.tree.map(widened, params)
        u, inner, finite = self._local_update(updates, state.inner, params, extra)
        u = jax.tree.map(lambda leaf, like: leaf.astype(like.dtype), u, x)
        worker = WorkerState(x, state.own, state.mixed)
        groups = by_dtype(jax.tree.leaves(params))
        after, sent = self._advance(groups, state.step + 1, worker, u)
        moves = jax.tree.map(lambda new, old: new - old, after.x, x)
        left_out = state.not_finite + ~finite
        return moves, GossipState(inner, state.step + 1, *after[1:], sent, left_out)

    def _check_validity(self, params: PyTree) -> None:
        """Refuses options under which training may not converge, or warns of them."""
        validity = check_validity(
            self.rule.name,
            self.mixing,
            self.compressor if self.rule.compresses else None,
            _size(params),
            consensus=self.rule.consensus if isinstance(self.rule, ChocoSGD) else None,
            optimizer=None if self.strictness == "ignore" else self.optimizer,
            dtype=_coarsest(params),
            same_data=self.same_data,
        )
        enforce(validity, self.strictness)

    def _check_call(self, params: PyTree | None) -> None:
        name = self.rule.name
        if params is None:
            raise OptionError(f"{name} mixes parameters: call update(gradients, state, params)")
        check_all_take_part()
        check_workers(self.mixing.workers, self.axis_name, f"{name}'s mixing matrix")

    def _local_update(
        self, gradients: PyTree, state: optax.OptState, params: PyTree, extra: dict[str, Any]
    ) -> tuple[PyTree, optax.OptState, jax.Array]:
        """The worker's local update, or zero if it is not finite.

        Returns:
            u, the optimizer's state, and [] whether all is finite.
        """
        u, after = self.optimizer.update(gradients, state, params, **extra)
        finite = is_finite((gradients, u))
        u = jax.tree.map(lambda leaf: jnp.where(finite, leaf, 0), u)
        return u, jax.tree.map(partial(jnp.where, finite), after, state), finite

    def _advance(
        self, groups: Groups, step: jax.Array, worker: WorkerState, u: PyTree
    ) -> tuple[WorkerState, jax.Array]:
        """The worker after step `number`, counted from 1, and the bytes that it sent."""
        communicate = partial(self._communicate, groups, step // self.local_steps)
        if self.local_steps == 1:
            return communicate(worker, u)
        return lax.cond(step % self.local_steps == 0, communicate, self._stay, worker, u)

    def _stay(self, worker: WorkerState, u: PyTree) -> tuple[WorkerState, jax.Array]:
        """A step without communication."""
        # A value that varies over the axis, like that of the other branch, as `check_vma` requires.
        nothing = of_this_worker(np.zeros(self.mixing.workers), self.axis_name)
        return worker._replace(x=optax.apply_updates(worker.x, u)), nothing

    def _communicate(
        self, groups: Groups, number: jax.Array, worker: WorkerState, u: PyTree
    ) -> tuple[WorkerState, jax.Array]:
        """Communication `number`, from 1, with the neighbours of this turn."""
        key = jax.random.fold_in(jax.random.key(self.seed), number)
        key = jax.random.fold_in(key, lax.axis_index(self.axis_name))
        turn = (number - 1) % self.mixing.period
        leaves = list(groups.values())
        all_of = [worker.x if tree is None else tree for tree in (*worker, u)]
        before = zip(*(to_vectors(tree, leaves) for tree in all_of), strict=True)
        after, sent = [], jnp.zeros((), jnp.float32)
        for group, (dtype, (x, estimate, mixture, change)) in enumerate(
            zip(groups, before, strict=True)
        ):
            channel = Channel(
                number.astype(x.dtype),
                self.mixing,
                turn,
                self.compressor,
                jax.random.fold_in(key, group),
                x.size,
                dtype,
                self.axis_name,
            )
            after.append(self.rule.communicate(WorkerState(x, estimate, mixture), change, channel))
            sent += channel.sent_bytes
        state = WorkerState(
            *(
                None
                if tree is None
                else from_vectors([vectors[field] for vectors in after], tree, leaves)
                for field, tree in enumerate(worker)
            )
        )
        return state, sent


def _coarsest(params: PyTree) -> jnp.dtype:
    """The type of the parameters with the fewest bits; float32 without parameters."""
    types = [jnp.asarray(leaf).dtype for leaf in jax.tree.leaves(params)]
    return min(types, key=lambda each: jnp.finfo(each).bits, default=jnp.dtype(jnp.float32))


def _size(params: PyTree) -> int:
    """Number of elements of the parameters, which must be floating-point numbers."""
    check_floating(params)
    return sum(jnp.size(leaf) for leaf in jax.tree.leaves(params))
