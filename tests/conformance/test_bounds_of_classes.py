"""Every strategy against every printed bound: no schedule of the bound's class beats it.

`gradweave_check` reads the liberties of a schedule off its transfers, whatever strategy made it.
"""

import contextlib
import dataclasses
import functools
import json
from collections.abc import Iterator

import numpy as np
import pytest

import gradweave as gw
import gradweave_check as checker
from gradweave.bounds import (
    Certified,
    certify_each_class,
    certify_rounds_of_each_class,
    demand_bound,
)
from gradweave.bounds.seconds_bound import SecondsBound, seconds_bound
from gradweave.errors import NoScheduleError
from gradweave.schedulers import Grown, RecursiveDoubling
from gradweave.schedules import Schedule
from gradweave.schedules.compose import overlap
from gradweave.schedules.file import to_bytes
from gradweave.schedules.schedule import Collective
from gradweave.topology import Topology
from tests.conformance.made import made
from tests.conformance.networks import NETWORKS, network
from tests.conformance.strategies import STRATEGIES
from tests.conformance.test_demand_strategies import ROWS

LARGEST = 9
"""Servers of the largest networks that are tried, so that each takes some seconds at most."""
SMALL = [name for name in NETWORKS if network(name).num_servers <= LARGEST]
SLOW = {"exact", "group", "apart"}
"""Strategies of demands that search, or that use collectives' strategies, tested directly."""
STAGES: tuple[Collective, ...] = ("all_reduce", "reduce_scatter", "all_gather")
ALL_STAGES = ("complete:4", "star:5", "irregular")
"""Networks on which single stages are also tried; an all-reduce has both."""
SIZES = (1.0, 4e3, 1e7)


@functools.cache
def links(name: str, kind: str) -> Topology:
    """A network whose links differ, or have latencies, as in no entry of the table."""
    topology = network(name)
    count, draw = len(topology.source), np.random.default_rng(3)
    if kind == "as they are":
        return topology
    if kind == "far":
        return dataclasses.replace(topology, latency_s=np.full(count, 1e-5))
    pairs = np.minimum(np.arange(count), topology.opposite)
    return dataclasses.replace(
        topology,
        latency_s=draw.integers(0, 4, count)[pairs] * 5e-6,
        overhead_s=draw.integers(0, 3, count)[pairs] * 1e-6,
    )


@functools.cache
def schedules(name: str, collective: Collective) -> dict[str, tuple[Schedule, checker.Plan]]:
    """Schedules and their liberties by strategy; all-reduces also with overlapping stages."""
    found, topology = {}, network(name)
    for strategy, row in STRATEGIES.items():
        if name not in row.none_on:
            found[strategy] = made(name, strategy, collective)
    others = {
        "recursive doubling, of radix 4": RecursiveDoubling(radix=4),
        "grown, two pieces": Grown(restarts=2, pieces_per_server=2),
    }
    for strategy, scheduler in others.items():
        with contextlib.suppress(NoScheduleError):  # too few links to exchange with three at once
            found[strategy] = scheduler.schedule(topology, collective=collective, seed=0)
    if collective == "all_reduce":
        found |= {f"{one}, then overlapping": overlap(each) for one, each in [*found.items()]}
    return {one: (each, plan_of(each)) for one, each in found.items()}


def plan_of(schedule: Schedule) -> checker.Plan:
    content = json.loads(to_bytes(schedule.replace(certificates=())))
    net = checker.Network(content["topology"])
    asked = checker.Asked(content["collective"], content.get("demand"), net)
    return checker.Plan(content, net, asked, True)


def says_of(bound: Certified, plan: checker.Plan) -> bool:
    """Whether a bound's class, as printed, includes such a schedule."""
    few = checker.FEWER in bound.forbids
    few = few and any(a < b for a, b in zip(plan.pieces, bound.pieces, strict=True))
    return not few and not bound.forbids & plan.liberties


@pytest.mark.parametrize("name", SMALL)
def test_no_bound_on_rounds_is_above_a_schedule_of_its_class(name: str):
    topology, met = network(name), set[str]()
    for collective in STAGES if name in ALL_STAGES else STAGES[:1]:
        bounds = certify_rounds_of_each_class(topology, collective)
        bounds += certify_rounds_of_each_class(topology, collective, overlap=True)
        assert not bounds[0].forbids, "the first line holds for every schedule"
        for strategy, (schedule, plan) in schedules(name, collective).items():
            for bound in bounds:
                if says_of(bound, plan):
                    assert schedule.rounds >= bound.least, (strategy, collective, str(bound))
                    met.add(bound.holds_for)
    assert "every schedule" in met and len(met) > 1


