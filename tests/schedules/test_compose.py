"""Reversing, joining and overlapping stages."""

import numpy as np
import pytest
from hypothesis import assume, given

import gradweave as gw
from gradweave.errors import ScheduleError
from gradweave.schedulers import Merged, Ring
from gradweave.schedules import COPY, REDUCE, Schedule, compose, overlap, reverse
from gradweave.verifier import verify
from tests.schedules.same import transfers
from tests.verifier.random_schedules import valid_schedules

ONE_STAGE = ("reduce_scatter", "all_gather")


def valid(schedule: Schedule) -> bool:
    return verify(schedule, aggregating_switches=True).valid


def alike_in_both_directions(schedule: Schedule) -> bool:
    topology = schedule.topology
    return np.array_equal(topology.capacity, topology.capacity[topology.opposite])


@given(valid_schedules(ONE_STAGE))
def test_reversed_twice_it_is_the_same(schedule):
    assume(len(set(schedule.op.tolist())) == 1)
    again = reverse(reverse(schedule))
    assert again.collective == schedule.collective
    assert transfers(again) == transfers(schedule)


@given(valid_schedules(ONE_STAGE))
def test_a_valid_stage_reversed_is_the_other_valid_stage(schedule):
    # The ring in as many steps as the paper counts sends something twice, which is not reversible.
    assume(schedule.scheduler.options.get("steps") != "paper")
    assume(alike_in_both_directions(schedule))
    other = reverse(schedule)
    assert {schedule.collective, other.collective} == set(ONE_STAGE)
    assert valid(other)
    assert other.rounds == schedule.rounds


@given(valid_schedules(("all_reduce",)))
def test_overlap_is_never_longer_and_still_valid(schedule):
    sooner = overlap(schedule)
    assert valid(sooner)
    assert sooner.rounds <= schedule.rounds
    assert sooner.num_transfers == schedule.num_transfers


def test_overlap_uses_what_the_barrier_left_idle():
    line = gw.topology.mesh((1, 3))
    rows = [
        (0, 0, REDUCE, (1, 0)),
        (1, 1, REDUCE, (1, 2)),
        (2, 0, COPY, (0, 1)),
        (2, 1, COPY, (2, 1)),
    ]
    assert overlap(Schedule.from_rows(line, rows)).round.tolist() == [0, 1, 1, 2]


def test_overlap_leaves_apart_two_copies_to_one_place():
    # Over a link of capacity 2 both fit into round 1, where neither would be the last.
    pair = gw.topology.from_spec("complete:2,capacity=2")
    rows = [
        (0, 0, REDUCE, (1, 0)),
        (0, 1, REDUCE, (0, 1)),
        (4, 0, COPY, (0, 1)),
        (5, 0, COPY, (0, 1)),
        (4, 1, COPY, (1, 0)),
    ]
    schedule = Schedule.from_rows(pair, rows)
    assert valid(schedule)
    assert valid(overlap(schedule))
    assert overlap(schedule).rounds == 3


def test_overlap_moves_no_copy_before_its_target_has_sent_what_it_held():
    # A detour: server 1 passes its own contribution on only after the copy could have come.
    triangle = gw.topology.ring(3)
    rows = [
        (0, 0, REDUCE, (1, 2)),
        (1, 0, REDUCE, (2, 0)),
        (3, 1, REDUCE, (0, 1)),
        (3, 1, REDUCE, (2, 1)),
        (4, 2, REDUCE, (0, 2)),
        (4, 2, REDUCE, (1, 2)),
        (5, 0, REDUCE, (1, 2)),
        (6, 0, COPY, (0, 1)),
        (7, 0, COPY, (0, 2)),
        (7, 1, COPY, (1, 0)),
        (7, 1, COPY, (1, 2)),
        (7, 2, COPY, (2, 0)),
        (7, 2, COPY, (2, 1)),
    ]
    schedule = Schedule.from_rows(triangle, rows)
    assert valid(schedule)
    assert valid(overlap(schedule))


def test_compose_puts_a_barrier_between():
    ring = gw.topology.ring(4)
    scatter, gather = (Ring().schedule(ring, collective=stage) for stage in ONE_STAGE)
    both = compose(scatter, gather)
    assert valid(both)
    assert both.stages == {"reduce_scatter": 3, "all_gather": 3}
    assert both.rounds == 6
    assert both.scheduler == scatter.scheduler
    assert both.bound is None


def test_what_does_not_fit_together_is_refused_in_one_line():
    ring = gw.topology.ring(4)
    scatter, gather = (Merged().schedule(ring, collective=stage) for stage in ONE_STAGE)
    both = compose(scatter, gather)
    other = Merged().schedule(gw.topology.ring(5), collective="all_gather")
    wider = Merged().schedule(gw.topology.from_spec("ring:4,capacity=2"), collective="all_gather")
    turned = gather.replace(root=np.roll(gather.root, 1))
    for attempt, message in [
        (lambda: reverse(both), "reverse: expected reduce_scatter or all_gather, got all_reduce"),
        (lambda: overlap(scatter), "overlap: expected all_reduce, got reduce_scatter"),
        (lambda: compose(gather, scatter), "expected reduce_scatter and all_gather, got all_gath"),
        (lambda: compose(scatter, scatter), "got reduce_scatter and reduce_scatter"),
        (lambda: compose(scatter, other), "compose: the stages have different roots"),
        (lambda: compose(scatter, turned), "compose: the stages have different roots"),
        (lambda: compose(scatter, wider), "compose: the stages are for different networks"),
    ]:
        with pytest.raises(ScheduleError) as raised:
            attempt()
        assert message in str(raised.value)
        assert "\n" not in str(raised.value)
