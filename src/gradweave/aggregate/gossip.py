"""Optimizers in which workers keep parameters of their own and mix them with their neighbours'.

Each wraps an optimizer that says what one worker alone would do, and is itself an
`optax.GradientTransformation` for use inside `jax.shard_map`; `update` needs the parameters. Unlike
gradients' aggregations these leave workers with different parameters: give each its own
(`gradweave.aggregate.replicate`), and read out their mean (`gradweave.aggregate.consensus`).

x are a worker's parameters, u what its optimizer adds to them (−ηg of plain gradient descent), W
the mixing matrix, C the compressor. Where a method keeps estimates x̂_j of others' parameters, it
does so as their mixture s = Σ_j W_ij x̂_j, which all that is sent is added to: one more copy of the
parameters instead of one for each neighbour.

Memories and sums are float32 at least, and what is sent is of the parameters' type: in bfloat16
the estimates would drift from what they stand for, a rounding each step.

Where a worker's gradients are not finite, or what its optimizer makes of them, it mixes as if its
optimizer had not been asked (u = 0, and the optimizer's state of before), and counts it: parameters
that begin finite stay so.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from numpy.typing import NDArray

from gradweave.aggregate.compressors import Compressor, Exact
from gradweave.aggregate.finite import check_all_take_part, is_finite
from gradweave.aggregate.messages import (
    check_workers,
    exchanged,
    none_left_out,
    nothing_sent,
    of_this_worker,
)
from gradweave.aggregate.mixing import MixingMatrix
from gradweave.aggregate.rules import (
    CONSENSUS,
    After,
    Choco,
    Difference,
    Extrapolation,
    Local,
    Mix,
    Naive,
    Rule,
    Talk,
)
from gradweave.aggregate.validity import Strictness, check, judged
from gradweave.errors import OptionError
from gradweave.execute.axis import AXIS, AxisName
from gradweave.execute.jax_mesh.buffers import PyTree, by_dtype, divided, joined

MOST_LOCAL_STEPS = 1_000_000
"""With more, workers would in effect never communicate."""


class GossipState(NamedTuple):
    """What a worker remembers between updates."""

    inner: optax.OptState
    """Of the wrapped optimizer."""
    step: jax.Array
    """Updates so far, int32."""
    own: PyTree
    """What the method needs of its own past: x̂ or the parameters when it last sent; else None."""
    mixed: PyTree
    """s, the mixture of what neighbours are known to have; else None."""
    sent_bytes: jax.Array
    """Bytes that this worker sent in the last update; float32, thus exact up to 16 MiB and to one
    part in 16 million above."""
    not_finite: jax.Array
    """Updates so far in which this worker's gradients were not finite, and so left out; int32."""


def d_psgd(
    optimizer: optax.GradientTransformation,
    mixing: MixingMatrix,
    axis_name: AxisName = AXIS,
    *,
    local_steps: int = 1,
    strictness: Strictness = "warn",
    same_data: bool = False,
) -> optax.GradientTransformationExtraArgs:
    """Decentralized parallel SGD: x_i ← Σ_j W_ij x_j + u_i.

    Args:
        optimizer: what a worker alone would do.
        mixing: whose parameters it averages with its own; may vary in time.
        axis_name: of the workers' axis; worker i is device i along it.
        local_steps: updates between communications; the others send nothing.
        strictness: what to do about a doubtful choice, see `gradweave.aggregate.check`.
        same_data: whether all workers' data are drawn alike.

    Raises:
        OptionError: an argument is out of its range, or, with ``"refuse"``, in doubt.

    Source: Lian et al. 2017, algorithm 1. With `MixingMatrix.complete` and local steps it is local
    SGD (Stich 2019).
    """
    return _gossip(
        Mix(),
        optimizer,
        mixing,
        Exact(),
        axis_name,
        local_steps,
        0,
        strictness,
        same_data,
    )


def naive_psgd(
    optimizer: optax.GradientTransformation,
    mixing: MixingMatrix,
    compressor: Compressor,
    axis_name: AxisName = AXIS,
    *,
    local_steps: int = 1,
    seed: int = 0,
) -> optax.GradientTransformationExtraArgs:
    """D-PSGD that sends compressed parameters, x_i ← Σ_j W_ij C(x_j) + u_i: not to be used.

    The error of what is sent stays in the parameters, and does not vanish with the step size. Here
    for comparison.

    Source: Tang et al. 2018, section 3.
    """
    return _gossip(
        Naive(),
        optimizer,
        mixing,
        compressor,
        axis_name,
        local_steps,
        seed,
        "ignore",
        True,
    )


