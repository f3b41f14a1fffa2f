"""Random demands on random networks whose latencies and overheads differ, or are zero."""

import dataclasses
from random import Random

import numpy as np

from gradweave.schedules import Demand, Job, demand_of
from gradweave.schedules.demand import NAMES, ROOTED
from gradweave.topology import Topology
from tests.verifier.random_demands import random_network


def slow_middle() -> Topology:
    """Two servers and two switches in a row; the switches' link is held for 5 us, others for 1."""
    ends = [(0, 1), (1, 2), (2, 3)]
    rows = [*ends, *((b, a) for a, b in ends)]
    source, target = np.array(rows).T
    middle = np.isin(source, (1, 2)) & np.isin(target, (1, 2))
    return Topology(
        name="slow middle",
        is_server=np.array([True, False, False, True]),
        source=source,
        target=target,
        bandwidth_bytes_per_s=np.full(6, 1e9),
        latency_s=np.full(6, 1e-6),
        capacity=np.ones(6, int),
        overhead_s=np.where(middle, 5e-6, 1e-6),
    )


def random_latencies(draw: Random) -> Topology:
    """A network with servers and switches anywhere; columns of links are even, mixed or zero."""
    network = random_network(draw, 9)
    values = {
        "latency_s": (0.0, 1e-6, 5e-5, 1e-3),
        "overhead_s": (0.0, 1e-6, 2e-6, 1e-4),
        "bandwidth_bytes_per_s": (1.25e8, 1.25e9, 1.25e10),
    }
    columns = {}
    for name, some in values.items():
        kind = draw.choice(("one", "one", "mixed", "any"))
        one, rows = draw.choice(some), range(len(network.source))
        draws = {"one": lambda one=one: one, "mixed": lambda some=some: draw.choice(some)}
        drawn = draws.get(kind, lambda some=some: draw.uniform(some[0], some[-1]))
        columns[name] = np.array([drawn() for _ in rows])
    return dataclasses.replace(network, **columns)


def random_demand(draw: Random, topology: Topology) -> Demand:
    """One to three jobs of any collective, of all servers or a group that others relay for."""
    servers, jobs = topology.servers.tolist(), []
    for _ in range(draw.choice((1, 1, 2, 3))):
        name, group = draw.choice(NAMES), draw.sample(servers, draw.randint(2, len(servers)))
        group = draw.choice((servers, group))
        size = draw.choice((1_000, 10**6, 10**9)) * len(servers)
        root = draw.choice(group) if name in ROOTED else None
        relays = sorted({*servers} - {*group})
        ready_at = draw.choice((0.0, 0.0, 1e-3))
        jobs.append(Job(name, size, group, root, relays=relays, ready_at=ready_at))
    return demand_of(topology, jobs)
