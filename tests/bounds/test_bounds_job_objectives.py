"""Bounds for objectives of jobs: single machines by hand, brute force, and plans above them."""

import dataclasses
import itertools
from fractions import Fraction

import numpy as np
import pytest

import gradweave as gw
from gradweave.bounds.demands.demand_bound import demand_bound
from gradweave.bounds.demands.demand_lengths import DemandLengths
from gradweave.bounds.demands.job_objectives import PARTS, Machine, ObjectiveBound, objective_bound
from gradweave.errors import OptionError
from gradweave.schedules import Demand, Job, demand_of
from gradweave.schedules.objective import objective_of

NET = gw.topology.from_spec("star:4,bandwidth=1GB/s,latency=0s,overhead=0s")
ROOT_SENDS = (NET.source == 0).astype(np.int64)


def broadcasts(gigabytes, ready=(0, 0, 0), weights=(1, 1, 1)) -> Demand:
    """From server 0, whose one port is a machine: a gigabyte takes a second."""
    rows = zip(gigabytes, ready, weights, strict=True)
    return demand_of(
        NET, [Job("broadcast", int(n * 10**9), root=0, ready_at=r, weight=w) for n, r, w in rows]
    )


def bound(demand: Demand, name: str) -> ObjectiveBound:
    alone = [demand_bound(NET, demand.of_job(job)) for job in range(len(demand.jobs))]
    own = [one.seconds - one.since_s for one in alone]
    objective = objective_of(name, demand, alone_s=own)
    return objective_bound(objective, alone, [DemandLengths(NET, demand, ROOT_SENDS)])


BY_HAND = {
    # jobs end after 1, 3 and 6 s
    "sum": (broadcasts((3, 1, 2)), 10),
    # by weight for what it takes: the last, the second, the first
    "weighted": (broadcasts((3, 1, 2), weights=(1, 1, 5)), 5 * 2 + 3 + 6),
    # 1 / 1, 3 / 2, 6 / 3
    "fair": (broadcasts((3, 1, 2)), 2),
    # with ready times: 3, 4 and 6, the shortest of what is left first
    "sum late": (broadcasts((3, 1, 2), (0, 2, 3)), 13),
    "weighted late": (broadcasts((3, 1, 2), (0, 2, 3), (1, 1, 5)), 5 * 5 + 6 + 3 - 1),
    "fair late": (broadcasts((3, 1, 2), (0, 2, 3)), 1.5),
}


@pytest.mark.parametrize("case", BY_HAND)
def test_one_machine_by_hand(case: str):
    demand, least = BY_HAND[case]
    found = bound(demand, case.split()[0])
    assert found.value == pytest.approx(least, rel=1e-5)
    assert "6 GB must leave server 0" in str(found)


def least_by_brute_force(takes: list[int], ready: list[int], weight: list[int]) -> float:
    """Over all ways to give a machine's seconds to jobs."""
    horizon = max(ready) + sum(takes)
    least = np.inf
    for order in set(itertools.permutations([j for j, n in enumerate(takes) for _ in range(n)])):
        now, ends = 0, [0] * len(takes)
        for job in order:
            now = max(now, ready[job]) + 1
            ends[job] = now
        assert now <= horizon
        least = min(least, float(np.dot(ends, weight)))
    return least


def test_no_sum_of_one_machine_is_below_the_bound_and_without_ready_times_it_is_met():
    rng = np.random.default_rng(3)
    for _ in range(20):
        takes, weight = rng.integers(1, 4, 3).tolist(), rng.integers(1, 5, 3).tolist()
        ready = (rng.integers(0, 4, 3) * rng.integers(0, 2)).tolist()
        machine = Machine(DemandLengths(NET, broadcasts(takes, ready), ROOT_SENDS))
        assert list(machine.takes) == takes
        least = machine.least_sum([Fraction(one) for one in weight])
        exact = least_by_brute_force(takes, ready, weight)
        assert least <= exact
        if len(set(ready)) == 1 or len(set(weight)) == 1:
            assert least == exact


def test_weights_are_divided_among_machines_and_recounted():
    jobs = [  # two by two they share a port
        Job("broadcast", (1 + n) * 10**6, root=n % 2, weight=1 + n) for n in range(4)
    ]
    demand = demand_of(NET, jobs)
    alone = [demand_bound(NET, demand.of_job(job)) for job in range(4)]
    lengths = [DemandLengths(NET, demand, (NET.source == n).astype(np.int64)) for n in (0, 1)]
    objective = objective_of("weighted", demand)
    found = objective_bound(objective, alone, lengths)
    singles = [objective_bound(objective, alone, [one]).exact for one in lengths]
    assert len(found.machines) == 2 and found.exact > max(singles)
    by_hand = (1 * 1 + 3 * 4) + (2 * 2 + 4 * 6)  # all have one weight for what they take
    assert found.value == pytest.approx(by_hand / 1000, rel=1e-5)
    assert all(sum(parts) <= PARTS for parts in zip(*found.shares, strict=True))
    plan = gw.schedulers.solve_demand(NET, demand, objective="weighted", time_limit=0.3)
    assert plan.value >= plan.least >= found.value
    with pytest.raises(OptionError, match="shares of weights of at least 0, one in all"):
        whole = ((PARTS,) * 4,) * len(found.machines)
        _ = ObjectiveBound(objective, tuple(alone), found.machines, whole).exact


def test_an_unknown_objective_is_refused():
    with pytest.raises(OptionError, match="expected one of makespan, sum, weighted, fair for jobs"):
        objective_of("seconds", broadcasts((1, 1, 1)))


def test_every_job_ends_later_by_the_shortest_way_of_any_link_that_counts():
    """Server n is n µs from the switch; what a link into it carried last has come n µs later."""
    net = gw.topology.from_spec("star:4,bandwidth=1GB/s,latency=0s,overhead=0s")
    into = np.where(net.is_server[net.target], net.target, 0)
    net = dataclasses.replace(net, latency_s=into * 1e-6)
    demand = demand_of(net, [Job("broadcast", 10**9, root=0)])
    for servers, wait_s in (({2}, 2e-6), ({2, 3}, 2e-6), ({1, 2, 3}, 1e-6)):
        machine = Machine(DemandLengths(net, demand, np.isin(into, list(servers)).astype(np.int64)))
        assert float(machine.wait) == pytest.approx(wait_s, rel=1e-6)
    nothing = Machine(DemandLengths(net, demand, np.zeros(len(into), np.int64)))
    assert nothing.wait == 0
