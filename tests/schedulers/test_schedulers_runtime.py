"""`solve` for a runtime: plans by its message costs, compared with its all-reduce."""

import math

import numpy as np
import pytest

import gradweave as gw
from gradweave.errors import OptionError
from gradweave.schedulers.solving.own import own_algorithms, own_schedule
from gradweave.simulator.runtime import Algorithm, Costs, Runtime, runtime_of
from gradweave.verifier import verify

LINK = gw.topology.Link(bandwidth_bytes_per_s=1e9, latency_s=1e-5, overhead_s=0.0)
STAR = gw.topology.star(4, link=LINK)
DEAR = Runtime("gloo", executor=Costs((0.0,), (1e-3,)))
"""A runtime without an all-reduce to compare with."""


def solved(runtime: Runtime | str, size: float = 4e6) -> gw.schedulers.Solution:
    schedulers = ["ring", "binomial", "packed:pieces=32", "recursive_doubling"]
    return gw.solve(
        STAR, objective="seconds", gradient_bytes=size, schedulers=schedulers, runtime=runtime
    )


def test_dear_messages_mean_few_of_them():
    ideal, dear = solved("ideal"), solved(DEAR)
    assert dear.schedule.num_transfers < ideal.schedule.num_transfers
    predicted = DEAR.seconds(dear.schedule, 4e6)
    assert dear.timing is not None and dear.timing.seconds == pytest.approx(predicted)
    assert predicted < DEAR.seconds(ideal.schedule, 4e6)
    assert dear.runtime is None


def test_the_schedule_is_on_the_network_itself():
    schedule = solved(DEAR).schedule
    np.testing.assert_array_equal(schedule.topology.latency_s, STAR.latency_s)
    np.testing.assert_array_equal(schedule.topology.overhead_s, STAR.overhead_s)
    assert verify(schedule).valid and schedule.scheduler.options["runtime"] == "gloo"


@pytest.mark.parametrize("cost_s", [1e-6, 1e-3, 1e-1])
def test_nothing_is_faster_than_the_bound(cost_s):
    own = Algorithm((0.0,), (cost_s / 3,))
    runtime = Runtime("gloo", executor=Costs((0.0,), (cost_s,), start_s=cost_s), own=(own,))
    timing = solved(runtime).timing
    assert timing is not None and timing.seconds >= timing.bound.seconds * (1 - 1e-9)


@pytest.mark.parametrize(("own_s", "chosen"), [(1e-5, True), (1.0, False)])
def test_its_own_is_the_answer_where_no_plan_is_faster(own_s, chosen):
    own = Algorithm((0.0,), (own_s,), parts=2)
    found = solved(Runtime("gloo", executor=Costs((0.0,), (1e-3,)), own=(own,)))
    assert found.runtime is not None and found.timing is not None
    assert found.runtime.own_chosen is chosen
    assert found.timing.seconds == (found.runtime.own_s if chosen else found.runtime.plan_s)
    assert found.schedule.scheduler.options.get("own", False) is chosen
    if chosen:
        assert found.schedule.pieces == 8 and verify(found.schedule).valid


def test_a_runtime_takes_its_algorithm_by_size():
    small, large = own_algorithms("mpi", 8)
    own = Runtime("mpi", own=(small, large))
    assert own_schedule(STAR, own, 1e3).scheduler.name == "recursive_doubling"
    assert own_schedule(STAR, own, 1e6).scheduler.name == "halving_doubling"
    assert own_schedule(STAR, Runtime("mpi"), 1e6) is None
    assert own_algorithms("mpi", 40)[0].below_bytes == math.inf
    assert [one.scheduler for one in own_algorithms("gloo", 4)] == ["ring"]


def test_an_unknown_algorithm_of_a_profile_is_refused():
    own = Runtime("magic", own=(Algorithm(scheduler="magic"),))
    with pytest.raises(OptionError, match="magic"):
        own_schedule(STAR, own, 1e6)


def test_a_runtime_needs_the_objective_seconds():
    with pytest.raises(OptionError, match="a runtime needs objective=seconds"):
        gw.solve(STAR, objective="rounds", runtime="gloo")


def test_a_collective_without_an_own_algorithm_is_planned_alone():
    found = gw.solve(
        STAR,
        collective="all_gather",
        objective="seconds",
        gradient_bytes=1e6,
        schedulers=["merged"],
        runtime=runtime_of("gloo"),
    )
    assert found.runtime is None
