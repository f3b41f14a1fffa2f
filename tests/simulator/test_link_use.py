"""Where time goes: what a link carries, and when it waits."""

import pytest

import gradweave as gw
from gradweave.schedules.schedule import COPY, REDUCE, Schedule
from gradweave.simulator import busiest_links

LINK = gw.topology.Link(bandwidth_bytes_per_s=1e9, latency_s=0.5, overhead_s=0.25)


def chain() -> Schedule:
    """The first third of a gradient to the middle of a line, and back."""
    line = gw.Topology.from_links("line", servers=3, switches=0, links=[(0, 1), (1, 2)], link=LINK)
    rows = [
        (0, 0, REDUCE, (0, 1)),
        (1, 0, REDUCE, (2, 1)),
        (2, 0, COPY, (1, 0)),
        (2, 0, COPY, (1, 2)),
    ]
    return Schedule.from_rows(line, rows)


def test_idle_stretches_are_those_between_transfers() -> None:
    schedule = chain()
    first = {use.link: use for use in busiest_links(schedule, 3e9)}
    back = first[int(schedule.topology.find_links(1, 0))]
    # Sums hold their links for 1.25 s and arrive 0.5 s later; the copy holds its link as long.
    assert back.total_s == pytest.approx(3.5)
    assert back.idle.tolist() == [pytest.approx([0.0, 1.75]), pytest.approx([3.0, 3.5])]
    assert back.used == pytest.approx(1.25 / 3.5)
    waits = back.waits
    assert (waits.before_s, waits.gaps, waits.after_s) == (pytest.approx(1.75), 0, 0.5)
    levels = back.levels(7)
    assert levels[REDUCE].tolist() == [0.0] * 7
    assert levels[COPY] == pytest.approx([0, 0, 0, 0.5, 1, 1, 0])


@pytest.mark.parametrize("spec", ["torus:3x3", "fat_tree:4", "a100:boxes=2"])
def test_levels_and_waits_add_up(spec: str) -> None:
    schedule = gw.schedulers.Merged().schedule(gw.topology.from_spec(spec))
    uses = busiest_links(schedule, 1e8, most=5)
    assert len(uses) == 5
    assert uses[0].used == max(use.used for use in uses)
    for use in uses:
        waits = use.waits
        idle = waits.before_s + waits.between_s + waits.after_s
        assert idle == pytest.approx((use.idle[:, 1] - use.idle[:, 0]).sum())
        assert use.levels(90).sum() / 90 == pytest.approx(use.used)
        assert use.levels(90).sum(axis=0).max() <= 1 + 1e-6
        assert use.used <= 1 - idle / use.total_s + 1e-9


def test_an_empty_schedule_uses_no_link() -> None:
    empty = Schedule.from_rows(gw.topology.ring(3), [], collective="all_gather")
    assert busiest_links(empty, 1e8) == ()
