"""A second cost model: all-reduces by our schedules, with all messages on shared links."""

import dataclasses
from collections.abc import Callable

import numpy as np

from gradweave.placement.exchange import ExchangeCost, exchange_cost
from gradweave.placement.placement import Placement, ScheduledCost
from gradweave.placement.problem import Problem
from gradweave.placement.strategies.strategy import Placer
from gradweave.placement.timeline.groups import group_schedules
from gradweave.placement.timeline.step import exchange_seconds, pass_seconds
from gradweave.topology.topology import Topology

ROUNDS = 3
"""Number of searches; each weighs gradients by the schedules of the previous search's groups."""
WEIGHTS = 1e-3, 1e3
"""Range of weights; beyond it only one of the two costs matters anyway."""


def scheduled_cost(
    placement: Placement,
    *,
    seed: int = 0,
    time_limit: float | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> ScheduledCost:
    """The cost with a schedule for each group, and all stages' messages on shared links.

    Like the exchange model, it counts only communication, with gradients after activations.

    Args:
        placement: the placement.
        seed: seed of the schedules' searches.
        time_limit: seconds for each of these searches.
        progress: called with each step under way.
    """
    sizes = [stage.gradient_bytes for stage in placement.workload.stages]
    groups = group_schedules(
        placement.topology,
        placement.servers,
        sizes,
        seed=seed,
        time_limit=time_limit,
        progress=progress,
    )
    return ScheduledCost(
        exchange_seconds(groups, placement), pass_seconds(placement), tuple(groups)
    )


def place_scheduled(
    topology: Topology,
    problem: Problem,
    placer: Placer,
    *,
    seed: int,
    time_limit: float | None,
    progress: Callable[[str], None],
) -> tuple[Placement, ScheduledCost]:
    """Searches in the exchange model with gradients weighed by the time of our schedules.

    Schedules take a fraction of a direct exchange, the smaller the more links a group has, and
    messages that share links take longer than they do alone. So each next search weighs gradients
    against activations by their times with schedules. The best placement by `scheduled_cost` is
    kept.

    Args:
        topology: the network.
        problem: the problem on the network's servers.
        placer: the strategy.
        seed: seed of all searches.
        time_limit: seconds for each search.
        progress: called with each step under way.
    """
    scale, best, cut_short = 1.0, None, False
    seen: set[bytes] = set()
    for _ in range(ROUNDS):
        weighed = dataclasses.replace(problem, gradient_scale=scale)
        devices, stopped = placer.search(weighed, seed=seed, time_limit=time_limit)
        cut_short |= stopped == "time"
        cost = exchange_cost(problem, devices, as_placed=placer.as_placed)
        if cost.devices.tobytes() in seen:
            break
        seen.add(cost.devices.tobytes())
        placement = Placement(
            topology, problem.workload, topology.servers[cost.devices], cost.data_s,
            cost.pipeline_s, placer.name, placer.options(), seed,
        )  # fmt: skip
        scheduled = scheduled_cost(placement, seed=seed, time_limit=time_limit, progress=progress)
        if best is None or scheduled.seconds < best[1].seconds:
            best = placement, scheduled
        progress(f"{scheduled.seconds:.4g} s with schedules; searching again")
        scale = _weight(cost, scheduled)
    assert best is not None
    placement, scheduled = best
    return dataclasses.replace(placement, stopped="time" if cut_short else "tried"), scheduled


def _weight(cost: ExchangeCost, scheduled: ScheduledCost) -> float:
    """Relative cost of gradients with schedules, compared with activations."""
    least = 1e-12
    gradients = max(scheduled.data_s, least) / max(cost.data_s, least)
    activations = max(scheduled.pipeline_s, least) / max(cost.pipeline_s, least)
    return float(np.clip(gradients / activations, *WEIGHTS))
