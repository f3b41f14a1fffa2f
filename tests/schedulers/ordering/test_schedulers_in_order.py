"""Jobs in other orders: by hand, for every strategy's plans, with ready times, and the orders
tried."""

import numpy as np
import pytest

import gradweave as gw
from gradweave.errors import NoScheduleError
from gradweave.schedulers import Apart, Chain, Direct, Joint, solve_demand
from gradweave.schedulers.ordering import in_order_kernel
from gradweave.schedulers.ordering.in_order import WAYS, InOrder, Way
from gradweave.schedulers.ordering.job_orders import job_orders, last_first, neighbours
from gradweave.schedulers.packing.stages import Stages
from gradweave.schedules import REDUCE, Demand, Job, collective, demand_of
from gradweave.schedules.objective import objective_of
from gradweave.simulator import event_seconds
from gradweave.simulator.runtime import runtime_of
from gradweave.verifier import verify
from tests.interpreted import interpreted
from tests.schedules.small_demands import by_hand

STAR = gw.topology.from_spec("star:4,bandwidth=1GB/s,latency=0s,overhead=0s")


def two(ready_at: float = 0.0) -> Demand:
    """A long and a short message from the same port."""
    long = Job("broadcast", 4 * 10**6, [0, 1], root=0)
    return demand_of(STAR, [long, Job("broadcast", 10**6, [0, 2], root=0, ready_at=ready_at)])


def ends(schedule: gw.schedules.Schedule) -> np.ndarray:
    demand, block = schedule.demand, schedule.block
    assert demand is not None and block is not None
    last = np.zeros(len(demand.jobs))
    np.maximum.at(last, demand.job[block[schedule.piece]], event_seconds(schedule)[1])
    return last


@pytest.mark.parametrize("way", WAYS)
def test_the_first_job_has_the_link_and_the_other_what_is_left(way: Way):
    transfers = InOrder(Direct().schedule(STAR, two()))
    for place, after in (((0, 1), (4e-3, 5e-3)), ((1, 0), (5e-3, 1e-3))):
        order = transfers.order(np.array(place), way)
        assert order.job_seconds == pytest.approx(after)
        assert ends(transfers.made(order)) == pytest.approx(after)


def test_a_job_that_is_ready_late_keeps_none_waiting():
    transfers = InOrder(Direct().schedule(STAR, two(ready_at=1.0)))
    order = transfers.order(np.array([1, 0]))
    assert order.job_seconds[1] == pytest.approx(1.0 + 1e-3)
    assert order.job_seconds[0] == pytest.approx(4e-3)


LEAVES = gw.topology.from_spec("leaf_spine:leaves=2,spines=1,servers_per_leaf=3")
JOBS = [
    Job("all_reduce", 3 * 10**6, range(6)),
    Job("all_gather", 10**6, [0, 1, 2], ready_at=1e-4),
    Job("reduce", 10**6, range(6), root=4),
]


@pytest.mark.parametrize(
    "strategy", [Direct(), Chain(), Joint(), Apart()], ids=lambda one: one.name
)
def test_plans_in_any_order_verify_and_end_as_they_are_played(strategy):
    transfers = InOrder(strategy.schedule(LEAVES, demand_of(LEAVES, JOBS), time_limit=0.2))
    for place in ((0, 0, 0), (2, 0, 1)):
        for way in WAYS:
            order = transfers.order(np.array(place), way)
            made = transfers.made(order)
            verify(made, forwarding_servers=True).raise_if_invalid()
            assert (ends(made) <= order.job_seconds * (1 + 1e-9)).all()


