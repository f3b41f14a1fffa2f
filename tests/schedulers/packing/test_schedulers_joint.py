"""Jobs planned together: valid, above the bound, deterministic, optimal in known cases."""

import dataclasses

import numpy as np
import pytest

import gradweave as gw
from gradweave.common.stop import UNLIMITED, Stop
from gradweave.errors import NoScheduleError, OptionError
from gradweave.schedulers import Apart, Joint, solve_demand
from gradweave.schedulers.carriers import path_carrier
from gradweave.schedulers.demand_tuning import TUNING
from gradweave.schedulers.packing.joint_program import _Program
from gradweave.schedulers.packing.stages import Stages
from gradweave.schedules import REDUCE, Job, collective, demand_of
from gradweave.schedules.file import to_bytes
from gradweave.simulator.seconds import event_seconds
from gradweave.verifier import verify
from tests.schedulers.packing.random_jobs import random_jobs

IDEAL = ",bandwidth=1GB/s,latency=0s,overhead=0s"
"""On links without latency, seconds are bytes over bandwidth."""


@pytest.mark.parametrize("spec", ["ring:5", "star:4", "bcube:n=2,k=1", "dgx1v"])
@pytest.mark.parametrize("relays", [True, False])
def test_random_jobs_are_planned_and_valid(spec: str, relays: bool):
    topology = gw.topology.from_spec(spec)
    for seed in range(3):
        demand = random_jobs(topology, seed, relays=relays)
        schedule, bound = Joint().bounded(topology, demand, Stop.after(0.1))
        assert verify(schedule).valid
        assert bound is not None and event_seconds(schedule)[1].max() >= bound.seconds


def test_latency_counts_in_units_of_the_time_of_all_bytes():
    """1 MB at 1 GB/s, over two hops that take 1 ms and 0.5 ms before it, in sequence."""
    row = gw.topology.from_spec("mesh:1x3,bandwidth=1GB/s,latency=1ms,overhead=500us")
    demand = collective("broadcast", range(3), 10**6, root=0)
    program = _Program(row, demand, 0.0, (), Stages.one(1))
    over = {
        (int(a), int(b)): k for k, (a, b) in enumerate(zip(row.source, row.target, strict=True))
    }
    path = path_carrier(row, [0, 1, 2], lambda a, b: (over[a, b],))
    assert program._latency(path) == pytest.approx(TUNING.latency_weight * 3.0)


def test_the_plan_carries_each_block_whole_and_each_link_to_the_bound():
    topology = gw.topology.from_spec("torus:3x3")
    demand = demand_of(
        topology, [Job("broadcast", 9 * 10**9, root=4), Job("all_to_all", 9 * 10**8)]
    )
    plan = Joint().plan(topology, demand)
    assert np.bincount(plan.block, plan.bytes) == pytest.approx(demand.bytes)
    load = np.zeros(len(topology.source))
    for carrier, size in zip(plan.carriers, plan.bytes, strict=True):
        np.add.at(load, np.concatenate([np.array(route) for route in carrier.routes]), size)
    busiest_s = (load / topology.bandwidth_bytes_per_s).max()
    least_s = plan.bound.lengths.used / float(plan.bound.lengths.offered)
    assert least_s <= busiest_s * (1 + 1e-9) and busiest_s <= least_s * 1.01


def test_few_bytes_beside_many_are_carried_too():
    """Within the program's tolerance they are zero; they take the path of minimum latency."""
    topology = gw.topology.from_spec("hypercube:3")
    jobs = [Job("reduce", 10**9, servers=range(4), root=2), Job("all_gather", 4, servers=range(4))]
    demand = demand_of(topology, jobs)
    plan = Joint().plan(topology, demand)
    assert np.bincount(plan.block, plan.bytes) == pytest.approx(demand.bytes)
    assert verify(Joint().schedule(topology, demand)).valid


def test_relays_add_to_the_first_that_they_get():
    """Servers that share no link: sums are formed at other servers, which contribute nothing."""
    torus = gw.topology.from_spec("torus:4x4")
    job = Job("all_reduce", 10**6, [0, 2, 8, 10], relays=torus.servers)
    found = solve_demand(torus, job, strategies=[Joint()], time_limit=0.2)
    adds = found.schedule.op == REDUCE
    assert not set(found.schedule.target[adds].tolist()) <= {0, 2, 8, 10}


def test_the_same_again():
    topology = gw.topology.from_spec("star:5")
    demand = random_jobs(topology, 3, relays=True)
    once, again = (Joint().schedule(topology, demand, seed=7) for _ in range(2))
    assert to_bytes(once) == to_bytes(again)


