"""`solve(jobs=…)`: results, strategies tried, and refusals."""

import dataclasses
import types
from typing import Any

import numpy as np
import pytest

import gradweave as gw
from gradweave.common.stop import Stop
from gradweave.errors import NoScheduleError, OptionError, SpecError
from gradweave.schedulers import BinomialTree, Chain, Group, solve_demand
from gradweave.schedulers.solving.group import collective_of
from gradweave.schedulers.solving.job_goal import JobGoal
from gradweave.schedules import Job, collective, demand_of, sends
from gradweave.schedules.schedule import Collective
from gradweave.simulator.runtime import IDEAL
from gradweave.verifier import verify

BROADCAST = Job("broadcast", 10**6, root=0)


def test_one_job_several_and_a_demand_are_all_taken():
    whole = collective("broadcast", range(4), 10**6, root=0)
    for jobs in (BROADCAST, [BROADCAST], whole):
        found = gw.solve("star:4", jobs=jobs, time_limit=0.2)
        assert verify(found.schedule).valid
        assert found.schedule.demand is not None and found.schedule.demand.name == "broadcast"
        assert found.gap >= 0 and found.seconds == min(
            one.seconds for one in found.attempts if one.seconds
        )


def test_the_search_ends_at_the_bound():
    net = "star:2,latency=0s,overhead=0s"
    found = gw.solve(net, jobs=sends([(0, 1, 10**6)]))
    assert found.optimal and len(found.attempts) == 1


REFUSED = {
    "collective": "all_gather",
    "gradient_bytes": 1e6,
    "ready_at_s": [0.0] * 4,
}


@pytest.mark.parametrize("option", REFUSED)
def test_options_of_one_collective_are_refused(option: str):
    with pytest.raises(OptionError, match=f"solve: {option}: not an option for jobs"):
        gw.solve("star:4", jobs=BROADCAST, **{option: REFUSED[option]})


def test_the_rest_is_refused():
    with pytest.raises(OptionError, match="time_limit: expected more than 0 seconds, got -1"):
        gw.solve("star:4", jobs=BROADCAST, time_limit=-1)
    with pytest.raises(OptionError, match="at least one strategy, got none"):
        solve_demand("star:4", BROADCAST, strategies=[])


def test_where_none_finds_a_schedule_each_says_why():
    with pytest.raises(NoScheduleError) as raised:
        solve_demand("ring:5", BROADCAST, strategies=[BinomialTree(), Group()])
    assert str(raised.value) == (
        "no schedule for broadcast on 'ring:n=5': binomial_tree: server 0 and server 2 share no "
        "link or switch; group: needs a single all-reduce, all-gather or reduce-scatter in equal "
        "parts"
    )


@pytest.mark.parametrize("name", ["all_reduce", "all_gather", "reduce_scatter"])
def test_a_group_is_planned_as_if_it_were_alone(name: Collective):
    job = Job(name, 10**6, [5, 1, 4])
    found = solve_demand("star:6", job, strategies=[Group()], time_limit=5)
    alone = gw.solve(
        "star:3", collective=name, objective="seconds", gradient_bytes=1e6, time_limit=5
    )
    assert alone.timing is not None
    assert found.seconds == pytest.approx(alone.timing.seconds, rel=0.01)
    used = {*found.schedule.source.tolist(), *found.schedule.target.tolist()}
    assert used == {1, 4, 5}


def test_a_group_whose_routes_pass_others_is_refused():
    with pytest.raises(NoScheduleError, match="group: the group's routes pass through"):
        solve_demand("ring:6", Job("all_reduce", 8, [0, 2, 3], relays=[1]), strategies=[Group()])


def test_progress_names_each_strategy():
    told: list[str] = []
    found = solve_demand("ring:5", BROADCAST, strategies=[Chain(), Chain()], progress=told.append)
    assert told[0] == "trying chain" and told[1].startswith("trying chain; ")
    assert found.attempts[0].seconds == found.attempts[1].seconds


def test_strategies_are_named_as_those_of_an_all_reduce_are():
    jobs = [Job("all_reduce", 900, [0, 1, 2]), Job("all_to_all", 900, [1, 2, 3])]
    given = ["ring", gw.schedulers.Merged(), BinomialTree(), "butterfly:partners=bine"]
    found = gw.solve("star:4", jobs=jobs, schedulers=given, time_limit=0.01)
    assert [one.scheduler.name for one in found.attempts][:1] == ["apart"]
    ring = gw.solve("star:4", jobs=jobs, schedulers="ring")
    made_by = ring.schedule.scheduler
    assert (made_by.name, made_by.options["scheduler"]) == ("apart", "ring")
    assert verify(ring.schedule).valid


REFUSED_STRATEGIES = {
    "learned": (
        BROADCAST,
        "learned",
        NoScheduleError,
        "group: needs a single all-reduce,",
    ),
    "messages": (
        sends([(0, 1, 8)]),
        "ring",
        NoScheduleError,
        "ring does not plan",
    ),
    "unknown": (BROADCAST, "brook", SpecError, "for demands also direct, chain"),
    "option": (BROADCAST, "bruck:radix=1", OptionError, "bruck: radix: expected 2 to 64, got 1"),
    "neither": (BROADCAST, [Chain], OptionError, "expected strategies for jobs, schedulers or"),
    "none": (BROADCAST, [], OptionError, "expected at least one strategy, got none"),
}


@pytest.mark.parametrize("case", REFUSED_STRATEGIES)
def test_strategies_that_make_no_sense_are_refused_in_one_line(case: str):
    jobs, schedulers, kind, message = REFUSED_STRATEGIES[case]
    with pytest.raises(kind) as raised:
        gw.solve("star:4", jobs=jobs, schedulers=schedulers)
    assert message in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize(("apart", "equal"), [(0, True), (1, True), (2, False)])
def test_parts_are_equal_if_division_leaves_a_byte_over(apart, equal):
    for name in ("all_gather", "reduce_scatter"):
        demand = collective(name, range(4), 40)
        demand = dataclasses.replace(demand, bytes=demand.bytes + np.array([0, 0, apart, 0]))
        found = collective_of(demand)
        assert (found is not None) == equal
        assert found is None or (found[0], found[1].tolist()) == (name, [0, 1, 2, 3])


@pytest.mark.parametrize(
    ("objective", "first", "last"), [("makespan", 2000, 8000), ("sum", 4000, 8000)]
)
def test_strategies_share_the_time_that_is_left(objective, first, last):
    """Of 8,000 seconds, the first of four takes a share, and the last one all."""
    star = gw.topology.from_spec("star:4")
    demand = demand_of(star, [BROADCAST, BROADCAST])
    stop = Stop.after(8000.0)
    goal = JobGoal(star, demand, objective, IDEAL, stop)
    shares: list[Any] = [types.SimpleNamespace(time_share=one) for one in (1.0, 0.5, 1.5, 1.0)]
    for remaining, seconds in ((shares, first), (shares[3:], last)):
        assert goal.part(stop, remaining, None).seconds_left == pytest.approx(seconds, rel=0.02)
