"""Servers that are ready late: a worked example, what all models have in common, errors."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gradweave as gw
from gradweave.errors import InputWarning, OptionError
from gradweave.lab.measure import starting_at_once
from gradweave.schedulers.textbook.runtimes import Direct
from gradweave.schedules import Job, demand_of
from gradweave.schedules.ready import planned_ready_times, ready_at_once
from gradweave.schedules.schedule import Provenance, Schedule
from gradweave.simulator import event_seconds, fair_seconds, round_seconds, seconds
from tests.simulator.test_simulate_seconds import schedules

MODELS = ("rounds", "events", "fair")


def exchange() -> Schedule:
    """Two servers on a link of 1 GB/s that send each other half of 2 GB, in both stages."""
    link = gw.topology.Link(bandwidth_bytes_per_s=1e9, latency_s=0.0, overhead_s=0.0)
    network = gw.topology.ring(2, link=link)
    return gw.schedulers.Ring().schedule(network)


def test_a_late_server_receives_and_sends_nothing():
    schedule = exchange()
    late = [0.0, 2.0]
    start, end = event_seconds(schedule, 2e9, late)
    first = start[(schedule.round == 0)][np.argsort(schedule.source[schedule.round == 0])]
    assert first.tolist() == [0.0, 2.0]  # what server 0 sends waits at server 1, to be added
    # Server 1 has its sum as soon as it is ready, but its link is taken until 3.
    assert start[schedule.round == 1].tolist() == [3.0, 3.0] and end.max() == 4.0
    assert fair_seconds(schedule, 2e9, late)[1].max() == pytest.approx(4.0)
    assert round_seconds(schedule, 2e9, late).tolist() == [3.0, 1.0]
    assert [seconds(schedule, 2e9, model, ready_at_s=late) for model in MODELS] == [4.0] * 3


def test_of_a_late_job_nothing_is_sent_before():
    star = gw.topology.star(4, link=gw.topology.Link(1e9, 0.0, overhead_s=0.0))
    jobs = [
        gw.schedules.Job("all_reduce", 10**9, [2 * n, 2 * n + 1], ready_at=3 * n) for n in (0, 1)
    ]
    demand = gw.schedules.demand_of(star, jobs)
    schedule = gw.schedulers.Direct().schedule(star, demand)
    assert schedule.block is not None
    late = demand.job[schedule.block[schedule.piece]] == 1
    for play in (event_seconds, fair_seconds):
        start, end = play(schedule, None, [0.0, 1.0, 0.0, 4.0])  # its servers are late, too
        assert start[late].min() == 3.0 and start[schedule.source == 3].min() == 4.0
        assert start[~late].min() == 0.0 and end[late].max() == 5.0
    assert seconds(schedule) == pytest.approx(4.0, rel=1e-7)


def test_of_an_all_gather_only_its_own_piece_is_late():
    network = gw.topology.ring(3, link=gw.topology.Link(1e9, 0.0, overhead_s=0.0))
    schedule = gw.schedulers.Ring().schedule(network, collective="all_gather")
    start, _ = event_seconds(schedule, 3e9, [5.0, 0.0, 0.0])
    own = schedule.root[schedule.piece] == 0
    assert start[own].min() == 5.0 and start[~own].min() == 0.0
    # A reduce-scatter's every sum from it has its own contribution.
    reduced = gw.schedulers.Ring().schedule(network, collective="reduce_scatter")
    start, _ = event_seconds(reduced, 3e9, [5.0, 0.0, 0.0])
    assert start[reduced.source == 0].min() == 5.0


@settings(max_examples=30, deadline=None)
@given(
    schedule=schedules, gradient_bytes=st.sampled_from([1e3, 1e9]), model=st.sampled_from(MODELS)
)
def test_all_late_alike_is_the_same_later(schedule, gradient_bytes, model):
    servers = schedule.topology.num_servers
    on_time = seconds(schedule, gradient_bytes, model)
    none_late = seconds(schedule, gradient_bytes, model, ready_at_s=[0.0] * servers)
    assert none_late == pytest.approx(on_time, rel=1e-12)
    later = seconds(schedule, gradient_bytes, model, ready_at_s=[7.0] * servers)
    assert later == pytest.approx(7.0 + on_time, rel=1e-9)


@settings(max_examples=30, deadline=None)
@given(schedule=schedules, late=st.integers(0, 7), delay=st.sampled_from([1e-3, 0.5, 20.0]))
def test_none_sends_before_it_is_ready_and_nothing_waits_longer_than_that(schedule, late, delay):
    servers = schedule.topology.num_servers
    ready = np.zeros(servers)
    ready[late % servers] = delay
    for play in (event_seconds, fair_seconds):
        before, _ = play(schedule, 1e9)
        start, _ = play(schedule, 1e9, ready)
        own = schedule.source == schedule.topology.servers[late % servers]
        if schedule.collective == "all_gather":
            own &= schedule.root[schedule.piece] == schedule.source
        assert (start[own] >= delay).all()
        assert start.min() == 0.0 or own.any()
        assert before.min() == 0.0


@pytest.mark.parametrize(
    ("ready", "expected"),
    [
        ([0.0], "ready_at_s: expected 2, one for each server, got 1"),
        ([0.0, -1.0], "for the server of rank 1, got -1"),
        ([float("nan"), 0.0], "for the server of rank 0, got nan"),
        ([0.0, float("inf")], "got inf"),
    ],
)
def test_times_that_make_no_sense(ready, expected):
    for model in MODELS:
        with pytest.raises(OptionError, match=expected):
            seconds(exchange(), 1e9, model, ready_at_s=ready)


def planned_for_late(times: object) -> Schedule:
    return exchange().replace(scheduler=Provenance("ring", {"ready_at_s": times}))


@pytest.mark.parametrize("model", MODELS)
def test_a_plan_for_late_servers_counts_their_times(model, tmp_path):
    planned_for_late([0.0, 2.0]).save(tmp_path / "late.json")
    late = gw.load(tmp_path / "late.json")
    # 1 s per transfer, one for each stage; server 1 begins both after 2 s.
    assert seconds(late, 2e9, model) == seconds(exchange(), 2e9, model, ready_at_s=[0.0, 2.0]) == 4
    assert seconds(late, 2e9, model, ready_at_s=[0.0, 0.0]) == 2
    assert seconds(ready_at_once(late), 2e9, model) == 2


@pytest.mark.parametrize("stated", ["soon", [1.0], [0.0, -1.0], [0.0, "2"], [0.0, True], [0, 0]])
def test_stated_times_that_make_no_sense_count_as_none(stated):
    assert planned_ready_times(planned_for_late(stated)) is None
    assert seconds(planned_for_late(stated), 2e9, "events") == 2


def test_a_lab_starts_all_at_once_and_says_so():
    late = planned_for_late([0.0, 2.0])
    with pytest.warns(
        InputWarning, match=r"late.json is planned for servers .* starts all together"
    ):
        started = starting_at_once("late.json", late)
    assert seconds(started, 2e9, "events") == 2
    demand = demand_of(late.topology, [Job("broadcast", 10**9, root=0, ready_at=3.0)])
    jobs = Direct().schedule(late.topology, demand)
    assert seconds(jobs, None, "events") == 4
    assert seconds(ready_at_once(jobs), None, "events") == 1
    assert starting_at_once("ring", exchange()).scheduler == exchange().scheduler
