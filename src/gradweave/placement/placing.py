"""The entry point: a network and a workload in, a placement and its bound out."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from gradweave.common import clock
from gradweave.common.wording import counted
from gradweave.errors import InvalidCertificateError, OptionError
from gradweave.placement.bound.duals import NS, GroupDuals
from gradweave.placement.bound.search import PlacementBound, placement_bound
from gradweave.placement.bound.sequences import Sequences
from gradweave.placement.exchange import exchange_cost
from gradweave.placement.pairs import pairs_of
from gradweave.placement.placement import Certificate, Placement, read_placement
from gradweave.placement.problem import Problem, problem_of
from gradweave.placement.scheduled import place_scheduled
from gradweave.placement.strategies.exact import ExactPlacer
from gradweave.placement.strategies.spec import as_placer
from gradweave.placement.strategies.strategy import Placer
from gradweave.placement.workload import Transformer, Workload
from gradweave.topology.spec import TopologyLike, as_topology

Cost = Literal["exchange", "scheduled"]
"""The cost that `place` minimises."""
COSTS: tuple[str, ...] = get_args(Cost)


def place(
    network: TopologyLike,
    workload: Workload | Transformer,
    *,
    pipeline: int | None = None,
    data: int | None = None,
    strategy: Placer | str = "annealing",
    cost: Cost = "exchange",
    memory_bytes: float | str | Sequence[float | str] | None = None,
    speed: float | Sequence[float] | None = None,
    bound: bool = True,
    seed: int = 0,
    time_limit: float | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Placement:
    """Decides which server computes which stage, and which servers average gradients.

    Minimises the cost of communication in the paper's model (`exchange_cost`) and computes a lower
    bound on it (`placement_bound`); or minimises the cost with schedules for each group and shared
    links (`scheduled_cost`), for which there is no bound. `gradweave.placement.step_time` predicts
    the time of a whole step, including compute.

    Args:
        network: the network, or its specification or file as on the command line.
        workload: stages with their seconds and bytes, or a transformer to estimate them from.
        pipeline: number of stages S; by default the workload's, or all servers divided by `data`.
        data: number of pipelines D; by default all servers divided by the stages. Servers beyond
            S·D stay idle.
        strategy: a strategy or its specification, such as ``annealing:restarts=16``.
        cost: the cost to minimise, ``exchange`` or ``scheduled``.
        memory_bytes: memory of every server, or of each in order of id; a stage is placed only on
            servers with enough.
        speed: speed of every server, or of each, relative to the workload's seconds.
        bound: whether to compute the bound.
        seed: determines every random choice.
        time_limit: seconds for the search, and again for the bound.
        progress: called with each step under way.

    Raises:
        OptionError: for stages that do not fit, groups that cannot be balanced, fewer servers than
            stages, or options out of range.

    Source: Yuan et al., NeurIPS 2022.

    >>> import gradweave as gw
    >>> work = gw.placement.even_stages(2, activation_bytes=1e8, gradient_bytes=1e9)
    >>> placed = gw.placement.place("leaf_spine:leaves=2,spines=1,servers_per_leaf=2", work)
    >>> placed.servers.shape, placed.optimal
    ((2, 2), True)
    """
    if cost not in COSTS:
        raise OptionError(f"cost: expected one of {', '.join(COSTS)}, got {cost!r:.60}")
    placer = as_placer(strategy)
    topology = as_topology(network)
    problem = problem_of(pairs_of(topology), workload, pipeline, data, memory_bytes, speed)
    begun = clock.now()
    progress(f"placing {counted(problem.stages, 'stage')} of {problem.data} by {placer.name}")
    how: dict[str, Any] = {"seed": seed, "time_limit": time_limit}
    if cost == "scheduled":
        placed, scheduled = place_scheduled(topology, problem, placer, progress=progress, **how)
        placed = dataclasses.replace(placed, scheduled=scheduled)
    else:
        devices, stopped = placer.search(problem, **how)
        found = exchange_cost(problem, devices, as_placed=placer.as_placed)
        placed = Placement(
            topology, problem.workload, topology.servers[found.devices], found.data_s,
            found.pipeline_s, placer.name, placer.options(), seed, stopped=stopped,
        )  # fmt: skip
    wall_s = clock.now() - begun
    proved = None
    if bound:
        progress(f"{placed.cost_s:.4g} s found; looking for a bound")
        proved = placement_bound(problem, cost_s=placed.cost_s, time_limit=time_limit)
        if cost == "exchange" and placer.yields and proved.cheaper is not None:
            placed = _cheaper(problem, placed, proved.cheaper)
    return dataclasses.replace(placed, bound=proved, wall_s=wall_s)


def _cheaper(problem: Problem, placed: Placement, devices: NDArray[np.int64]) -> Placement:
    """The placement found by the bound's proof, if it costs less and fits."""
    found = exchange_cost(problem, devices)
    if found.seconds >= placed.cost_s or not problem.fits.all():
        return placed
    exact = ExactPlacer()
    return dataclasses.replace(
        placed, servers=placed.topology.servers[found.devices], data_s=found.data_s,
        pipeline_s=found.pipeline_s, strategy=exact.name, options=exact.options(), stopped="tried",
    )  # fmt: skip


def problem_for(placement: Placement) -> Problem:
    """The problem that a placement solves, without limits of memory.

    Args:
        placement: a placement.
    """
    stages, data = placement.servers.shape
    return problem_of(pairs_of(placement.topology), placement.workload, stages, data)


def cost_of(placement: Placement) -> float:
    """The exchange model's cost of a placement's servers as placed, recomputed from the network."""
    ranks = placement.topology.rank[placement.servers].astype(np.int64)
    return exchange_cost(problem_for(placement), ranks, as_placed=True).seconds


def recounted(path: str | Path) -> Placement:
    """Reads a placement with its network, and recounts its cost and its bound.

    The bound is recounted from the certificate in the file alone; it is None if the file has no
    certificate.

    Args:
        path: path of a file that `Placement.save` wrote.

    Raises:
        FileError: it cannot be read, or contains something else.
        InvalidCertificateError: the stated cost differs from the servers' cost, or the stated bound
            exceeds what the certificate proves.
    """
    placement, file = read_placement(path)
    cost_s = cost_of(placement)
    if not math.isclose(cost_s, placement.cost_s, rel_tol=1e-9):
        raise InvalidCertificateError(
            f"{path}: states a cost of {placement.cost_s:.6g} s; its servers have {cost_s:.6g} s"
        )
    if file.certificate is None:
        return placement
    problem = problem_for(placement)
    certificate = _certificate(problem, file.certificate)
    proved = certificate.nanoseconds(problem)
    if file.bound_s is not None and file.bound_s * NS > proved + 1:
        raise InvalidCertificateError(
            f"{path}: states a bound of {file.bound_s:.6g} s; its certificate proves "
            f"{proved / NS:.6g} s"
        )
    return dataclasses.replace(placement, bound=PlacementBound(proved / NS, certificate))


def _certificate(problem: Problem, read: Certificate) -> GroupDuals | Sequences:
    if read.goal_ns is not None:
        return Sequences.from_object(problem, read.classes, read.goal_ns)
    return GroupDuals.from_object(problem, read.classes, read.since_ns, read.duals_ns)
