"""Demands inside JAX programs: any collectives of any groups as one call within `jax.shard_map`.

A device's memory has a row for each piece that its server contributes to, gets or passes on, so
that it grows with what is the server's own, not with the demand.
"""

import dataclasses
import functools
import weakref
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.typing import NDArray

from gradweave.errors import OptionError
from gradweave.execute.axis import AXIS, AxisName
from gradweave.execute.jax_mesh.backend import COMBINE, check_dtype, mean_of, play, varying
from gradweave.execute.jax_mesh.permutations import SEND, WRITE, Steps, steps
from gradweave.execute.layout import Layout
from gradweave.execute.program import check_runs, check_servers
from gradweave.execute.reduction import Reduction, check_reduction
from gradweave.schedule.schedule import Schedule


def exchange(
    schedule: Schedule, axis_name: AxisName = AXIS, *, reduction: Reduction = "sum"
) -> Callable[[jax.Array], jax.Array]:
    """Does what a demand asks for: any collectives of any groups, such as an all-to-all.

    Use the returned function inside `jax.shard_map`. It can be compiled, differentiated and batched
    with `jax.vmap`. Of a mesh of several axes, name them all: one call is then that of all groups
    along each axis.

    Args:
        schedule: of a demand, for as many servers as the axes have devices; verified here.
        axis_name: of the mesh axis, or of several; device i along them, the last one running
            fastest, is the server of rank i.
        reduction: sum, mean, max or min, for blocks of several contributors.

    Returns:
        A function from an array of the blocks that a server contributes to, in the demand's order,
        to one of those that it is to get. Devices have arrays of one length: that of the server
        with the most, the others' filled up; with zeros, where they are results.

    Raises:
        ScheduleError: the schedule has no demand, or, when the function is traced, is for another
            number of servers.
        InvalidScheduleError: the verifier rejects the schedule.
        OptionError: the reduction is unknown, or, when the function is traced, not for a type, or
            the array has another length or a type whose elements do not fill the blocks.

    >>> import gradweave as gw
    >>> net = gw.topology.ring(3)
    >>> demand = gw.schedule.demand_of(net, [gw.schedule.Job("all_to_all", 24)])  # 2 of 3 × 8 bytes
    >>> found = gw.solve(net, jobs=demand, time_limit=1).schedule
    >>> swap = gw.execute.jax_mesh.exchange(found)
    >>> jax.vmap(swap, axis_name="server")(jnp.arange(12.0).reshape(3, 4))
    Array([[ 4.,  5.,  8.,  9.],
           [ 0.,  1., 10., 11.],
           [ 2.,  3.,  6.,  7.]], dtype=float32)
    """
    schedule.demanded  # noqa: B018  # refuses a schedule without one
    check_reduction(reduction, floating=True, dtype=None)
    check_runs(schedule)

    def run(send: jax.Array) -> jax.Array:
        check_servers(schedule, lax.axis_size(axis_name), what=f"devices along axis {axis_name!r}")
        send = jnp.asarray(send)
        check_dtype(reduction, send.dtype)
        table = _table(schedule, send.dtype.itemsize)
        if send.shape != (table.longest_given,):
            raise OptionError(
                f"send: expected a vector of {table.longest_given:,} elements of {send.dtype}, as "
                f"the server with the most contributes, got shape {send.shape}"
            )
        return _exchanged(table, axis_name, reduction, send)

    return run


@dataclasses.dataclass(frozen=True, eq=False)
class _Table:
    """What each device does, its pieces numbered by the R rows of its memory."""

    steps: Steps
    given_at: NDArray[np.int32]
    """[N, R] where each row begins in what a server contributes; its end where it does not."""
    wanted_row: NDArray[np.int32]
    """[N, W] rows that a server is to get, in order, then any."""
    wanted_at: NDArray[np.int32]
    """[N, W] where they begin in what it gets; its end for those after them."""
    wanted_count: NDArray[np.int32]
    """[N] elements that it gets."""
    contributors: NDArray[np.int32]
    """[N, R] of each row."""
    row_length: int
    longest_given: int
    longest_wanted: int


_tables: weakref.WeakKeyDictionary[Schedule, dict[int, _Table]] = weakref.WeakKeyDictionary()


def _table(schedule: Schedule, itemsize: int) -> _Table:
    """The table of a schedule and a size of elements; derived once."""
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
    for column in (SEND, WRITE):  # the idle ones name piece 0, which may be no piece of theirs
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
    """[most elements that a server gets] what a server gets."""

    def mine(column: NDArray) -> jax.Array:
        return lax.dynamic_index_in_dim(column, lax.axis_index(axis_name), keepdims=False)

    length = table.row_length
    # Past the end there are zeros, for rows that the server does not contribute to.
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

    # In order, so that the end of a row that is not full is overwritten by the next one.
    whole = varying(jnp.zeros(table.longest_wanted + length, send.dtype), axis_name)
    whole, _ = lax.scan(put, whole, (mine(table.wanted_row), mine(table.wanted_at)))
    whole = whole[: table.longest_wanted]
    return jnp.where(jnp.arange(table.longest_wanted) < mine(table.wanted_count), whole, 0)