def dcd_psgd(
    optimizer: optax.GradientTransformation,
    mixing: MixingMatrix,
    compressor: Compressor,
    axis_name: AxisName = AXIS,
    *,
    local_steps: int = 1,
    seed: int = 0,
    strictness: Strictness = "warn",
    same_data: bool = False,
) -> optax.GradientTransformationExtraArgs:
    """Difference compression: only C of how parameters change is sent, and is what changes them.

    q = C(Σ_j W_ij x̂_j + u_i − x_i), then x_i ← x_i + q at its owner and all its neighbours.

    Args:
        optimizer: what a worker alone would do.
        mixing: whose parameters it averages with its own; the same in all steps.
        compressor: unbiased, and with a small `Compressor.relative_error`.
        axis_name: of the workers' axis.
        local_steps: updates between communications.
        seed: of the compressor's draws.
        strictness: what to do about a doubtful choice, see `gradweave.aggregate.check`.
        same_data: whether all workers' data are drawn alike.

    Raises:
        OptionError: an argument is out of its range, or, with ``"refuse"``, in doubt.

    Source: Tang et al. 2018, algorithm 1. All workers begin with the same parameters.
    """
    return _gossip(
        Difference(),
        optimizer,
        mixing,
        compressor,
        axis_name,
        local_steps,
        seed,
        strictness,
        same_data,
    )


def ecd_psgd(
    optimizer: optax.GradientTransformation,
    mixing: MixingMatrix,
    compressor: Compressor,
    axis_name: AxisName = AXIS,
    *,
    local_steps: int = 1,
    seed: int = 0,
    strictness: Strictness = "warn",
    same_data: bool = False,
) -> optax.GradientTransformationExtraArgs:
    """Extrapolation compression: C(z) is sent, with z ever farther ahead on the parameters' way.

    x⁺ = Σ_j W_ij x̂_j + u_i, z = (1 − t/2)·x_i + (t/2)·x⁺, x̂_i ← (1 − 2/t)·x̂_i + (2/t)·C(z),
    x_i ← x⁺, in communication t = 1, 2, … Errors average out if they do not grow with z, as those
    of `Compressor.absolute_error` do not.

    Args:
        optimizer: what a worker alone would do.
        mixing: whose parameters it averages with its own; the same in all steps.
        compressor: unbiased, and with a bounded `Compressor.absolute_error`.
        axis_name: of the workers' axis.
        local_steps: updates between communications.
        seed: of the compressor's draws.
        strictness: what to do about a doubtful choice, see `gradweave.aggregate.check`.
        same_data: whether all workers' data are drawn alike.

    Raises:
        OptionError: an argument is out of its range, or, with ``"refuse"``, in doubt.

    Source: Tang et al. 2018, algorithm 2. All workers begin with the same parameters.
    """
    return _gossip(
        Extrapolation(),
        optimizer,
        mixing,
        compressor,
        axis_name,
        local_steps,
        seed,
        strictness,
        same_data,
    )


def choco_sgd(
    optimizer: optax.GradientTransformation,
    mixing: MixingMatrix,
    compressor: Compressor,
    axis_name: AxisName = AXIS,
    *,
    consensus: float = CONSENSUS,
    local_steps: int = 1,
    seed: int = 0,
    strictness: Strictness = "warn",
    same_data: bool = False,
) -> optax.GradientTransformationExtraArgs:
    """CHOCO-SGD: what is not sent now is kept and sent later, so that any compressor will do.

    y = x_i + u_i, x̂_i ← x̂_i + C(y − x̂_i) at its owner and all its neighbours,
    x_i ← y + γ·(Σ_j W_ij x̂_j − x̂_i).

    Args:
        optimizer: what a worker alone would do.
        mixing: whose parameters it averages with its own; the same in all steps.
        compressor: biased or not, with `Compressor.relative_error` below 1.
        axis_name: of the workers' axis.
        consensus: γ, above 0 and at most 1; the stronger the compression the smaller.
        local_steps: updates between communications.
        seed: of the compressor's draws.
        strictness: what to do about a doubtful choice, see `gradweave.aggregate.check`.
        same_data: whether all workers' data are drawn alike.

    Raises:
        OptionError: an argument is out of its range, or, with ``"refuse"``, in doubt.

    Source: Koloskova, Stich and Jaggi 2019, algorithm 2. All workers begin with the same
    parameters.
    """
    if not 0 < consensus <= 1:
        raise OptionError(f"consensus: expected above 0 and at most 1, got {consensus}")
    return _gossip(
        Choco(consensus),
        optimizer,
        mixing,
        compressor,
        axis_name,
        local_steps,
        seed,
        strictness,
        same_data,
    )