def test_a_sum_follows_a_copy_unless_the_target_has_a_part_of_its_own():
    """A copy to node 1, a sum there, and its sum sent on: three rounds of one piece."""
    for owns, pairs in ((False, [(0, 1), (0, 2), (1, 2)]), (True, [(0, 2), (1, 2)])):
        with interpreted(in_order_kernel):
            waits, following, first, sound = in_order_kernel.dependencies(
                np.array([0, 3]), np.arange(3), np.array([0, 2, 1]), np.array([1, 1, 3]),
                np.array([True, False, False]), np.array([False, owns, False]), 3,
            )  # fmt: skip
        found = [(a, b) for a in range(3) for b in following[first[0, a] : first[0, a + 1]]]
        assert sound and found == pairs
        assert waits[0].tolist() == [sum(b == m for _, b in pairs) for m in range(3)]


def test_sums_that_are_exchanged_in_place_have_one_order():
    both = collective("all_reduce", [0, 1], 8)
    rows = [(0, 0, REDUCE, (0, 1)), (0, 0, REDUCE, (1, 0))]
    with pytest.raises(NoScheduleError, match="exchange sums in place"):
        InOrder(by_hand(both, rows, [0]))


def test_the_last_on_the_busiest_link_is_the_one_of_least_weight_for_what_it_takes():
    load = np.array([[1.0, 2.0, 3.0], [5.0, 0.0, 0.0]])
    assert last_first(load, np.ones(3)) == [1, 0, 2]  # then link 1 is busiest, with one job
    assert last_first(load, np.array([0.1, 1.0, 1.0])) == [1, 2, 0]
    alone = np.array([5.0, 2.0, 3.0])
    tried = list(job_orders(objective_of("sum", 3), load, alone, np.zeros(3), 1.0))
    assert tried[:2] == [(2, 0, 1), (0, 0, 0)] and (1, 0, 2) in tried and (0, 2, 1) in tried
    late = np.array([0.0, 1.0, 4.0])  # the first job is long, and alone at first
    assert next(job_orders(objective_of("sum", 3), load, alone, late, 1.0)) == (0, 1, 2)
    assert next(neighbours((0, 0, 0))) == (0, 1, 1)
    assert set(neighbours((2, 0, 1))) == {(2, 1, 0), (1, 0, 2)}


def test_stages_of_an_order_are_as_many_as_may_be():
    stages = Stages.in_order([3, 0, 1, 2], [1.0, 2.0, 4.0, 8.0], 2)
    assert stages.of_job.tolist() == [1, 0, 0, 1] and stages.weight.tolist() == [6.0, 9.0]


def test_objectives_differ_and_none_is_below_its_bound():
    jobs = [Job("broadcast", 9 * 10**6, root=0, weight=1), Job("all_to_all", 10**6, weight=9)]
    found = {
        name: solve_demand(STAR, jobs, objective=name, strategies=[Direct()])
        for name in ("makespan", "sum", "weighted", "fair")
    }
    for name, one in found.items():
        assert one.judge.name == name and one.gap >= 0
        assert one.value == pytest.approx(one.judge.value(one.job_seconds))
        for other in found.values():
            assert one.least <= one.judge.value(other.job_seconds)
    # The short job comes first, except for the makespan, which is the same either way.
    assert found["weighted"].job_seconds[1] < 2e-3 < found["weighted"].job_seconds[0]
    assert found["sum"].value <= found["makespan"].job_seconds.sum() * (1 + 1e-9)


def test_a_runtime_s_messages_cost_what_its_profile_says():
    job = [Job("all_to_all", 4000), Job("all_reduce", 4000, weight=2)]
    ideal = solve_demand(STAR, job, strategies=[Direct()])
    gloo = solve_demand(STAR, job, runtime="gloo", objective="sum", strategies=[Direct()])
    assert gloo.seconds > 10 * ideal.seconds and gloo.least > ideal.least
    profile = runtime_of("gloo")
    again = profile.job_seconds(gloo.schedule)
    assert again == pytest.approx(gloo.job_seconds)
    assert again.max() == pytest.approx(profile.seconds(gloo.schedule, 12_000 + 4000))
    assert gloo.schedule.scheduler.options["runtime"] == "gloo"
