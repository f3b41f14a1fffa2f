"""The front door: a network and a workload in, a placement and its bound out."""

import time
from collections.abc import Callable, Sequence

import numpy as np

from gradweave.placement.bound.search import placement_bound
from gradweave.placement.exchange import exchange_cost
from gradweave.placement.pairs import pairs_of
from gradweave.placement.placement import Placement
from gradweave.placement.problem import Problem, problem_of
from gradweave.placement.strategies.spec import as_placer
from gradweave.placement.strategies.strategy import Placer
from gradweave.placement.workload import Transformer, Workload
from gradweave.topology.spec import as_topology
from gradweave.topology.topology import Topology


def place(
    network: Topology | str,
    workload: Workload | Transformer,
    *,
    pipeline: int | None = None,
    data: int | None = None,
    strategy: Placer | str = "annealing",
    memory_bytes: float | Sequence[float] | None = None,
    speed: float | Sequence[float] | None = None,
    bound: bool = True,
    seed: int = 0,
    time_limit: float | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Placement:
    """Decides which server computes which stage, and who averages gradients with whom.

    Minimises the cost of communication in the paper's model (`exchange_cost`) and states a bound
    that no placement is below (`placement_bound`). What the placement takes with our schedules and
    links that are shared is predicted by `gradweave.placement.step_time`.

    Args:
        network: the network, or its specification or file as on the command line.
        workload: stages with their seconds and bytes, or a transformer to estimate them from.
        pipeline: number of stages S; if not given, the workload's, or all servers over `data`.
        data: number of pipelines D; all servers over the stages if not given. Servers beyond S·D
            stay idle.
        strategy: or its specification, such as ``annealing:restarts=16``.
        memory_bytes: of every server, or of each in order of id: a stage fits where it has no more.
        speed: of every server, or of each, relative to that of the workload's seconds.
        bound: whether to compute the bound.
        seed: every random choice depends on it alone.
        time_limit: seconds for the search, and again for the bound.
        progress: called with each step under way.

    Raises:
        OptionError: stages that do not fit, groups that cannot be balanced, fewer servers than
            stages, and options out of range.

    Source: Yuan et al., NeurIPS 2022.

    >>> import gradweave as gw
    >>> work = gw.placement.even_stages(2, activation_bytes=1e8, gradient_bytes=1e9)
    >>> placed = gw.placement.place("leaf_spine:leaves=2,spines=1,servers_per_leaf=2", work)
    >>> placed.servers.shape, placed.optimal
    ((2, 2), True)
    """
    placer = as_placer(strategy)
    topology = as_topology(network)
    problem = problem_of(pairs_of(topology), workload, pipeline, data, memory_bytes, speed)
    begun = time.monotonic()
    progress(f"placing {problem.stages} stages of {problem.data} by {placer.name}")
    devices = placer.place(problem, seed=seed, time_limit=time_limit)
    wall_s = time.monotonic() - begun
    cost = exchange_cost(problem, devices, as_placed=placer.as_placed)
    proved = None
    if bound:
        progress(f"{cost.seconds:.4g} s found; looking for a bound")
        proved = placement_bound(problem, cost_s=cost.seconds, time_limit=time_limit)
    return Placement(
        topology,
        problem.workload,
        topology.servers[cost.devices],
        cost.data_s,
        cost.pipeline_s,
        placer.name,
        placer.options(),
        seed,
        proved,
        wall_s,
    )


def problem_for(placement: Placement) -> Problem:
    """The problem that a placement solves, without limits of memory.

    Args:
        placement: of its network and workload.
    """
    stages, data = placement.servers.shape
    return problem_of(pairs_of(placement.topology), placement.workload, stages, data)


def cost_of(placement: Placement) -> float:
    """The exchange model's cost, computed again from the network and the servers as they stand."""
    ranks = placement.topology.rank[placement.servers].astype(np.int64)
    return exchange_cost(problem_for(placement), ranks, as_placed=True).seconds
