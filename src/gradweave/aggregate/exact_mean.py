"""Aggregations that give every worker the mean of all gradients, with different messages.

Each is an `optax.GradientTransformation` for use inside `jax.shard_map`: chain it before an
optimizer with `optax.chain`, instead of calling `jax.lax.pmean`. Their results agree up to
rounding. ``sent_bytes`` in their state is what this worker sent in the last update.

A worker whose gradients are not finite is excluded from the mean, and counts this in ``not_finite``
of its state. For this the workers add up one extra number, which is not included in ``sent_bytes``.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from numpy.typing import NDArray

from gradweave.aggregate.finite import check_all_take_part, is_finite, mean_of_finite
from gradweave.aggregate.messages import (
    AveragingState,
    initial_counts,
    num_bytes,
    of_this_worker,
)
from gradweave.execute.axis import AXIS, AxisName
from gradweave.execute.jax_mesh.buffers import PyTree
from gradweave.execute.jax_mesh.collective import Collective
from gradweave.execute.program import check_all_reduce
from gradweave.schedulers.textbook.parameter_server import CentralParameterServer
from gradweave.schedulers.textbook.ring import Ring
from gradweave.schedules.given import ScheduleLike, as_schedule
from gradweave.schedules.schedule import Schedule
from gradweave.topology.families.complete import complete

Mean = Callable[[PyTree], PyTree]
"""This worker's gradients -> the mean of all workers' gradients."""


def before(
    average: optax.GradientTransformation, optimizer: optax.GradientTransformation
) -> optax.GradientTransformation:
    """Chains an average and an optimizer, which skips the step if no worker's gradients are finite.

    Args:
        average: an average of this module; its mean of no finite gradients is NaN.
        optimizer: optimizer of one worker; a skipped step changes neither its state nor the
            parameters.
    """
    optimizer = optax.with_extra_args_support(optimizer)

    def init(params: PyTree) -> tuple[optax.OptState, optax.OptState]:
        return average.init(params), optimizer.init(params)

    def update(
        updates: PyTree, state: optax.OptState, params: PyTree | None = None, **extra: Any
    ) -> tuple[PyTree, optax.OptState]:
        assert isinstance(state, tuple)
        of_average, old = state
        mean, of_average = average.update(updates, of_average, params)
        finite = is_finite(mean)
        mean = jax.tree.map(lambda leaf: jnp.where(finite, leaf, 0), mean)
        change, new = optimizer.update(mean, old, params, **extra)
        change = jax.tree.map(lambda leaf: jnp.where(finite, leaf, 0), change)
        return change, (of_average, jax.tree.map(lambda x, y: jnp.where(finite, x, y), new, old))

    return optax.GradientTransformationExtraArgs(init, update)


def mean(axis_name: AxisName = AXIS) -> optax.GradientTransformation:
    """The runtime's mean, `jax.lax.pmean`.

    The runtime decides what is sent. ``sent_bytes`` is the lower bound for an all-reduce in which
    all workers send the same, 2(N−1)/N of the gradient. A ring attains it, which JAX uses between
    processes on CPUs.
    """

    def plan(gradients: PyTree) -> tuple[Mean, NDArray]:
        workers = lax.axis_size(axis_name)
        sent = np.full(workers, 2 * (workers - 1) / workers * num_bytes(gradients))
        return (lambda finite: lax.pmean(finite, axis_name)), sent

    return _averaging(plan, axis_name)


def ring_mean(axis_name: AxisName = AXIS) -> optax.GradientTransformation:
    """Ring all-reduce: reduce-scatter, then all-gather, each N−1 messages to the next worker.

    Each of the N workers sends 2(N−1)/N of the gradient.

    Source: Patarasuk and Yuan 2009.
    """
    return _by_schedule(lambda workers: _of_complete(Ring(), workers), axis_name)


def parameter_server(
    axis_name: AxisName = AXIS, *, server: int = 0
) -> optax.GradientTransformation:
    """A central, synchronous parameter server: worker `server` gathers and returns the mean.

    It sends N−1 times the gradient, and receives as much; the other workers send it once.

    Source: Li et al. 2014, with one server that also is a worker.
    """
    return _by_schedule(
        lambda workers: _of_complete(CentralParameterServer(server), workers), axis_name
    )


def scheduled(schedule: ScheduleLike, axis_name: AxisName = AXIS) -> optax.GradientTransformation:
    """The mean by a schedule; the worker of rank i is device i along the axis.

    Raises:
        ScheduleError: the schedule covers only one stage, or, at the first update, it is for
            another number of workers.
        InvalidScheduleError: the verifier rejects the schedule.

    >>> import gradweave as gw, jax, jax.numpy as jnp, optax
    >>> schedule = gw.solve(gw.topology.ring(4)).schedule
    >>> optimizer = optax.chain(gw.aggregate.scheduled(schedule), optax.sgd(1.0))
    >>> params = jnp.zeros((4, 2))
    >>> state = jax.vmap(optimizer.init)(params)
    >>> step = jax.vmap(optimizer.update, axis_name="server")
    >>> step(jnp.arange(8.0).reshape(4, 2), state, params)[0][0].tolist()
    [-3.0, -4.0]
    """
    schedule = as_schedule(schedule)
    check_all_reduce(schedule)  # raises now instead of at the first update
    Collective(schedule, axis_name)
    return _by_schedule(lambda _: schedule, axis_name)


def _by_schedule(
    schedule_for: Callable[[int], Schedule | None], axis_name: AxisName
) -> optax.GradientTransformation:
    """The mean by a schedule per number of workers; a single worker sends nothing."""

    def plan(gradients: PyTree) -> tuple[Mean, NDArray]:
        schedule = schedule_for(lax.axis_size(axis_name))
        if schedule is None:
            return (lambda finite: finite), np.zeros(1)
        mean = Collective(schedule, axis_name, reduction="mean")
        return mean, mean.sent_bytes(gradients)

    return _averaging(plan, axis_name)


def _averaging(
    plan: Callable[[PyTree], tuple[Mean, NDArray]], axis_name: AxisName
) -> optax.GradientTransformation:
    """An aggregation by a plan, which maps gradients to an averaging function and [N] bytes."""

    def init(params: PyTree) -> AveragingState:
        return initial_counts()

    def update(
        updates: PyTree, state: optax.OptState, params: PyTree | None = None
    ) -> tuple[PyTree, AveragingState]:
        assert isinstance(state, AveragingState)
        check_all_take_part()
        mean, sent = plan(updates)
        average, finite = mean_of_finite(mean, updates, axis_name)
        counts = AveragingState(of_this_worker(sent, axis_name), state.not_finite + ~finite)
        return average, counts

    return optax.GradientTransformation(init, update)


@lru_cache(maxsize=64)
def _of_complete(scheduler: Ring | CentralParameterServer, workers: int) -> Schedule | None:
    """A scheduler's schedule for a complete network of workers."""
    return scheduler.schedule(complete(workers)) if workers > 1 else None
