"""Demands inside JAX programs: any collectives of any groups as one call within `jax.shard_map`.

A device's memory has a row only for each piece that its server contributes to, receives or passes
on. So it grows with the server's part of the demand, not with the whole demand.
"""

import dataclasses
import functools
import weakref

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.typing import NDArray

from gradweave.errors import OptionError
from gradweave.execute.axis import AxisName
from gradweave.execute.jax_mesh.backend import COMBINE, check_dtype, mean_of, play, varying
from gradweave.execute.jax_mesh.permutations import SEND, WRITE, Steps, steps
from gradweave.execute.layout import Layout
from gradweave.execute.reduction import Reduction
from gradweave.schedules.schedule import Schedule


def exchanged(
    schedule: Schedule, axis_name: AxisName, reduction: Reduction, send: jax.Array
) -> jax.Array:
    """Runs the schedule of a demand on the blocks that this server contributes to."""
    send = jnp.asarray(send)
    check_dtype(reduction, send.dtype)
    table = _table(schedule, send.dtype.itemsize)
    if send.shape != (table.longest_given,):
        raise OptionError(
            f"send: expected a vector of {table.longest_given:,} elements of {send.dtype}, "
            f"for the server that contributes most, got shape {send.shape}"
        )
    return _exchanged(table, axis_name, reduction, send)


@dataclasses.dataclass(frozen=True, eq=False)
class _Table:
    """The steps of each device, with its pieces numbered by the R rows of its memory."""

    steps: Steps
    given_at: NDArray[np.int32]
    """[N, R] start of each row in a server's input, or the end of the input if it does not give
    it."""
    wanted_row: NDArray[np.int32]
    """[N, W] rows that a server receives as results, in order; padded with any rows."""
    wanted_at: NDArray[np.int32]
    """[N, W] start of those rows in a server's result, or the end of the result for the padding."""
    wanted_count: NDArray[np.int32]
    """[N] number of elements in a server's result."""
    contributors: NDArray[np.int32]
    """[N, R] number of contributors of each row."""
    row_length: int
    longest_given: int
    longest_wanted: int


_tables: weakref.WeakKeyDictionary[Schedule, dict[int, _Table]] = weakref.WeakKeyDictionary()


def _table(schedule: Schedule, itemsize: int) -> _Table:
    """The table of a schedule and a size of elements; derived only once."""
    made = _tables.setdefault(schedule, {})
    if itemsize not in made:
        made[itemsize] = _made_table(schedule, itemsize)
    return made[itemsize]


def _made_table(schedule: Schedule, itemsize: int) -> _Table:
    servers = schedule.topology.num_servers
    layouts = [Layout.of(schedule, rank, itemsize) for rank in range(servers)]
    used = np.array([layout.start >= 0 for layout in layouts])
    row = np.maximum(np.cumsum(used, axis=1) - 1, 0)
    rows = max(int(used.sum(1).max()), 1)
    wanted = max(int(layout.wanted.sum()) for layout in layouts)
    given = max(layout.count(layout.given) for layout in layouts)
    gotten = max(layout.count(layout.wanted) for layout in layouts)
    given_at = np.full((servers, rows), given, np.int32)
    wanted_row = np.zeros((servers, wanted), np.int32)
    wanted_at = np.full((servers, wanted), gotten, np.int32)
    contributors = np.ones((servers, rows), np.int32)
    for rank, layout in enumerate(layouts):
        size = layout.size[layout.given]
        given_at[rank, row[rank, layout.given]] = np.cumsum(size) - size
        size = layout.size[layout.wanted]
        wanted_row[rank, : len(size)] = row[rank, layout.wanted]
        wanted_at[rank, : len(size)] = np.cumsum(size) - size
        counts = schedule.contributors.sizes[layout.wanted]
        contributors[rank, row[rank, layout.wanted]] = counts
    plan = steps(schedule)
    table = plan.table.copy()
    for column in (SEND, WRITE):  # idle entries name piece 0, which the server may not have
        table[:, column] = np.take_along_axis(row, plan.table[:, column], axis=1)
    return _Table(
        dataclasses.replace(plan, table=table),
        given_at,
        wanted_row,
        wanted_at,
        np.array([layout.count(layout.wanted) for layout in layouts], np.int32),
        contributors,
        int(layouts[0].size.max()),
        given,
        gotten,
    )


def _exchanged(
    table: _Table, axis_name: AxisName, reduction: Reduction, send: jax.Array
) -> jax.Array:
    """[longest result] the result of a server."""

    def mine(column: NDArray) -> jax.Array:
        return lax.dynamic_index_in_dim(column, lax.axis_index(axis_name), keepdims=False)

    length = table.row_length
    # Zeros past the end serve for the rows that the server does not contribute to.
    padded = jnp.concatenate([send, jnp.zeros(length, send.dtype)])
    cut = functools.partial(lax.dynamic_slice_in_dim, padded, slice_size=length)
    rows = varying(jax.vmap(cut)(mine(table.given_at)), axis_name)
    rows = play(table.steps, axis_name, COMBINE[reduction], rows)
    if reduction == "mean":
        rows = mean_of(rows, mine(table.contributors)[:, None])

    def put(whole: jax.Array, one: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        row, at = one
        piece = lax.dynamic_index_in_dim(rows, row, keepdims=False)
        return lax.dynamic_update_slice_in_dim(whole, piece, at, 0), None

    # In order, so that each row overwrites the padding of the row before it.
    whole = varying(jnp.zeros(table.longest_wanted + length, send.dtype), axis_name)
    whole, _ = lax.scan(put, whole, (mine(table.wanted_row), mine(table.wanted_at)))
    whole = whole[: table.longest_wanted]
    return jnp.where(jnp.arange(table.longest_wanted) < mine(table.wanted_count), whole, 0)
