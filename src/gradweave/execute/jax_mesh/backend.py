"""Schedules inside JAX programs: an all-reduce in place of `jax.lax.psum` within `jax.shard_map`.

Each round becomes the fewest `jax.lax.ppermute` that carry its transfers. Device i along the axis
is the server of rank i. Additions are made in the schedule's order, so the bits are those of
`gradweave.execute.play`, on any number of processes and in every run.

XLA decides how a `ppermute` is carried out: it need not keep to the schedule's routes, nor end a
round before the next one begins. On devices that share memory `jax.lax.psum` is faster.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.typing import NDArray

from gradweave.errors import OptionError, ScheduleError
from gradweave.execute.axis import AXIS, AxisName
from gradweave.execute.jax_mesh.buffers import PyTree, by_dtype, divided, from_rows, joined, to_rows
from gradweave.execute.jax_mesh.permutations import IDLE, OP, SEND, TAKE, WRITE, Loop, Steps, steps
from gradweave.execute.program import check_all_reduce, check_runs, check_servers
from gradweave.execute.reduction import Reduction, check_reduction
from gradweave.schedule.schedule import COPY, REDUCE, Schedule

COMBINE = {"sum": lax.add, "mean": lax.add, "max": lax.max, "min": lax.min}
_BRANCHES = 16
"""Branches of a conditional. XLA's compile time grows with their cube: 9 s for 512 in one
conditional, 0.6 s for as many in a tree of conditionals."""


def all_reduce(
    schedule: Schedule, axis_name: AxisName = AXIS, *, reduction: Reduction = "sum"
) -> Callable[[PyTree], PyTree]:
    """An all-reduce that follows a schedule.

    Use the returned function inside `jax.shard_map`, in place of `jax.lax.psum` or
    `jax.lax.pmean`. It can be compiled, differentiated in both modes, batched with `jax.vmap` and
    put into loops. The derivative of a sum, being a sum, runs by the same schedule.
    `jax.shard_map` cannot know that all servers end with the same values: give it
    ``check_vma=False``, or out_specs that name the axis.

    Args:
        schedule: an all-reduce for as many servers as the axis has devices; verified here.
        axis_name: of the mesh axis; device i along it is the server of rank i.
        reduction: how contributions are combined. Floating-point and complex numbers have the
            mean, all numbers the sum; booleans have maximum (any) and minimum (all).

    Returns:
        A function from a gradient, a pytree of arrays, to the reduced one. Arrays of each type are
        concatenated and cut into the schedule's pieces; types are never mixed or converted.

    Raises:
        ScheduleError: the schedule is for one stage alone, or, when the function is traced, for
            another number of servers.
        InvalidScheduleError: the verifier rejects the schedule.
        OptionError: the reduction is unknown, or, when the function is traced, not for a type.

    Here `jax.vmap` replaces four devices, as it can where all servers send in every round:

    >>> import gradweave as gw
    >>> schedule = gw.schedulers.Ring().schedule(gw.topology.ring(4))
    >>> mean = gw.execute.jax_mesh.all_reduce(schedule, reduction="mean")
    >>> jax.vmap(mean, axis_name="server")(jnp.arange(8.0).reshape(4, 2))
    Array([[3., 4.],
           [3., 4.],
           [3., 4.],
           [3., 4.]], dtype=float32)
    """
    check_all_reduce(schedule)
    return collective(schedule, axis_name, reduction=reduction)


def collective(
    schedule: Schedule, axis_name: AxisName = AXIS, *, reduction: Reduction = "sum"
) -> Callable[[PyTree], PyTree]:
    """The collective of a schedule of any collective.

    As `all_reduce`, except that after a reduce-scatter only the pieces at their roots mean
    anything (`Schedule.piece_offsets` gives the elements of a piece), and that an
    all-gather reads only those and does not reduce.

    Raises:
        ScheduleError: when the function is traced: the schedule is for another number of servers.
        InvalidScheduleError: the verifier rejects the schedule.
        OptionError: the reduction is unknown, or, when the function is traced, not for a type.
    """
    check_reduction(reduction, floating=True, dtype=None)
    check_runs(schedule)

    def run(gradient: PyTree) -> PyTree:
        check_servers(schedule, lax.axis_size(axis_name), what=f"devices along axis {axis_name!r}")
        leaves, structure = jax.tree.flatten(gradient)
        leaves = [jnp.asarray(leaf) for leaf in leaves]
        reduced = list(leaves)
        for dtype, numbers in by_dtype(leaves).items():
            check_dtype(reduction, dtype)
            some = [leaves[number] for number in numbers]
            whole = _reduced(schedule, axis_name, reduction, joined(some))
            for number, leaf in zip(numbers, divided(whole, some), strict=True):
                reduced[number] = leaf
        return structure.unflatten(reduced)

    return run


def sent_bytes(schedule: Schedule, gradient: PyTree) -> NDArray[np.int64]:
    """Bytes that each device sends in the schedule's collective.

    A device sends rows, all as long as the longest piece: one element more than the others where
    the pieces are equal. Where they are not, a schedule with its large pieces cut moves less.

    Args:
        schedule: the schedule.
        gradient: a pytree of arrays, or of shapes and types.

    Returns:
        [N]
    """
    transfers = np.bincount(
        schedule.topology.rank[schedule.source], minlength=schedule.topology.num_servers
    )
    sizes: dict[jnp.dtype, int] = {}
    for leaf in jax.tree.leaves(gradient):
        sizes[leaf.dtype] = sizes.get(leaf.dtype, 0) + leaf.size
    row = sum(row_length(schedule, size) * dtype.itemsize for dtype, size in sizes.items())
    return transfers.astype(np.int64) * row


def row_length(schedule: Schedule, elements: int) -> int:
    """Elements of a row, which is as long as the longest piece.

    Args:
        schedule: the schedule.
        elements: length of the gradient.
    """
    return int(np.diff(schedule.piece_offsets(elements)).max())


def mesh(schedule: Schedule, devices: Sequence[Any] | None = None) -> jax.sharding.Mesh:
    """A mesh with one axis, ``"server"``, on which a schedule can run.

    Args:
        schedule: the schedule.
        devices: at least as many as the schedule has servers; the first ones are taken, in the
            order of the ranks. All devices of all processes if not given.

    Raises:
        ScheduleError: there are too few devices.
    """
    servers = schedule.topology.num_servers
    available = jax.devices() if devices is None else list(devices)
    if len(available) < servers:
        raise ScheduleError(
            f"expected {servers} devices, one for each server of {schedule.topology.name}, got "
            f"{len(available)}; to try it on a processor, set the environment variable "
            f"XLA_FLAGS=--xla_force_host_platform_device_count={servers} before JAX starts"
        )
    return jax.sharding.Mesh(np.asarray(available[:servers]), (AXIS,))


def check_dtype(reduction: Reduction, dtype: jnp.dtype) -> None:
    """Refuses a reduction that a type does not have."""
    check_reduction(reduction, floating=jnp.issubdtype(dtype, jnp.inexact), dtype=dtype)
    if dtype == jnp.bool_ and reduction == "sum":
        raise OptionError(
            "reduction: a sum of booleans is not a boolean; take max (any) or min (all), or "
            "convert to integers first"
        )


def _reduced(
    schedule: Schedule, axis_name: AxisName, reduction: Reduction, elements: jax.Array
) -> jax.Array:
    """[elements] The reduction of one flat array."""
    if not elements.size:
        return elements
    sizes = np.diff(schedule.piece_offsets(elements.size)).tolist()
    rows = varying(to_rows(elements, sizes), axis_name)
    run = partial(play, steps(schedule), axis_name, COMBINE[reduction])
    adds = reduction in ("sum", "mean") and jnp.issubdtype(elements.dtype, jnp.inexact)
    if adds and schedule.collective == "all_reduce":
        # An all-reduced sum is its own transpose. Nothing is solved: of JAX's ways to state that,
        # this alone also has batching and forward mode.
        rows = lax.custom_linear_solve(lambda x: x, rows, lambda _, x: run(x), symmetric=True)
    else:
        rows = run(rows)
    whole = from_rows(rows, sizes)
    if reduction == "mean" and schedule.collective != "all_gather":
        return mean_of(whole, schedule.topology.num_servers)
    return whole


def mean_of(total: jax.Array, servers: int | jax.Array) -> jax.Array:
    """A mean from its total, rounded as NumPy does it.

    Args:
        total: sums.
        servers: how many contributed, to all or to each element.
    """
    if jnp.issubdtype(total.dtype, jnp.complexfloating):
        return total * (1 / servers)
    # XLA turns one divisor for all elements into a factor, which rounds differently. So each
    # element has its own; a NaN may be divided by anything.
    divisor = jnp.where(jnp.isnan(total), 1, jnp.asarray(servers, total.dtype))
    return total / divisor


def varying(rows: jax.Array, axis_name: AxisName) -> jax.Array:
    """The same rows, known to JAX to differ between servers.

    A loop must know so from its first round on, where `jax.shard_map` checks it. The means is a
    slice, which is all of the rows whatever its start, and which XLA removes. `jax.lax.pcast` is
    not in all versions, nor for a map without checks.
    """
    return lax.dynamic_slice_in_dim(rows, lax.axis_index(axis_name), len(rows))


Combine = Callable[[jax.Array, jax.Array], jax.Array]


def play(plan: Steps, axis_name: AxisName, combine: Combine, rows: jax.Array) -> jax.Array:
    """[P, L] The pieces after all rounds."""
    mine = lax.dynamic_index_in_dim(plan.table, lax.axis_index(axis_name), keepdims=False)
    for loop in plan.loops:
        rounds = len(loop.form)
        columns = mine[:, loop.start : loop.start + rounds * loop.slots]
        table = columns.reshape(4, rounds, loop.slots).swapaxes(0, 1)
        play_round = partial(_play_round, loop, axis_name, combine)
        if rounds == 1:
            rows, _ = play_round(rows, (table[0], jnp.int32(0)))
        else:
            rows, _ = lax.scan(play_round, rows, (table, jnp.array(loop.form, jnp.int32)))
    return rows


def _play_round(
    loop: Loop,
    axis_name: AxisName,
    combine: Combine,
    rows: jax.Array,
    instruction: tuple[jax.Array, jax.Array],
) -> tuple[jax.Array, None]:
    """The pieces after one more round.

    Args:
        loop: of the round.
        axis_name: of the servers' axis.
        combine: adds, maximises or minimises.
        rows: [P, L] the pieces.
        instruction: this server's part of the table [4, slots], and the round's form.
    """
    table, form = instruction
    sent = [_row(rows, table[SEND, slot]) for slot in range(loop.slots)]
    branches = [partial(_exchange, form.permutations, axis_name) for form in loop.forms]
    received = _switch(form, branches, sent)
    if loop.slots > 1:
        # All writes wait for all sends, since each takes its piece from this one array. Otherwise
        # XLA could not tell that nothing reads the buffer any more, and would copy all of it.
        together = jnp.stack(received)
        received = [_row(together, table[TAKE, write]) for write in range(loop.slots)]
    for write, (piece, ops) in enumerate(zip(received, loop.ops, strict=True)):
        rows = _written(rows, piece, table[WRITE, write], table[OP, write], ops, combine)
    return rows, None


def _exchange(
    permutations: Sequence[Sequence[tuple[int, int]]], axis_name: AxisName, sent: list[jax.Array]
) -> list[jax.Array]:
    """The pieces received by the permutations of one form; its missing slots are unchanged."""
    received = [
        lax.ppermute(piece, axis_name, permutation)
        for piece, permutation in zip(sent, permutations, strict=False)
    ]
    return received + sent[len(permutations) :]


def _switch(
    number: jax.Array, branches: Sequence[Callable[[list[jax.Array]], list]], operand: list
) -> list[jax.Array]:
    """As `jax.lax.switch`, as a tree of conditionals of few branches."""
    if len(branches) == 1:
        return branches[0](operand)
    width = 1
    while width * _BRANCHES < len(branches):
        width *= _BRANCHES
    parts = [branches[first : first + width] for first in range(0, len(branches), width)]
    subtrees = [partial(_switch, number % width, part) for part in parts]
    return lax.switch(number // width, subtrees, operand)


def _row(rows: jax.Array, number: jax.Array) -> jax.Array:
    return lax.dynamic_index_in_dim(rows, number, keepdims=False)


def _written(
    rows: jax.Array,
    piece: jax.Array,
    number: jax.Array,
    op: jax.Array,
    ops: frozenset[int],
    combine: Combine,
) -> jax.Array:
    """The pieces after a received one is written.

    Args:
        rows: [P, L] the pieces.
        piece: [L] the received one.
        number: of the piece.
        op: of this server: `REDUCE`, `COPY` or `IDLE`.
        ops: of all servers; what none of them needs is not computed.
        combine: adds, maximises or minimises.
    """
    if ops != {COPY}:
        before = _row(rows, number)
        if REDUCE in ops:
            both = combine(before, piece)
            piece = jnp.where(op == COPY, piece, both) if COPY in ops else both
        if IDLE in ops:
            piece = jnp.where(op == IDLE, before, piece)
    return lax.dynamic_update_index_in_dim(rows, piece, number, 0)