def _gossip(
    rule: Rule,
    optimizer: optax.GradientTransformation,
    mixing: MixingMatrix,
    compressor: Compressor,
    axis_name: AxisName,
    local_steps: int,
    seed: int,
    strictness: Strictness,
    same_data: bool,
) -> optax.GradientTransformationExtraArgs:
    """A rule around an optimizer, which is given what `update` is given beyond the parameters."""
    if not 1 <= local_steps <= MOST_LOCAL_STEPS:
        raise OptionError(f"local_steps: expected 1 to {MOST_LOCAL_STEPS:,}, got {local_steps}")
    if rule.remembers and mixing.period > 1:
        raise OptionError(
            f"{rule.name}: expected a mixing matrix that is the same in all steps, got {mixing}; "
            "who listens only now and then does not know what was sent meanwhile. d_psgd takes it"
        )

    wrapped = optax.with_extra_args_support(optimizer)
    meeting = partial(_met, rule, mixing, compressor, axis_name, jax.random.key(seed))

    def init(params: PyTree) -> GossipState:
        validity = check(
            rule.name,
            mixing,
            compressor if rule.compresses else None,
            _size(params),
            consensus=rule.consensus if isinstance(rule, Choco) else CONSENSUS,
            optimizer=None if strictness == "ignore" else optimizer,
            dtype=_coarsest(params),
            same_data=same_data,
        )
        judged(validity, strictness)
        kept = jax.tree.map(_wide, params) if rule.remembers else None
        step = jnp.zeros((), jnp.int32)
        inner = wrapped.init(params)
        return GossipState(inner, step, kept, kept, nothing_sent(), none_left_out())

    def update(
        updates: PyTree, state: optax.OptState, params: PyTree | None = None, **extra: Any
    ) -> tuple[PyTree, GossipState]:
        assert isinstance(state, GossipState)
        if params is None:
            raise OptionError(
                f"{rule.name} mixes parameters: call update(gradients, state, params)"
            )
        check_all_take_part()
        check_workers(mixing.workers, axis_name, f"{rule.name}'s mixing matrix")
        alone, inner = wrapped.update(updates, state.inner, params, **extra)
        finite = is_finite((updates, alone))
        alone = jax.tree.map(lambda u: jnp.where(finite, u, 0), alone)
        inner = jax.tree.map(partial(jnp.where, finite), inner, state.inner)
        number = (state.step + 1) // local_steps
        wide = jax.tree.map(_wide, params)
        alone = jax.tree.map(lambda u, x: u.astype(x.dtype), alone, wide)
        here = Local(wide, alone, state.own, state.mixed)
        meet = partial(meeting, by_dtype(jax.tree.leaves(params)))
        turns = [partial(meet, turn, number) for turn in range(mixing.period)]

        def talk(here: Local) -> tuple[After, jax.Array]:
            if len(turns) == 1:
                return turns[0](here)
            return lax.switch((number - 1) % len(turns), turns, here)

        def stay(here: Local) -> tuple[After, jax.Array]:
            x = optax.apply_updates(here.x, here.u)
            # A value of this worker, as under the other branch, which `check_vma` wants.
            nothing = of_this_worker(np.zeros(mixing.workers), axis_name)
            return After(x, here.own, here.mixed), nothing

        if local_steps == 1:
            after, sent = talk(here)
        else:
            after, sent = lax.cond((state.step + 1) % local_steps == 0, talk, stay, here)
        moves = jax.tree.map(lambda new, old: new - old, after.x, wide)
        left_out = state.not_finite + ~finite
        return moves, GossipState(inner, state.step + 1, after.own, after.mixed, sent, left_out)

    return optax.GradientTransformationExtraArgs(init, update)