OPTIMAL = {
    # one message each way: its bytes
    "two messages": ("star:2" + IDEAL, [Job("all_to_all", [[0, 500], [500, 0]])], 500),
    # a broadcast from 0 and a reduce to 0, whose transfers go the other way
    "there and back": (
        "mesh:1x3" + IDEAL,
        [Job("broadcast", 900, root=0), Job("reduce", 900, root=0)],
        900,
    ),
    # two groups of a star use different ports
    "apart": (
        "star:4" + IDEAL,
        [Job("all_reduce", 800, [0, 1]), Job("all_reduce", 800, [2, 3])],
        800,
    ),
    # port 0 sends the blocks of two jobs
    "shared": (
        "star:3" + IDEAL,
        [Job("broadcast", 300, [0, 1], root=0), Job("broadcast", 500, [0, 2], root=0)],
        800,
    ),
    # both ways round: 100 over one hop to the neighbour, and 50 over each of two to the other
    "round both ways": (
        "ring:3" + IDEAL,
        [Job("all_to_all", [[0, 300, 300], [0, 0, 0], [0, 0, 0]])],
        300,
    ),
}


@pytest.mark.parametrize("case", OPTIMAL)
def test_jobs_whose_least_time_is_plain_take_it(case: str):
    spec, jobs, size = OPTIMAL[case]
    found = gw.solve(spec, jobs=jobs)
    assert found.bound.seconds == pytest.approx(size / 1e9, rel=1e-6)
    assert found.seconds == pytest.approx(size / 1e9, rel=0.02)


def test_together_is_better_than_apart_where_jobs_share_links():
    net = gw.topology.from_spec(
        "leaf_spine:leaves=2,spines=1,servers_per_leaf=4,oversubscription=4"
    )
    does = {"ep": ("all_to_all", 10**7), "dp": ("all_reduce", 10**7)}
    jobs = gw.schedules.mesh_jobs(net, {"dp": 2, "ep": 4}, does)
    found = solve_demand(net, jobs, strategies=[Joint(), Apart()])
    together, apart = (one.seconds for one in found.attempts if not one.improved)
    assert together is not None and apart is not None
    assert found.seconds <= together < apart
    assert found.gap < 0.05


def test_apart_is_optimal_where_jobs_share_none():
    net = gw.topology.from_spec("torus:3x3")
    jobs = gw.schedules.mesh_jobs(net, {"dp": 3, "tp": 3}, {"tp": ("all_gather", 10**9)})
    found = solve_demand(net, jobs[:2], strategies=[Apart()])
    alone = solve_demand(net, jobs[0])
    assert found.seconds == pytest.approx(alone.seconds)
    assert found.job_seconds == pytest.approx([alone.seconds] * 2)
    assert found.schedule.name == "2 × tp all_gather"


def test_jobs_that_are_alike_have_one_plan_on_other_nodes():
    net = gw.topology.from_spec("torus:3x3")
    does = {"dp": ("all_to_all", 10**6), "tp": ("all_to_all", 10**5)}
    schedule = Apart().schedule(
        net, demand_of(net, gw.schedules.mesh_jobs(net, {"dp": 3, "tp": 3}, does))
    )
    assert schedule.block is not None and schedule.demand is not None
    job = schedule.demand.job[schedule.block[schedule.piece]]
    sent = [
        sorted((schedule.source[job == one] // step % 3).tolist())
        for one, step in zip(range(6), (3, 3, 3, 1, 1, 1), strict=True)
    ]
    assert sent[0] == sent[1] == sent[2] and sent[3] == sent[4] == sent[5]


def test_each_job_has_its_end():
    jobs = [Job("broadcast", 10**6, [0, 1], root=0), Job("broadcast", 10**7, [2, 3], root=2)]
    found = gw.solve("star:4,latency=1us", jobs=jobs)
    assert found.job_seconds.max() == found.seconds
    assert found.job_seconds[0] < found.job_seconds[1] / 5


def test_a_plan_is_made_even_without_time():
    topology = gw.topology.from_spec("ring:5")
    demand = random_jobs(topology, 0, relays=True)
    assert verify(Joint().schedule(topology, demand, time_limit=1e-9)).valid


def test_refused():
    with pytest.raises(OptionError, match="joint: residual: expected a number of at least 0"):
        Joint(residual=-1.0)
    topology = gw.topology.from_spec("star:4")
    one = collective("broadcast", [0, 1], 8, root=0)
    with pytest.raises(NoScheduleError, match="apart: needs several jobs"):
        Apart().schedule(topology, one)
    assert Joint().bounded(topology, one, UNLIMITED)[1] is not None


def test_pieces_of_a_late_job_do_not_hold_up_others():
    late_s = 1e-3
    jobs = [gw.schedules.Job("all_to_all", 10**6), gw.schedules.Job("all_reduce", 10**6)]
    alone = [gw.solve("star:4", jobs=job, schedulers="joint").seconds for job in jobs]
    jobs[1] = dataclasses.replace(jobs[1], ready_at=late_s)
    found = gw.solve("star:4", jobs=jobs, schedulers="joint", time_limit=0.5)
    assert alone[0] < late_s and found.job_seconds[0] < late_s
    assert found.job_seconds[1] < late_s + 1.1 * alone[1]


@pytest.mark.parametrize("residual", [-0.1, float("inf"), float("nan")])
def test_a_residual_that_is_no_weight_is_refused(residual):
    with pytest.raises(OptionError, match="residual: expected a number of at least 0, got"):
        Joint(residual=residual)
    assert Joint(residual=0.0).residual == 0
