"""Several threads plan on one network: each gets the schedules that one thread alone gets."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from gradweave.schedulers import demand_strategy
from gradweave.schedulers.spec import from_spec
from gradweave.schedules import collective
from gradweave.schedules.schedule import COLUMNS, Schedule
from gradweave.topology.spec import as_topology
from gradweave.topology.topology import Topology

THREADS = 2
SIZE = 10**6


def broadcast(strategy: str, network: Topology) -> Schedule:
    group = network.servers
    demand = collective("broadcast", group, SIZE, root=int(group[0]))
    return demand_strategy(strategy).schedule(network, demand, seed=0)


def all_reduce(strategy: str, network: Topology) -> Schedule:
    return from_spec(strategy).schedule(network, seed=0)


@pytest.mark.parametrize(
    ("plan", "strategy"),
    [
        (broadcast, "disjoint_trees"),
        (broadcast, "joint"),
        (all_reduce, "packed:gradient_bytes=1e6"),
        (all_reduce, "planned:gradient_bytes=1e6"),
        (all_reduce, "grown:restarts=2"),
        (all_reduce, "learned:samples=1"),
    ],
)
def test_threads_do_not_disturb_each_other(
    plan: Callable[[str, Topology], Schedule], strategy: str
):
    spec = "a100:boxes=2" if plan is broadcast else "fat_tree:k=4"
    network = as_topology(spec)
    with ThreadPoolExecutor(THREADS) as pool:  # first, while nothing is known of the network
        together = list(pool.map(lambda _: plan(strategy, network), range(2 * THREADS)))
    alone = plan(strategy, as_topology(spec))
    for schedule in together:
        for name in COLUMNS:
            assert np.array_equal(getattr(schedule, name), getattr(alone, name)), name
