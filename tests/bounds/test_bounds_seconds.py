"""Bounds on time as sets of arguments: their conditions, their certificates, and later starts."""

import dataclasses

import numpy as np
import pytest

import gradweave as gw
from gradweave.bounds import certificates_of, certify, demand_bound, seconds_bound
from gradweave.bounds.classes import (
    OTHER_ROOTS,
    ROUTES_PASS_SERVERS,
    SWITCHES_ADD,
    UNEQUAL_PARTS,
)
from gradweave.bounds.demands.link_windows import NEVER, least_idle
from gradweave.schedules import Job, demand_of, sends
from gradweave.topology.faults import slowed

GIGABYTE = 1e9


def test_starts_add_up_and_change_no_argument():
    bound = seconds_bound(gw.topology.from_spec("ring:4"), "all_reduce", GIGABYTE)
    later = bound.later(1.0).later(2.0)
    assert later.seconds == pytest.approx(bound.seconds + 3.0)
    assert (later.kind, later.reason()) == (bound.kind, bound.reason())


def test_each_argument_has_its_own_condition():
    star = gw.topology.from_spec("star:5")
    of_stage = {part.name: part for part in seconds_bound(star, "all_gather", GIGABYTE).parts}
    assert of_stage["distance"].holds_unless == {UNEQUAL_PARTS}
    assert of_stage["messages"].holds_unless == {UNEQUAL_PARTS, SWITCHES_ADD}
    assert of_stage["bytes"].holds_unless >= {UNEQUAL_PARTS}
    rooted = seconds_bound(star, "all_gather", GIGABYTE, equal_roots=False, roots=np.array([0]))
    assert rooted.parts[0].holds_unless == {OTHER_ROOTS}
    whole = {part.name: part for part in seconds_bound(star, "all_reduce", GIGABYTE).parts}
    assert not whole["distance"].holds_unless and not whole["last byte"].holds_unless


@pytest.mark.parametrize("ready", [None, [0.5, 0, 0, 0]], ids=["ready", "late"])
def test_a_certificate_needs_nothing_but_the_bound(monkeypatch, ready):
    star = slowed(gw.topology.from_spec("star:4"), {(0, 4): 0.5}).topology
    bound = seconds_bound(star, "all_reduce", GIGABYTE, ready_at_s=ready)
    for name in ("throughput", "latency_bound", "least_seconds"):
        monkeypatch.setitem(seconds_bound.__globals__, name, None)
    proved = certify(bound)
    assert float(proved.least) == pytest.approx(bound.seconds, rel=1e-4)
    assert proved.forbids == bound.holds_unless


def test_time_slots_join_the_arguments():
    link = gw.topology.Link(bandwidth_bytes_per_s=1e9, latency_s=1e-3)
    ring = gw.topology.ring(4, link=link)
    plain = seconds_bound(ring, "all_reduce", 4e6)
    slotted = plain.with_slots(32)
    assert slotted.seconds > 1.02 * plain.seconds and slotted.kind == "latency and bytes"
    assert float(certify(slotted).least) == pytest.approx(slotted.seconds, rel=1e-6)
    late = seconds_bound(ring, "all_reduce", 4e6, ready_at_s=[1e-3, 0, 0, 0])
    assert not late.with_slots(32).seconds_by("slots")


def test_a_bound_of_another_network_certifies_nothing_of_it():
    """On a network twice as fast the bound is half; its lengths prove the whole here."""
    network = gw.topology.from_spec("star:4,bandwidth=1GB/s,latency=0s,overhead=0s")
    twice = network.bandwidth_bytes_per_s * 2
    fast = dataclasses.replace(network, bandwidth_bytes_per_s=twice)
    demand = demand_of(network, [Job("broadcast", 10**6, root=0)])
    schedule = gw.solve(network, jobs=demand, schedulers="chain", seed=0).schedule
    assert schedule.demand is not None
    (proved,) = certificates_of(schedule, bound=demand_bound(fast, schedule.demand))
    assert float(proved.least) == pytest.approx(1e-3)


def test_jobs_that_start_late_are_claimed_from_then_on():
    network = gw.topology.from_spec("ring:4,bandwidth=1GB/s,latency=0s,overhead=0s")
    late = Job("all_gather", 4 * 10**6, ready_at=7.0)
    proved = certify(demand_bound(network, demand_of(network, [late])))
    assert float(proved.least) == pytest.approx(7 + 1.5e-3)
    assert proved.certificate["claim"].get("since_s") == "7"


def test_certificates_that_hold_for_a_schedule_are_preferred():
    line = gw.topology.from_spec("mesh:3")
    bound = demand_bound(line, demand_of(line, [Job("all_gather", 3 * 10**6)]))
    strongest = certify(bound)
    wider = certify(bound, liberties=strongest.forbids)
    assert strongest.forbids and not wider.forbids & strongest.forbids
    assert wider.least < strongest.least


def test_whole_pieces_count_for_schedules_whose_routes_pass_no_server():
    network = gw.topology.from_spec("ring:8")
    bound = demand_bound(network, demand_of(network, [Job("broadcast", 10**6, root=0)]))
    assert bound.largest.name == "pipeline" and bound.seconds > bound.seconds_of_parts
    assert bound.holds_unless == {ROUTES_PASS_SERVERS}


def test_links_to_servers_that_do_not_relay_are_idle():
    # From 0 to 2: by server 1, or by switches 3 and 4.
    links = [(0, 1), (1, 2), (0, 3), (3, 4), (4, 2)]
    network = gw.topology.Topology.from_links("detour", servers=3, switches=2, links=links)
    ends = network.source, network.target
    by_server = ((ends[0] == 0) & (ends[1] == 1)) | ((ends[0] == 1) & (ends[1] == 2))
    idle = [least_idle(network, sends([(0, 2, 5)], relays=relays)) for relays in ([], [1])]
    assert (idle[0][by_server] == NEVER).all() and (idle[1][by_server] != NEVER).all()


def test_the_bound_of_a_solution_is_certified_as_it_is(monkeypatch):
    network = slowed(gw.topology.from_spec("star:4"), {(0, 4): 0.5}).topology
    options = {"objective": "seconds", "schedulers": "planned", "seed": 0}
    found = gw.solve(network, gradient_bytes=GIGABYTE, **options)
    assert found.timing is not None
    stated = found.timing.bound
    afresh = certificates_of(found.schedule, GIGABYTE)
    monkeypatch.setitem(certificates_of.__globals__, "seconds_bound", None)
    known = certificates_of(found.schedule, GIGABYTE, bound=stated)
    assert [one.certificate for one in known] == [one.certificate for one in afresh]
    with pytest.raises(TypeError):  # of another size it is computed
        certificates_of(found.schedule, 2 * GIGABYTE, bound=stated)
