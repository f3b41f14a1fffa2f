"""Aggregations that give every worker the mean of all gradients, each by other messages.

Each is an `optax.GradientTransformation` for use inside `jax.shard_map`: put it in front of an
optimizer with `optax.chain`, in place of `jax.lax.pmean`. They differ in what is sent, and agree
to rounding. ``sent_bytes`` in their state says what this worker sent in the last update.

A worker whose gradients are not finite is left out of the mean, and counted: ``not_finite`` in its
state. For this the workers add up one number more, which is not in ``sent_bytes``.
"""

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import optax
from jax import lax
from numpy.typing import NDArray

from gradweave.aggregate.finite import check_all_take_part, mean_of_finite
from gradweave.aggregate.messages import (
    AveragingState,
    initial_counts,
    num_bytes,
    of_this_worker,
)
from gradweave.execute.axis import AXIS, AxisName
from gradweave.execute.jax_mesh.backend import all_reduce, collective, sent_bytes
from gradweave.execute.jax_mesh.buffers import PyTree
from gradweave.schedule.schedule import Schedule
from gradweave.schedulers.textbook.parameter_server import CentralParameterServer
from gradweave.schedulers.textbook.ring import Ring
from gradweave.topology.families.complete import complete

Mean = Callable[[PyTree], PyTree]
"""This worker's gradients -> the mean of all workers'."""


def mean(axis_name: AxisName = AXIS) -> optax.GradientTransformation:
    """The runtime's own mean, `jax.lax.pmean`.

    What is sent is up to the runtime. ``sent_bytes`` is the lower bound of any all-reduce among
    equals, 2(N−1)/N of the gradient, which a ring sends, as JAX uses it between processes on CPUs.
    """

    def plan(gradients: PyTree) -> tuple[Mean, NDArray]:
        workers = lax.axis_size(axis_name)
        sent = np.full(workers, 2 * (workers - 1) / workers * num_bytes(gradients))
        return (lambda finite: lax.pmean(finite, axis_name)), sent

    return _averaging(plan, axis_name)


def ring(axis_name: AxisName = AXIS) -> optax.GradientTransformation:
    """Ring all-reduce: reduce-scatter, then all-gather, each N−1 messages to the next worker.

    Each worker sends 2(N−1)/N of the gradient, however many there are.

    Source: Patarasuk and Yuan 2009.
    """
    return _by_schedule(lambda workers: _of_complete(Ring(), workers), axis_name)


def parameter_server(
    axis_name: AxisName = AXIS, *, server: int = 0
) -> optax.GradientTransformation:
    """A central, synchronous parameter server: worker `server` gathers and gives back the mean.

    It sends N−1 times the gradient, and receives as much; others send it once.

    Source: Li et al. 2014, with one server that also works.
    """
    return _by_schedule(
        lambda workers: _of_complete(CentralParameterServer(server), workers), axis_name
    )


def scheduled(schedule: Schedule, axis_name: AxisName = AXIS) -> optax.GradientTransformation:
    """The mean by a schedule; the worker of rank i is device i along the axis.

    Raises:
        ScheduleError: the schedule is for one stage alone, or, at the first update, for another
            number of workers.
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
    all_reduce(schedule, axis_name)  # raises now what the first update would raise
    return _by_schedule(lambda _: schedule, axis_name)


def _by_schedule(
    schedule_for: Callable[[int], Schedule | None], axis_name: AxisName
) -> optax.GradientTransformation:
    """By the schedule for each number of workers; one worker alone has nothing to send."""

    def plan(gradients: PyTree) -> tuple[Mean, NDArray]:
        schedule = schedule_for(lax.axis_size(axis_name))
        if schedule is None:
            return (lambda finite: finite), np.zeros(1)
        sent = sent_bytes(schedule, gradients)
        return collective(schedule, axis_name, reduction="mean"), sent

    return _averaging(plan, axis_name)


def _averaging(
    plan: Callable[[PyTree], tuple[Mean, NDArray]], axis_name: AxisName
) -> optax.GradientTransformation:
    """An aggregation by a plan: gradients → the function that averages such ones, and [N] bytes."""

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
    """The schedule where every worker reaches every other one."""
    return scheduler.schedule(complete(workers)) if workers > 1 else None