@pytest.mark.parametrize("kind", ["as they are", "far", "unlike"])
@pytest.mark.parametrize("name", SMALL)
def test_no_bound_on_seconds_is_above_a_schedule_of_its_class(name: str, kind: str):
    topology = links(name, kind)
    for collective in STAGES if name in ALL_STAGES else STAGES[:1]:
        found = schedules(name, collective)
        for size in SIZES:
            bounds = certify_each_class(seconds_bound(topology, collective, size))
            assert not bounds[0].forbids, "the first line holds for every schedule"
            known = [*of_the_search(topology, collective, size)]
            for strategy, (schedule, plan) in found.items():
                moved = schedule.replace(topology=topology)
                taken = gw.simulator.seconds(moved, size, "events") * (1 + 1e-9)
                case = strategy, collective, size
                for one in bounds:
                    assert taken >= one.least or not says_of(one, plan), (*case, str(one))
                for one in known:
                    says = not one.holds_unless & plan.liberties
                    assert taken >= one.seconds or not says, (*case, str(one))


def of_the_search(
    topology: Topology, collective: Collective, size: float
) -> Iterator[SecondsBound]:
    """The bounds that `gradweave solve` compares a schedule with."""
    for trees in (True, False):
        for adding in (True, False):
            yield seconds_bound(
                topology, collective, size, trees=trees, aggregating_switches=adding
            )


@pytest.mark.parametrize("name", SMALL)
def test_no_bound_of_a_demand_is_above_a_plan_of_its_class(name: str):
    for kind, size in (("as they are", 4_000), ("unlike", 10**7)):
        topology = links(name, kind)
        demand = gw.schedules.collective("all_reduce", topology.servers.tolist(), size)
        bound = demand_bound(topology, demand)
        bounds = certify_each_class(bound)
        assert not bounds[0].forbids, "the first line holds for every schedule"
        for each in (each for each, row in ROWS.items() if each not in SLOW):
            if not ROWS[each].takes("all_reduce, all", demand):
                continue
            with contextlib.suppress(NoScheduleError):  # direct: two servers that share no link
                schedule = ROWS[each].strategy.schedule(topology, demand, seed=0)
                plan = plan_of(schedule)
                taken = gw.simulator.seconds(schedule, None, "events") * (1 + 1e-9)
                for one in bounds:
                    assert taken >= one.least or not says_of(one, plan), (each, size, str(one))
                says = not bound.holds_unless & plan.liberties
                assert taken >= bound.seconds or not says, (each, size, str(bound))


def test_two_servers_that_exchange_are_below_what_holds_for_trees_alone():
    """Both send 4 kB at once: 1 us of overhead, .4 us of bytes, 10 us of latency."""
    pair = gw.topology.from_spec("complete:2,bandwidth=80Gbit/s,latency=10us")
    swap = RecursiveDoubling().schedule(pair)
    taken = gw.simulator.seconds(swap, 4e3, "events")
    assert (swap.rounds, taken) == (1, pytest.approx(11.4e-6))
    rounds = certify_rounds_of_each_class(pair, "all_reduce")
    timed = certify_each_class(seconds_bound(pair, "all_reduce", 4e3))
    assert [(int(one.least), one.holds_for) for one in rounds] == [
        (1, "every schedule"),
        (2, "schedules that root a piece at each server"),
    ]
    assert [(float(one.least), one.holds_for) for one in timed] == [
        (pytest.approx(11.4e-6), "every schedule"),
        (pytest.approx(22e-6), "schedules that sum each piece at one server"),
    ]


def test_recursive_doubling_on_a_cube_is_below_what_holds_for_trees_alone():
    """Three exchanges of 4 kB over 10 us, .32 us of bytes and 1 us of overhead each."""
    cube = gw.topology.from_spec("hypercube:3,latency=10us")
    made = RecursiveDoubling().schedule(cube)
    taken = gw.simulator.seconds(made, 4e3, "events")
    assert taken == pytest.approx(33.96e-6)
    first, trees = certify_each_class(seconds_bound(cube, "all_reduce", 4e3))
    assert first.holds_for == "every schedule" and first.least <= taken
    assert float(trees.least) == pytest.approx(62e-6) and trees.least > taken
    assert trees.holds_for == "schedules that sum each piece at one server"
