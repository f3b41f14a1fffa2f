"""A schedule along the axis of a JAX mesh: instead of `jax.lax.psum` inside `jax.shard_map`."""

import jax
from jax import lax
from numpy.typing import NDArray

from gradweave.execute.axis import AXIS, AxisName
from gradweave.execute.jax_mesh.backend import reduced, sent_bytes
from gradweave.execute.jax_mesh.buffers import PyTree
from gradweave.execute.jax_mesh.demands import exchanged
from gradweave.execute.program import check_all_reduce, check_runs, check_servers
from gradweave.execute.reduction import Reduction, check_reduction
from gradweave.schedules.given import ScheduleLike, as_schedule


class Collective:
    """A schedule along an axis of a mesh, to be called inside `jax.shard_map`.

    It replaces `jax.lax.psum` or `jax.lax.pmean`, and can be compiled, differentiated in both
    modes, batched with `jax.vmap` and put into loops. The derivative of a sum is a sum, and runs
    by the same schedule. `jax.shard_map` cannot know that all servers end with the same
    values: give it ``check_vma=False``, or out_specs that name the axis.

    Schedules of any collective: after a reduce-scatter, only the pieces at their roots are
    meaningful (`Schedule.piece_offsets` gives the elements of a piece); an all-gather reads only
    those pieces and does not reduce. For the schedule of a demand see `exchange`.

    Args:
        schedule: the schedule; verified here.
        axis_name: of the mesh axis; device i along it is the server of rank i.
        reduction: how contributions are combined. The mean is for floating-point and complex
            numbers, the sum for all numbers; booleans have maximum (any) and minimum (all).

    Raises:
        InvalidScheduleError: the verifier rejects the schedule.
        OptionError: the reduction is unknown.

    Here `jax.vmap` replaces four devices; it can, since all servers send in every round:

    >>> import gradweave as gw
    >>> import jax.numpy as jnp
    >>> schedule = gw.schedulers.Ring().schedule(gw.topology.ring(4))
    >>> mean = gw.jax.Collective(schedule, reduction="mean")
    >>> jax.vmap(mean, axis_name="server")(jnp.arange(8.0).reshape(4, 2))
    Array([[3., 4.],
           [3., 4.],
           [3., 4.],
           [3., 4.]], dtype=float32)
    """

    def __init__(
        self, schedule: ScheduleLike, axis_name: AxisName = AXIS, *, reduction: Reduction = "sum"
    ) -> None:
        check_reduction(reduction, floating=True, dtype=None)
        schedule = as_schedule(schedule)
        check_runs(schedule)
        self.schedule = schedule
        self.axis_name = axis_name
        self.reduction: Reduction = reduction

    def __call__(self, gradient: PyTree) -> PyTree:
        """Runs the collective.

        Args:
            gradient: a pytree of arrays. Arrays of each type are concatenated and cut into the
                schedule's pieces; types are never mixed or converted. Of a demand, one vector.

        Raises:
            ScheduleError: when traced: the axis has another number of devices.
            OptionError: when traced: a type that does not have the reduction.
        """
        size = lax.axis_size(self.axis_name)
        check_servers(self.schedule, size, what=f"devices along axis {self.axis_name!r}")
        run = reduced if self.schedule.demand is None else exchanged
        return run(self.schedule, self.axis_name, self.reduction, gradient)

    def sent_bytes(self, gradient: PyTree) -> NDArray:
        """[N] bytes that each device sends.

        A device sends rows, all as long as the longest piece: one element more than the others if
        the pieces are equal. If they are not, a schedule with its large pieces cut moves less.

        Args:
            gradient: a pytree of arrays, or of shapes and types.
        """
        return sent_bytes(self.schedule, gradient)


def all_reduce(
    gradient: PyTree,
    schedule: ScheduleLike,
    axis_name: AxisName = AXIS,
    *,
    reduction: Reduction = "sum",
) -> PyTree:
    """The reduction of all devices' gradients, by a schedule that all-reduces.

    One call of a `Collective`, which has the details.

    Raises:
        ScheduleError: the schedule is of one stage, or for another number of servers.
    """
    schedule = as_schedule(schedule)
    check_all_reduce(schedule)
    return Collective(schedule, axis_name, reduction=reduction)(gradient)


def exchange(
    send: jax.Array,
    schedule: ScheduleLike,
    axis_name: AxisName = AXIS,
    *,
    reduction: Reduction = "sum",
) -> jax.Array:
    """Carries out a demand: any collectives among any groups, such as an all-to-all.

    One call of a `Collective`. For a mesh of several axes, name all axes: one call then runs
    the collectives of all groups along each axis.

    Args:
        send: the blocks that a server contributes to, in the demand's order. All devices have
            vectors of the same length: that of the server with the most elements.
        schedule: a schedule of a demand for as many servers as the axes have devices; verified
            here.
        axis_name: name of the mesh axis, or names of several; device i along them, the last axis
            varying fastest, is the server of rank i.
        reduction: sum, mean, max or min, for blocks with several contributors.

    Returns:
        The blocks that the server receives, padded with zeros.

    Raises:
        ScheduleError: the schedule has no demand, or is for another number of servers.
        InvalidScheduleError: the verifier rejects the schedule.
        OptionError: the reduction is unknown or not for a type, or the array has another length or
            a type whose elements do not fill the blocks.

    >>> import gradweave as gw
    >>> import jax.numpy as jnp
    >>> net = gw.topology.ring(3)
    >>> demand = gw.schedules.demand_of(net, [gw.schedules.Job("all_to_all", 24)])
    >>> found = gw.solve(net, jobs=demand, time_limit=1).schedule
    >>> swap = gw.jax.Collective(found)
    >>> jax.vmap(swap, axis_name="server")(jnp.arange(12.0).reshape(3, 4))
    Array([[ 4.,  5.,  8.,  9.],
           [ 0.,  1., 10., 11.],
           [ 2.,  3.,  6.,  7.]], dtype=float32)
    """
    schedule = as_schedule(schedule)
    schedule.demanded  # noqa: B018  # refuses a schedule without one
    return Collective(schedule, axis_name, reduction=reduction)(send)
