"""How a schedule runs inside a JAX program.

Each round becomes the fewest `jax.lax.ppermute` calls that carry its transfers. Device i along the
axis is the server of rank i. Additions are made in the schedule's order, so the bits are those of
`gradweave.execute.play`, on any number of processes and in every run.

XLA decides how to carry out a `ppermute`: it may use other routes than the schedule, and may begin
a round before the previous one ends. On devices that share memory, `jax.lax.psum` is faster.
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
from gradweave.execute.reduction import Reduction, check_reduction
from gradweave.schedules.given import ScheduleLike, as_schedule
from gradweave.schedules.schedule import COPY, REDUCE, Schedule

COMBINE = {"sum": lax.add, "mean": lax.add, "max": lax.max, "min": lax.min}
_BRANCHES = 16
"""Branches per conditional. XLA's compile time grows with the cube of this number: 512 branches
take 9 s in one conditional, and 0.6 s in a tree of conditionals."""


def reduced(
    schedule: Schedule, axis_name: AxisName, reduction: Reduction, gradient: PyTree
) -> PyTree:
    """Runs the schedule's collective on a pytree; arrays of each type are concatenated."""
    leaves, structure = jax.tree.flatten(gradient)
    leaves = [jnp.asarray(leaf) for leaf in leaves]
    results = list(leaves)
    for dtype, numbers in by_dtype(leaves).items():
        check_dtype(reduction, dtype)
        some = [leaves[number] for number in numbers]
        whole = _reduced(schedule, axis_name, reduction, joined(some))
        for number, leaf in zip(numbers, divided(whole, some), strict=True):
            results[number] = leaf
    return structure.unflatten(results)


def sent_bytes(schedule: Schedule, gradient: PyTree) -> NDArray[np.int64]:
    """Bytes that each device sends in the schedule's collective.

    A device sends rows that are all as long as the longest piece. If pieces are equal, that is at
    most one element more than each piece; if not, a schedule whose large pieces are cut moves less.

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
    """Number of elements in a row, which is as long as the longest piece.

    Args:
        schedule: the schedule.
        elements: length of the gradient.
    """
    return int(np.diff(schedule.piece_offsets(elements)).max())


def server_mesh(schedule: ScheduleLike, devices: Sequence[Any] | None = None) -> jax.sharding.Mesh:
    """A mesh with one axis, ``"server"``, on which a schedule can run.

    Args:
        schedule: the schedule.
        devices: at least as many as the schedule has servers; the first of them are used, in rank
            order. If not given, all devices of all processes.

    Raises:
        ScheduleError: there are too few devices.
    """
    schedule = as_schedule(schedule)
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
    """Refuses a reduction that does not apply to a type."""
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
        # An all-reduced sum is its own transpose. This solves nothing: among JAX's ways to state a
        # transpose, only this one also supports batching and forward mode.
        rows = lax.custom_linear_solve(lambda x: x, rows, lambda _, x: run(x), symmetric=True)
    else:
        rows = run(rows)
    whole = from_rows(rows, sizes)
    if reduction == "mean" and schedule.collective != "all_gather":
        return mean_of(whole, schedule.topology.num_servers)
    return whole


def mean_of(total: jax.Array, servers: int | jax.Array) -> jax.Array:
    """A mean from its total, with NumPy's rounding.

    Args:
        total: the sums.
        servers: number of contributors, for all elements or for each element.
    """
    if jnp.issubdtype(total.dtype, jnp.complexfloating):
        return total * (1 / servers)
    # XLA turns one divisor for all elements into a factor, which rounds differently. So each
    # element gets a separate divisor; for a NaN, any divisor will do.
    divisor = jnp.where(jnp.isnan(total), 1, jnp.asarray(servers, total.dtype))
    return total / divisor


def varying(rows: jax.Array, axis_name: AxisName) -> jax.Array:
    """The same rows, marked for JAX as differing between servers.

    If `jax.shard_map` checks this, a loop needs the mark before its first round. The mark is a
    slice that covers all rows whatever its start, and that XLA removes. `jax.lax.pcast` is missing
    from some versions of JAX, and does not work in a map without checks.
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
        loop: the loop that the round belongs to.
        axis_name: name of the servers' axis.
        combine: adds, maximises or minimises.
        rows: [P, L] the pieces.
        instruction: this server's part of the table [4, slots], and the form of the round.
    """
    table, form = instruction
    sent = [_row(rows, table[SEND, slot]) for slot in range(loop.slots)]
    branches = [partial(_exchange, form.permutations, axis_name) for form in loop.forms]
    received = _switch(form, branches, sent)
    if loop.slots > 1:
        # All writes wait for all sends, since each takes its piece from this one array. Otherwise
        # XLA could not tell that the buffer is no longer read, and would copy all of it.
        together = jnp.stack(received + sent if loop.takes_own else received)
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
    """Works like `jax.lax.switch`, by a tree of conditionals with few branches."""
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
    """The pieces after a received piece is written.

    Args:
        rows: [P, L] the pieces.
        piece: [L] the received piece.
        number: number of the piece.
        op: this server's op: `REDUCE`, `COPY` or `IDLE`.
        ops: the ops of all servers; only the values that some server needs are computed.
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
