"""Jobs, those of meshes, and what makes no sense of them."""

import numpy as np
import pytest

import gradweave as gw
from gradweave.errors import OptionError, ScheduleError
from gradweave.schedules import COPY, Job, at_once, collective, demand_of, mesh_jobs, sends
from gradweave.simulator.seconds import event_seconds
from gradweave.verifier import verify
from tests.schedules.small_demands import LINE, by_hand

STAR = gw.topology.star(8)
AXES = {"dp": 2, "tp": 4}


def test_a_mesh_is_the_servers_row_by_row():
    jobs = mesh_jobs(STAR, AXES, {"tp": ("all_gather", 80), "dp": ("all_reduce", 10)})
    assert [np.asarray(job.servers).tolist() for job in jobs] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        *([rank, rank + 4] for rank in range(4)),
    ]
    assert {job.name for job in jobs} == {"tp all_gather", "dp all_reduce"}
    assert demand_of(STAR, jobs).name == "2 × tp all_gather + 4 × dp all_reduce"
    cube = mesh_jobs(STAR, {"x": 2, "y": 2, "z": 2}, {"y": ("all_reduce", 1)})
    assert [np.asarray(job.servers).tolist() for job in cube] == [[0, 2], [1, 3], [4, 6], [5, 7]]


def test_an_axis_of_one_has_no_jobs():
    assert mesh_jobs(STAR, {"dp": 1, "tp": 8}, {"dp": ("all_reduce", 1)}) == []


def test_a_job_of_all_servers_keeps_its_name():
    made = Job("broadcast", 8, root=3, name="weights").demand(STAR)
    assert made.name == "weights" and made.destinations[0].tolist() == list(range(8))


REFUSED = {
    "places": (
        lambda: mesh_jobs(STAR, {"dp": 3, "tp": 3}, {}),
        "mesh: expected 8 places, one for each server, got 3 × 3 = 9",
    ),
    "axis": (lambda: mesh_jobs(STAR, AXES, {"pp": ("all_reduce", 1)}), "axes dp, tp, got 'pp'"),
    "no job": (lambda: demand_of(STAR, []), "expected at least one job, got none"),
    "second job": (
        lambda: demand_of(STAR, [Job("all_reduce", 8), Job("broadcast", 8)]),
        "job 1: broadcast: expected a root, got None",
    ),
    "server": (lambda: demand_of(STAR, [Job("all_reduce", 8, [0, 8])]), "server 8, which is a"),
    "relay": (lambda: demand_of(STAR, [Job("all_reduce", 8, [0, 1], relays=[99])]), "relays"),
    "group": (lambda: demand_of(STAR, [Job("all_reduce", 8, 5)]), "servers: expected a list"),
    "ready": (lambda: demand_of(STAR, [Job("all_reduce", 8, ready_at=-1)]), "ready_at_s: expected"),
    "never": (
        lambda: demand_of(STAR, [Job("all_reduce", 8), Job("all_reduce", 8, ready_at=np.inf)]),
        "job 1: demand: ready_at_s: expected finite seconds, zero or more, got inf for job 0",
    ),
    "weight": (lambda: demand_of(STAR, [Job("all_reduce", 8, weight=0)]), "above zero, got 0 for"),
    "no number": (lambda: Job("all_reduce", 8, ready_at="5ms").demand(STAR), "expected a number"),  # pyright: ignore[reportArgumentType]
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_makes_no_sense_is_refused_in_one_line(case: str):
    make, message = REFUSED[case]
    with pytest.raises(OptionError) as raised:
        make()
    assert message in str(raised.value) and "\n" not in str(raised.value)


def test_schedules_at_once_are_one_of_all_jobs_in_the_order_of_time():
    one = by_hand(
        sends([(0, 2, 10**6)], relays=[1]), [(0, 0, COPY, (0, 1)), (1, 0, COPY, (1, 2))], [0]
    )
    other = by_hand(collective("broadcast", [1, 2], 10**6, root=1), [(0, 0, COPY, (1, 2))], [0])
    both = at_once([one, other], [event_seconds(each)[0] for each in (one, other)])
    assert verify(both).valid and both.name == "send + broadcast"
    # the broadcast begins before the message has come to server 1, and both end one after the other
    assert both.source.tolist() == [0, 1, 1] and both.piece.tolist() == [0, 1, 0]
    assert both.demand is not None and both.demand.relays.tolist() == [1]


def test_what_is_said_of_jobs_stays_with_them(tmp_path):
    jobs = [Job("all_reduce", 8, [2 * n, 2 * n + 1], ready_at=n, weight=1 + n) for n in range(3)]
    some = demand_of(STAR, jobs).of_jobs([0, 2])
    assert some.jobs == ("all_reduce",) * 2 and some.job.tolist() == [0, 1]
    assert (some.ready_at_s.tolist(), some.weight.tolist()) == ([0.0, 2.0], [1.0, 3.0])
    made = gw.schedulers.solve_demand(STAR, some, time_limit=0.1).schedule
    made.save(tmp_path / "two.json")
    kept = gw.load(tmp_path / "two.json").demand
    assert kept is not None and kept.ready_at_s.tolist() == [0.0, 2.0]
    assert kept.weight.tolist() == [1.0, 3.0]


def test_at_once_refuses_what_is_no_schedule_of_a_demand():
    ring = gw.schedulers.Ring().schedule(gw.topology.ring(4))
    with pytest.raises(ScheduleError, match="expected schedules of demands"):
        at_once([ring], [event_seconds(ring, 1e6)[0]])
    one = by_hand(sends([(0, 1, 4)]), [(0, 0, COPY, (0, 1))], [0])
    other = by_hand(sends([(0, 1, 4)]), [(0, 0, COPY, (0, 1))], [0], topology=gw.topology.ring(4))
    with pytest.raises(ScheduleError, match="different networks"):
        at_once([one, other], [np.zeros(1), np.zeros(1)])
    assert one.topology is LINE
