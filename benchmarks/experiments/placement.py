"""Placements of the five cases of "Decentralized Training of Foundation Models …", and proofs.

    python benchmarks/experiments/placement.py

cases: cost of our strategies over ten seeds, beside the least that any placement costs and what the
authors' program reaches; mean cost of random placements. small: 100 random instances of eight
devices, exact search and default search against trying everything. world: the last case with
all-reduces by schedules made for each group, instead of direct exchanges.
"""

import dataclasses
import statistics
import time
from typing import Any

import numpy as np

import gradweave as gw
from benchmarks.experiment import Rows, grid, run
from benchmarks.naive_placement import Naive
from benchmarks.placement_cases import (
    ACTIVATION_BYTES,
    DATA,
    GRADIENT_BYTES,
    PUBLISHED,
    WORKLOAD,
    Case,
    cases,
)
from benchmarks.timing import timed
from gradweave.placement import (
    Annealing,
    Evolutionary,
    ExactPlacer,
    Placement,
    Placer,
    RandomOrder,
    even_stages,
    placement_bound,
)
from gradweave.placement.exchange import exchange_cost
from gradweave.placement.pairs import Pairs, pairs_of
from gradweave.placement.problem import Problem
from gradweave.placement.timeline.groups import group_schedules
from gradweave.placement.timeline.step import exchange_seconds
from gradweave.schedulers.spec import from_spec
from gradweave.topology import Topology

SEEDS = range(10)
RANDOM = 5000
"""Random placements, as many as the authors' program averages."""
INSTANCES = 100
SCHEDULE_LIMIT_S = 60.0


def problem_of_case(case: Case) -> Problem:
    return Problem(pairs_of(case.network), WORKLOAD, DATA)


def searched(problem: Problem, placer: Placer) -> dict[str, Any]:
    """Cost of each seed, and wall seconds."""
    costs, seconds = [], []
    for seed in SEEDS:
        wall_s, devices = timed(lambda s=seed: placer.place(problem, seed=s), time.process_time)
        costs.append(exchange_cost(problem, devices).seconds)
        seconds.append(wall_s)
    return {
        "best_s": min(costs),
        "mean_s": statistics.mean(costs),
        "worst_s": max(costs),
        "search_s": statistics.mean(seconds),
    }


def one_case(case: str) -> dict[str, Any]:
    problem = problem_of_case(next(one for one in cases() if one.name == case))
    ours, theirs = searched(problem, Annealing()), searched(problem, Evolutionary())
    at_random = [
        exchange_cost(problem, RandomOrder().place(problem, seed=seed), as_placed=True).seconds
        for seed in range(RANDOM)
    ]
    bound_s, bound = timed(lambda: placement_bound(problem, cost_s=ours["best_s"]))
    proved = bound.certificate.nanoseconds(problem)  # from the certificate alone
    published_random, published = PUBLISHED[case]
    return {
        "annealing": ours,
        "evolutionary": theirs,
        "bound_s": proved / 1e9,
        "gap": ours["best_s"] / (proved / 1e9) - 1,
        "bound_search_s": bound_s,
        "random_s": statistics.mean(at_random),
        "published_s": published,
        "published_random_s": published_random,
    }


def small_instance(seed: int) -> tuple[Problem, Naive]:
    """Eight devices, 4 × 2 or 2 × 4, anywhere or in two to four sites, alike inside."""
    rng = np.random.default_rng([2040, seed])
    stages, data = ((4, 2), (2, 4))[seed % 2]
    count = 8 if seed % 4 < 2 else int(rng.integers(2, 5))
    latency = rng.uniform(1e-3, 0.25, (count, count))
    bandwidth = 1.25e8 * 10 ** rng.uniform(-0.7, 1, (count, count))
    home = rng.integers(count, size=8) if count < 8 else np.arange(8)
    table = np.ix_(home, home)
    pairs = Pairs(latency[table], bandwidth[table])
    work = even_stages(stages, activation_bytes=ACTIVATION_BYTES, gradient_bytes=GRADIENT_BYTES)
    naive = Naive(
        pairs.latency_s, pairs.bandwidth_bytes_per_s, GRADIENT_BYTES, ACTIVATION_BYTES, data
    )
    return Problem(pairs, work, data), naive


