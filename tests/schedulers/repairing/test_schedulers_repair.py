"""Re-planning after a fault: valid on the rest, at its bound, and largely unchanged."""

import numpy as np
import pytest

import gradweave as gw
from gradweave.errors import OptionError
from gradweave.schedulers import Repair
from gradweave.topology.faults import slowed, without_links, without_servers
from tests.conformance.networks import TABLE_2


def moves(schedule):
    return {
        (int(op), int(piece), int(source), int(target))
        for op, piece, source, target in zip(
            schedule.op, schedule.piece, schedule.source, schedule.target, strict=True
        )
    }


def a_link_that_may_fail(topology):
    """A link between switches, if servers have one link each; otherwise any link."""
    between_switches = ~topology.is_server[topology.source] & ~topology.is_server[topology.target]
    link = int(np.argmax(between_switches)) if between_switches.any() else 0
    return int(topology.source[link]), int(topology.target[link])


@pytest.mark.parametrize("name", TABLE_2)
def test_a_lost_link_is_replanned_at_the_new_bound(name):
    network = gw.topology.from_spec(name)
    before = gw.solve(network).schedule
    left = without_links(network, [a_link_that_may_fail(network)]).topology

    after = gw.solve(left, start_from=before)

    assert gw.verify(after.schedule, forwarding_servers=False).valid
    assert after.bound == gw.bounds.free_trees(left)
    assert after.optimal
    assert after.scheduler.name == "repair"
    anew = gw.solve(left).schedule
    kept, by_chance = (len(moves(before) & moves(one)) for one in (after.schedule, anew))
    assert kept == len(moves(before)) or kept > by_chance


def test_a_lost_server_takes_its_piece_with_it():
    network = gw.topology.bcube(n=3, k=1)
    before = gw.solve(network).schedule
    left = without_servers(network, [4]).topology

    after = gw.solve(left, start_from=before)

    assert after.schedule.pieces == left.num_servers == 8
    assert gw.verify(after.schedule).valid


def test_what_still_works_stays_as_it_is():
    network = gw.topology.torus((3, 3))
    before = gw.solve(network).schedule
    slower = slowed(network, {(0, 1): 0.5}).topology
    assert slower.capacity.min() == 1  # of two: the old transfers still fit

    after = gw.solve(slower, objective="rounds", start_from=before).schedule

    assert moves(after) == moves(before)


@pytest.mark.parametrize("collective", ["reduce_scatter", "all_gather", "all_reduce"])
def test_it_starts_from_any_collective(collective):
    network = gw.topology.dcell(n=4, k=1)
    left = without_links(network, [(0, 20)]).topology
    for given in ("reduce_scatter", "all_gather", "all_reduce"):
        before = gw.solve(network, collective=given).schedule
        made = Repair(before).schedule(left, collective=collective)
        assert made.collective == collective


def test_it_says_what_it_needs():
    with pytest.raises(OptionError, match="start_from: expected the schedule before the fault"):
        Repair()


@pytest.mark.parametrize(
    ("old", "new", "differs"),
    [
        ("torus:4x4", "complete:16", "which has no link 0→2"),
        ("ring:8", "ring:9", "which has no server 8"),
        ("ring:9", "star:8", "which has no switch 8"),
        ("ring:16", "bcube:n=4,k=1", "which has no switch 16"),
    ],
)
def test_a_schedule_of_another_network_is_refused(old, new, differs):
    before = gw.schedulers.Ring().schedule(gw.topology.from_spec(old))
    with pytest.raises(OptionError, match=f"start_from: is a schedule of '{old.partition(':')[0]}"):
        gw.solve(gw.topology.from_spec(new), start_from=before)
    with pytest.raises(OptionError, match=differs):
        Repair(before).schedule(gw.topology.from_spec(new))


def test_a_link_that_came_back_is_named():
    network = gw.topology.ring(8)
    before = gw.solve(without_links(network, [(0, 1)]).topology).schedule
    said = "no link 0→1; expected one of 'ring:n=8' from before a fault"
    with pytest.raises(OptionError, match=said):
        Repair(before).schedule(network)
