"""Predicted times of plans and of gloo's own collectives, before either is timed."""

import dataclasses
import math
from typing import Any

import numpy as np

from gradweave.errors import NoScheduleError
from gradweave.schedulers.solving.own import own_schedule
from gradweave.schedulers.textbook.ring import Ring
from gradweave.schedulers.textbook.runtimes import BinomialTree, Direct
from gradweave.schedules.demand import collective
from gradweave.schedules.schedule import Schedule
from gradweave.simulator.runtime import Costs, Runtime
from gradweave.topology.topology import Topology
from gradweave.torch.calls import NO_ROOT, SizeClass

LOSES = 1.25
"""A plan predicted to take more than this many times as long as gloo is not timed. Predictions are
only that accurate: an all-gather of 64 MiB on loopback was predicted to take 1.16 times as long as
gloo, and took 0.42 times as long (`benchmarks/experiments/torch_backend_calls.py`)."""

COSTS = 1, 2, 4
"""Costs of messages that are distinguished, in proportion to the runtime's profile."""
AS_NEAR = 0.05
"""A smaller cost is preferred if its prediction is off by at most this much more (as a logarithm):
with few messages, a slower network looks the same as more expensive messages."""


def costlier(runtime: Runtime, cost: int) -> Runtime:
    """The runtime if each message costs a multiple of what its profile states."""

    def scaled(costs: Costs) -> dict[str, Any]:
        each_s = tuple(cost * seconds for seconds in costs.seconds)
        return {"seconds": each_s, "start_s": cost * costs.start_s}

    executor = dataclasses.replace(runtime.executor, **scaled(runtime.executor))
    own = tuple(dataclasses.replace(one, **scaled(one)) for one in runtime.own)
    return dataclasses.replace(runtime, executor=executor, own=own)


def message_cost(plan: Schedule, runtime: Runtime, of: SizeClass, seconds: float) -> int:
    """The cost of messages, of `COSTS`, that explains the time of a plan.

    Args:
        plan: the plan, on the network as it was.
        runtime: the profile.
        of: the calls, with their largest size.
        seconds: the measured time.
    """
    off = {
        cost: abs(math.log(seconds / plan_seconds(plan, costlier(runtime, cost), of)))
        for cost in COSTS
    }
    return next(cost for cost in COSTS if off[cost] <= min(off.values()) + AS_NEAR)


def plan_seconds(plan: Schedule, runtime: Runtime, of: SizeClass) -> float:
    """The predicted time of the largest calls of a size class if a plan runs them."""
    return runtime.seconds(plan, _moved_bytes(of, plan.topology))


def own_seconds(topology: Topology, runtime: Runtime, of: SizeClass) -> float | None:
    """The predicted time of such a call by the runtime's own collective, or None if unknown.

    A message costs as much as in the runtime's own all-reduce of that size. The algorithms are
    those of gloo in PyTorch 2.13: an all-gather is a ring, a reduce-scatter is an all-reduce from
    which each rank keeps its part, an all-to-all is pairwise, and a broadcast is a binomial tree.
    Gloo's reduction to one rank is not modelled.
    """
    try:
        schedule = own_messages(topology, runtime, of)
    except NoScheduleError:
        return None
    return schedule and runtime.own_seconds(schedule, _moved_bytes(of, topology))


def own_messages(topology: Topology, runtime: Runtime, of: SizeClass) -> Schedule | None:
    """The messages of the runtime's own algorithm for a call, or None if it is unknown.

    Raises:
        NoScheduleError: the algorithm cannot run on that network.
    """
    if of.collective in ("all_reduce", "reduce_scatter"):
        return own_schedule(topology, runtime, of.size)
    if of.collective == "reduce" or runtime.algorithm(of.size) is None:
        return None
    if of.collective == "all_gather":
        return Ring().schedule(topology, collective="all_gather")
    servers = topology.servers
    root = None if of.root == NO_ROOT else int(servers[of.root])
    # Gloo does not split blocks into pieces; a plan does not either if each message is expensive.
    slow = dataclasses.replace(topology, overhead_s=np.ones_like(topology.overhead_s))
    bytes_ = len(servers) if of.collective == "all_to_all" else 1
    demand = collective(of.collective, servers, bytes_, root=root)
    strategy = Direct() if of.collective == "all_to_all" else BinomialTree()
    return strategy.schedule(slow, demand).replace(topology=topology)


def _moved_bytes(of: SizeClass, topology: Topology) -> int:
    """Bytes moved by the collective, counted as in schedules: without data that stays in place."""
    return of.size * (topology.num_servers - 1 if of.collective == "all_to_all" else 1)
