"""Aggregations ready for use: schedule found, mixing matrix made, options checked."""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

from gradweave.aggregate.spec import (
    AggregationSpec,
    AsynchronousSpec,
    AveragingSpec,
    GossipSpec,
    LocalSpec,
    ScheduledSpec,
    check_servers,
    parse,
)
from gradweave.errors import OptionError
from gradweave.execute.axis import AXIS, AxisName
from gradweave.execute.program import check_all_reduce
from gradweave.schedulers.solving.solve import solve
from gradweave.schedules.file import load
from gradweave.schedules.schedule import Schedule

if TYPE_CHECKING:
    import optax

Wrap = Callable[["optax.GradientTransformation"], "optax.GradientTransformation"]
"""Converts the optimizer of a single worker into that of one of several workers."""


@dataclasses.dataclass(frozen=True)
class Aggregation:
    """A way for workers to combine their updates: converts a single worker's optimizer."""

    spec: str
    """The specification as given."""
    workers: int
    exact: bool
    """Whether all workers keep equal parameters."""
    wrap: Wrap = dataclasses.field(repr=False, compare=False)
    schedule: Schedule | None = dataclasses.field(default=None, repr=False, compare=False)
    """The schedule that averages gradients, or None for aggregations other than ``scheduled``."""

    def __call__(self, optimizer: "optax.GradientTransformation") -> "optax.GradientTransformation":
        """The optimizer for use inside `jax.shard_map`; imports JAX."""
        return self.wrap(optimizer)


def aggregator(
    text: str, workers: int, axis_name: AxisName = AXIS, *, same_data: bool = False
) -> Aggregation:
    """Makes the aggregation that a specification describes: `parse`, then `resolve`.

    Args:
        text: ``mean``, ``ring``, ``parameter_server`` (``parameter_server:server=2``);
            ``scheduled:`` and the file of a schedule, or a network to find one for, which may take
            long; ``d_psgd``, ``dcd_psgd``, ``ecd_psgd``, ``choco_sgd`` or ``naive_psgd`` with
            options: ``compressor`` (max_norm, grid, random_k, random_k_unscaled, top_k,
            top_k_chunks, uncompressed) and its options (``bits``, ``block``, ``step``, ``share``),
            ``mixing`` (weights, matchings, clusters; or networks that change: changing_matchings,
            changing_clusters, failing_links, absent_workers, trace) and its options (``clusters``,
            ``probability``, ``leave``, ``come_back``, ``steps``, ``file``), ``local_steps``,
            ``seed``, ``strictness``, ``consensus``, and last ``network=`` and the workers' network,
            by default a ring; ``diloco``, ``streaming_diloco``, ``sparseloco`` or
            ``sparse_averaging`` with the options of `gradweave.aggregate.local.methods` and of a
            compressor (``bits=4`` means ``compressor=max_norm,bits=4``); ``noloco`` or ``gasloc``
            with their options, ``mixing`` and ``network=``.
        workers: N, which is also the number of devices along the axis.
        axis_name: name of the workers' axis.
        same_data: whether all workers draw their data from one distribution, see
            `gradweave.aggregate.check_validity`.

    Raises:
        SpecError: the text cannot be parsed.
        OptionError: a value is out of its range, or for another number of workers.
        ScheduleError: the schedule is for another number of workers, or covers only one stage.
        FileError: the file of a schedule or a trace cannot be read.

    >>> aggregator("dcd_psgd:bits=4,network=torus:2x4", 8)
    Aggregation(spec='dcd_psgd:bits=4,network=torus:2x4', workers=8, exact=False)
    """
    return resolve(parse(text), workers, axis_name, same_data=same_data)


