"""Random jobs of groups that overlap."""

import numpy as np

import gradweave as gw
from gradweave.schedules import Demand, Job, demand_of
from gradweave.schedules.demand import NAMES, ROOTED


def random_jobs(topology: gw.Topology, seed: int, *, relays: bool) -> Demand:
    """Two or three jobs of random groups, sizes and collectives, some with unequal parts.

    Args:
        topology: the network.
        seed: the seed of all random choices.
        relays: whether all servers may relay; otherwise, servers are one group.
    """
    rng = np.random.default_rng(seed)
    jobs = []
    for _ in range(int(rng.integers(2, 4))):
        name = str(rng.choice(NAMES))
        count = int(rng.integers(2, topology.num_servers + 1)) if relays else topology.num_servers
        group = rng.permutation(topology.servers)[:count].tolist()
        size: int | list[int] = int(rng.integers(1, 10**7))
        if name in ("scatter", "gather", "all_gather", "reduce_scatter") and rng.random() < 0.5:
            size = [0, *rng.integers(1, 10**6, count - 1).tolist()]
        root = group[0] if name in ROOTED else None
        jobs.append(Job(name, size, group, root, relays=topology.servers if relays else ()))
    return demand_of(topology, jobs)