def _met(
    rule: Rule,
    mixing: MixingMatrix,
    compressor: Compressor,
    axis_name: AxisName,
    key: jax.Array,
    groups: dict[jnp.dtype, list[int]],
    turn: int,
    number: jax.Array,
    here: Local,
) -> tuple[After, jax.Array]:
    """One communication.

    Args:
        rule: what is done.
        mixing: with whom.
        compressor: of all that is sent.
        axis_name: of the workers' axis.
        key: of all workers' draws in all communications.
        groups: numbers of the parameters' leaves, by their type.
        turn: step of the mixing matrix's period.
        number: of the communication, from 1.
        here: pytrees, of the parameters' shapes; float32 at least.

    Returns:
        Pytrees of the same shapes, and the bytes that this worker sent.
    """
    key = jax.random.fold_in(jax.random.fold_in(key, number), lax.axis_index(axis_name))
    kept = of_this_worker(np.diag(mixing.weights[turn]), axis_name)
    sent = np.zeros(mixing.workers, np.int64)
    leaves = list(groups.values())
    vectors = Local(*(_vectors(tree, leaves) for tree in here))
    ends = []
    for group, (sent_as, x) in enumerate(zip(groups, vectors.x, strict=True)):
        talk = Talk(
            number.astype(x.dtype),
            partial(_compressed, compressor, jax.random.fold_in(key, group), sent_as),
            partial(compressor.decompress, size=x.size, dtype=x.dtype),
            partial(_mixed, mixing, compressor, axis_name, turn, kept, x, sent),
            lambda vector, to=sent_as: vector.astype(to).astype(vector.dtype),
        )
        memory = (vectors.own[group], vectors.mixed[group]) if rule.remembers else (x, x)
        ends.append(rule.communicate(Local(x, vectors.u[group], *memory), talk))
    x, own, mixed = ([getattr(end, name) for end in ends] for name in After._fields)
    x, own, mixed = (_tree(each, here.x, leaves) for each in (x, own, mixed))
    memory = (own, mixed) if rule.remembers else (None, None)
    return After(x, *memory), of_this_worker(sent, axis_name)


def _wide(leaf: jax.Array) -> jax.Array:
    """As float32, unless it is more precise."""
    leaf = jnp.asarray(leaf)
    return leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32))


def _compressed(
    compressor: Compressor, key: jax.Array, dtype: jnp.dtype, vector: jax.Array
) -> PyTree:
    """[size] → payload, of the type's precision."""
    return compressor.compress(key, vector.astype(dtype))


def _vectors(tree: PyTree, groups: list[list[int]]) -> list[jax.Array]:
    """All elements of a tree, a vector for each group of leaves."""
    leaves = jax.tree.leaves(tree)
    return [joined([leaves[at] for at in numbers]) for numbers in groups if leaves]


def _tree(vectors: list[jax.Array], like: PyTree, groups: list[list[int]]) -> PyTree:
    """The opposite of `_vectors`."""
    leaves, structure = jax.tree.flatten(like)
    whole = list(leaves)
    for vector, numbers in zip(vectors, groups, strict=True):
        parts = divided(vector, [leaves[at] for at in numbers])
        for at, part in zip(numbers, parts, strict=True):
            whole[at] = part
    return structure.unflatten(whole)


def _mixed(
    mixing: MixingMatrix,
    compressor: Compressor,
    axis_name: AxisName,
    turn: int,
    kept: jax.Array,
    x: jax.Array,
    sent: NDArray[np.int64],
    payload: PyTree,
) -> jax.Array:
    """[size] What `Talk.mix` does; adds to `sent` [N] what each worker sends."""

    def read(payload: PyTree) -> jax.Array:
        return compressor.decompress(payload, x.size, x.dtype)

    arrived, number_sent = exchanged(payload, mixing, turn, axis_name)
    sent += number_sent
    total = kept.astype(x.dtype) * read(payload)
    for weight, came in arrived:
        total += weight.astype(x.dtype) * read(came)
    return total


def _coarsest(params: PyTree) -> jnp.dtype:
    """The type of the parameters with the fewest bits; float32 without parameters."""
    types = [jnp.asarray(leaf).dtype for leaf in jax.tree.leaves(params)]
    return min(types, key=lambda each: jnp.finfo(each).bits, default=jnp.dtype(jnp.float32))


def _size(params: PyTree) -> int:
    """Elements of the parameters.

    Raises:
        OptionError: some are no floating-point numbers.
    """
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if not jnp.issubdtype(jnp.asarray(leaf).dtype, jnp.floating):
            name = jax.tree_util.keystr(path)
            raise OptionError(
                f"parameter {name or 'given'}: expected floating-point numbers, which can be "
                f"mixed, got {jnp.asarray(leaf).dtype}; leave it out, as with optax.masked"
            )
    return sum(jnp.size(leaf) for leaf in jax.tree.leaves(params))