def resolve(
    spec: AggregationSpec,
    workers: int,
    axis_name: AxisName = AXIS,
    *,
    same_data: bool = False,
    seed: int = 0,
) -> Aggregation:
    """Makes an aggregation ready for use: reads its schedule or finds one, which may take long.

    Call it once, before training starts.

    Args:
        spec: the parsed specification.
        workers: N, which is also the number of devices along the axis.
        axis_name: name of the workers' axis.
        same_data: whether all workers draw their data from one distribution, see
            `gradweave.aggregate.check_validity`.
        seed: seed for finding a schedule.

    Raises:
        OptionError: the aggregation is for another number of workers.
        ScheduleError: the schedule is for another number of workers, or covers only one stage.
        FileError: the schedule's file cannot be read.
    """
    if workers < 1:
        raise OptionError(f"workers: expected at least 1, got {workers}")
    if isinstance(spec, AsynchronousSpec):
        raise OptionError(
            f"{spec.text}: cannot be part of an optimizer, because its workers are separate "
            "processes; use "
            "gradweave train, or gradweave.aggregate.asynchronous.train_on_ray"
        )
    if isinstance(spec, ScheduledSpec):
        schedule = find_schedule(spec, workers, seed)
        return by_schedule(schedule, workers, axis_name, spec=spec.text)
    spec.check_workers(workers)
    if isinstance(spec, AveragingSpec):
        wrap = _before_optimizer(lambda: _averaging(spec, axis_name))
    elif isinstance(spec, LocalSpec):
        wrap = _local(spec, workers, axis_name)
    else:
        wrap = _gossip(spec, workers, axis_name, same_data)
    return Aggregation(spec.text, workers, spec.exact, wrap)


def find_schedule(spec: ScheduledSpec, workers: int, seed: int = 0) -> Schedule:
    """Reads the schedule that a specification names, or finds one for its network.

    Raises:
        ScheduleError: the network has another number of servers.
        FileError: the file cannot be read.
    """
    if spec.network is None:
        assert spec.file is not None
        return load(spec.file)
    check_servers(spec.network, workers)
    return solve(spec.network, objective="rounds", seed=seed).schedule


def by_schedule(
    schedule: Schedule, workers: int, axis_name: AxisName = AXIS, *, spec: str = "scheduled"
) -> Aggregation:
    """The aggregation with a given schedule.

    Args:
        schedule: an all-reduce.
        workers: N, which is also the number of devices along the axis.
        axis_name: name of the workers' axis.
        spec: the specification that led to the schedule.

    Raises:
        ScheduleError: it is for another number of workers, or covers only one stage.
    """
    check_servers(schedule.topology, workers)
    check_all_reduce(schedule)

    def average() -> "optax.GradientTransformation":
        from gradweave.aggregate.exact_mean import scheduled

        return scheduled(schedule, axis_name)

    return Aggregation(spec, workers, True, _before_optimizer(average), schedule)


def _before_optimizer(average: "Callable[[], optax.GradientTransformation]") -> Wrap:
    """Averages gradients, then calls the optimizer."""

    def wrap(optimizer: "optax.GradientTransformation") -> "optax.GradientTransformation":
        from gradweave.aggregate.exact_mean import before

        return before(average(), optimizer)

    return wrap


def _averaging(spec: AveragingSpec, axis_name: AxisName) -> "optax.GradientTransformation":
    from gradweave.aggregate.exact_mean import mean, parameter_server, ring_mean

    if spec.method == "parameter_server":
        return parameter_server(axis_name, server=spec.server)
    return {"mean": mean, "ring": ring_mean}[spec.method](axis_name)


def _gossip(spec: GossipSpec, workers: int, axis_name: AxisName, same_data: bool) -> Wrap:
    mixing = spec.mixing_matrix(workers)

    def wrap(optimizer: "optax.GradientTransformation") -> "optax.GradientTransformation":
        from gradweave.aggregate.decentralized import gossip

        return gossip(
            spec.rule,
            optimizer,
            mixing,
            spec.compressor,
            axis_name,
            local_steps=spec.local_steps,
            seed=spec.seed,
            strictness=spec.strictness,
            same_data=same_data,
        )

    return wrap


def _local(spec: LocalSpec, workers: int, axis_name: AxisName) -> Wrap:
    def wrap(optimizer: "optax.GradientTransformation") -> "optax.GradientTransformation":
        from gradweave.aggregate.local.updates import local_updates

        mixing = spec.mixing_matrix(workers) if spec.method.mixes else None
        return local_updates(
            spec.method,
            optimizer,
            workers,
            spec.compressor,
            axis_name,
            mixing=mixing,
            seed=spec.seed,
        )

    return wrap
