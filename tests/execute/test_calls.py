"""Calls of several groups, which may wait for each other forever."""

import numpy as np
import pytest

import gradweave as gw
from gradweave.errors import DeadlockError, OptionError
from gradweave.execute.calls import check_calls, plan_waits
from gradweave.schedules import Demand, collective


def groups(*members: list[int]) -> Demand:
    return Demand.together([collective("all_reduce", one, 800) for one in members])


def ends(demand: Demand, calls: dict[int, list[int]]) -> bool:
    """Whether calls return, played: one is complete when all of its servers have begun it."""
    left = {server: list(jobs) for server, jobs in calls.items()}
    while any(left.values()):
        waiting = {server: jobs[0] for server, jobs in left.items() if jobs}
        ready = [
            job
            for job in set(waiting.values())
            if all(waiting.get(int(server)) == job for server in demand.servers_of(job))
        ]
        if not ready:
            return False
        for server in demand.servers_of(ready[0]):
            left[int(server)].pop(0)
    return True


def test_two_groups_called_in_different_orders_never_end():
    demand = groups([0, 1, 2], [1, 2, 3])
    check_calls(demand, {0: [0], 1: [0, 1], 2: [0, 1], 3: [1]})
    with pytest.raises(DeadlockError) as raised:
        check_calls(demand, {0: [0], 1: [0, 1], 2: [1, 0], 3: [1]})
    message = str(raised.value)
    assert "server 1 calls all_reduce (job 1) after all_reduce (job 0)" in message
    assert "server 2 calls all_reduce (job 0) after all_reduce (job 1)" in message


def test_so_do_three_in_a_circle():
    demand = groups([0, 1], [1, 2], [2, 0])
    with pytest.raises(DeadlockError, match=r"job 0.*job 1.*job 2|job 2.*job 1.*job 0"):
        check_calls(demand, {0: [0, 2], 1: [1, 0], 2: [2, 1]})
    check_calls(demand, {0: [0, 2], 1: [0, 1], 2: [1, 2]})


def test_random_calls_are_refused_where_they_do_not_end():
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(300):
        members = [
            sorted(rng.choice(4, rng.integers(2, 4), replace=False).tolist()) for _ in range(3)
        ]
        demand = groups(*members)
        again = rng.integers(1, 3, len(members))
        calls = {
            server: rng.permutation(
                [job for job, of in enumerate(members) if server in of for _ in range(again[job])]
            ).tolist()
            for server in range(4)
        }
        try:
            check_calls(demand, calls)
            assert ends(demand, calls), (members, calls)
        except DeadlockError:
            refused += 1
            assert not ends(demand, calls), (members, calls)
    assert 50 < refused < 280


def test_a_plan_of_all_jobs_waits_where_links_are_shared():
    star, ring = gw.topology.star(4), gw.topology.ring(4)
    apart = gw.schedulers.Joint().schedule(ring, groups([0, 1], [2, 3]))
    assert not plan_waits(apart)
    shared = gw.schedulers.Apart().schedule(star, groups([0, 1], [0, 1]))
    waits = plan_waits(shared)
    assert {(one.job, one.waits_for) for one in waits} == {(1, 0)}
    for first, second in ((0, 1), (1, 0)):  # each with a plan of its own
        check_calls(shared.demand, {0: [first, second], 1: [first, second]})
    check_calls(shared.demand, {0: [0, 1], 1: [0, 1]}, waits)
    with pytest.raises(DeadlockError, match="the plan sends for"):
        check_calls(shared.demand, {0: [1, 0], 1: [1, 0]}, waits)


@pytest.mark.parametrize(
    ("calls", "message"),
    [
        ({0: [0, 2], 1: [0]}, "server 0: expected jobs 0 to 1, got 2"),
        ({0: [0, 0], 1: [0]}, "job 0.*server 0 calls it 2 times, server 1 1"),
    ],
)
def test_calls_that_are_not_made_by_all(calls, message):
    with pytest.raises(OptionError, match=message):
        check_calls(groups([0, 1], [0, 1]), calls)