def small() -> dict[str, Any]:
    """How often exact and default search reach the least, and how near the bound comes."""
    equal = {"exact": 0, "annealing": 0, "evolutionary": 0}
    times: dict[str, list[float]] = {name: [] for name in equal}
    gaps = []
    for seed in range(INSTANCES):
        problem, naive = small_instance(seed)
        least = naive.best(8)
        for placer in (ExactPlacer(), Annealing(), Evolutionary()):
            wall_s, devices = timed(lambda p=placer, q=problem: p.place(q), time.process_time)
            cost = exchange_cost(problem, devices).seconds
            equal[placer.name] += bool(abs(cost / least - 1) < 1e-7)
            times[placer.name].append(wall_s)
        bound = placement_bound(problem, cost_s=least).seconds
        assert bound <= least * (1 + 1e-9), (seed, bound, least)
        gaps.append(least / bound - 1)
    return {
        "instances": INSTANCES,
        "equal": equal,
        "search_s": {name: statistics.mean(each) for name, each in times.items()},
        "gap_median": statistics.median(gaps),
        "gap_largest": max(gaps),
    }


def with_ports(network: Topology) -> Topology:
    """The same with a port for each device, as fast as its fastest link, before all its links."""
    count = network.num_servers
    fastest = np.zeros(count)
    np.maximum.at(fastest, network.source, network.bandwidth_bytes_per_s)
    own = np.arange(count)
    return Topology(
        name=f"{network.name}, one port each",
        is_server=np.arange(2 * count) < count,
        source=np.concatenate([network.source + count, own, own + count]),
        target=np.concatenate([network.target + count, own + count, own]),
        bandwidth_bytes_per_s=np.concatenate([network.bandwidth_bytes_per_s, fastest, fastest]),
        latency_s=np.concatenate([network.latency_s, np.zeros(2 * count)]),
        capacity=np.ones(len(network.source) + 2 * count, int),
        overhead_s=np.zeros(len(network.source) + 2 * count),
    )


def world() -> list[dict[str, Any]]:
    """Gradients of the last case exchanged directly, and by a schedule for each group's links.

    The groups have no device in common and their links are alike, so that one stands for all.
    """
    case = cases()[-1]
    problem = problem_of_case(case)
    cost = exchange_cost(problem, Annealing().place(problem))
    own, _ = gw.topology.subnetwork(case.network, np.sort(cost.devices[0]))
    rows = []
    for links, network in (("own links", own), ("one port", with_ports(own))):
        placed = dataclasses.replace(WORKLOAD, stages=WORKLOAD.stages[:1])
        one = Placement(network, placed, network.servers[None], 0.0, 0.0, "all", {}, 0)
        seconds, groups = timed(
            lambda p=one: group_schedules(
                p.topology, p.servers, [GRADIENT_BYTES], time_limit=SCHEDULE_LIMIT_S
            )
        )
        group = groups[0]
        rows.append(
            {
                "links": links,
                "exchange_s": cost.data_s,
                "schedule_s": group.seconds,
                "fair_s": exchange_seconds(groups, one),
                "least_s": group.bound_s,
                "pipeline_s": cost.pipeline_s,
                "scheduler": group.schedule.scheduler.name,
                "pieces": group.schedule.pieces,
                "search_s": seconds,
            }
        )
    return rows


if __name__ == "__main__":
    run(
        __doc__,
        Rows(grid(case=[case.name for case in cases()]), one_case, "cases"),
        Rows([{}], small, "small"),
        Rows([{}], world, "world"),
        warm=lambda: from_spec("ring"),
        finish=lambda _, rows, __: {"small": rows[0]},
        seeds=len(SEEDS),
        random_placements=RANDOM,
    )
