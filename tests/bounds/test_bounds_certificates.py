"""Certificates in plans: they are recounted, and a failing certificate never loses a plan."""

import dataclasses
import json
from random import Random

import numpy as np
import pytest

import gradweave as gw
import gradweave_check as checker
from gradweave.bounds import certify, demand_bound, seconds_bound
from gradweave.bounds.steps import distance_steps
from gradweave.errors import CertificateWarning, InvalidCertificateError
from gradweave.schedulers.solving.portfolio import Group
from gradweave.schedules import Job, demand_of
from gradweave.schedules.file import to_bytes
from tests.bounds.random_latencies import random_demand, random_latencies, slow_middle
from tests.bounds.test_bounds_least_seconds import slow_star


@pytest.mark.parametrize("seeds", [range(k, k + 20) for k in range(0, 60, 20)], ids=str)
def test_bounds_of_random_demands_have_certificates(seeds):
    for seed in seeds:  # a failed recount is a warning, which fails the test
        draw = Random(seed)
        network = random_latencies(draw)
        demand = random_demand(draw, network)
        bound = demand_bound(network, demand)
        proved = float(certify(bound).least)
        messages_s = max(map(bound.seconds_by, ("distance", "messages"))) + bound.since_s
        assert proved >= messages_s * (1 - 1e-6), seed


def test_bounds_of_random_all_reduces_have_certificates():
    for seed in range(12):
        network = random_latencies(Random(seed))
        least = gw.bounds.latency_bound(network)
        proved = certify(seconds_bound(network, "all_reduce", 8.0, trees=False))
        if least.kind != "relay":  # a server's single links have no certificate
            assert float(proved.least) >= least.seconds * (1 - 1e-6), seed


def test_a_message_is_held_by_the_longest_overhead_of_its_route():
    network = slow_middle()
    demand = demand_of(network, [Job("broadcast", 1, root=0)])
    bound = demand_bound(network, demand)
    # 3 links of 1 us, and the middle one held for 5 us: 8 us; by their ends alone it would be 4.
    assert bound.seconds_by("distance") == pytest.approx(8e-6)
    assert float(certify(bound).least) == pytest.approx(8e-6)


def test_a_reduction_without_latency_is_bounded_by_its_bytes():
    network = gw.topology.from_spec("star:3,latency=0s,overhead=0s")
    demand = demand_of(network, [Job("reduce", 10**6, root=0)])
    bound = demand_bound(network, demand)
    assert "from server 1 to server 0 it takes" in bound.parts[0].reason(str)
    assert float(certify(bound).least) == 1e6 / 12.5e9


def a_plan() -> gw.Schedule:
    network = gw.topology.ring(4)
    return gw.schedulers.Ring().schedule(network)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checker that accepts no certificate."""

    def refuse(self: checker.Proof, step: dict) -> None:
        raise checker.Wrong("there is time enough")

    broken = {unit: dict.fromkeys(kinds, refuse) for unit, kinds in checker.KINDS.items()}
    monkeypatch.setattr(checker, "KINDS", broken)


@pytest.mark.usefixtures("failing")
def test_no_plan_is_lost_over_its_certificates():
    plan = a_plan()
    with pytest.warns(CertificateWarning, match=r"no certificate: .*\(cut, cut\).*time enough"):
        kept = gw.bounds.with_certificates(plan)
    assert (kept.certificates, kept.rounds) == ((), plan.rounds)
    with pytest.raises(InvalidCertificateError, match="could not be recounted"):
        certify(seconds_bound(plan.topology, "all_reduce", 1e6))
    with pytest.warns(CertificateWarning, match="could not be recounted"):
        assert gw.solve(plan.topology, time_limit=0.1, objective="rounds").rounds == 4


def test_what_the_last_server_adds_leaves_it_once_it_is_ready():
    """Half a second, and then a GB at 6.25 GB/s.

    Server 1 sends more slowly, in 0.2 s, and server 2 is farther: 0.51 s, and 0.08 s for its bytes.
    """
    star = slow_star(4, [])
    bandwidth, latency = star.bandwidth_bytes_per_s.copy(), star.latency_s.copy()
    bandwidth[star.source == 0], bandwidth[star.source == 1] = 6.25e9, 5e9
    latency[star.source == 2] = 0.51
    network = dataclasses.replace(star, bandwidth_bytes_per_s=bandwidth, latency_s=latency)
    late = [0.5, 0, 0, 0]
    proved = certify(seconds_bound(network, "all_reduce", 1e9, trees=False, ready_at_s=late))
    assert float(proved.least) == pytest.approx(0.5 + 0.16, rel=1e-5)
    assert proved.reason == (
        "the whole gradient (1 GB) must leave server 0, once all are ready, at 50 Gbit/s: 660 ms"
    )


def test_a_certificate_that_cannot_be_recounted_leaves_the_others(monkeypatch):
    def broken(self: checker.Proof, step: dict) -> None:
        raise KeyError("server")

    network = gw.topology.from_spec("star:3")
    demand = demand_of(network, [Job("reduce", 10**6, root=0)])
    bound = demand_bound(network, demand)
    kinds = {**checker.KINDS["demand"], "reach": broken}
    monkeypatch.setattr(checker, "KINDS", {**checker.KINDS, "demand": kinds})
    with pytest.warns(CertificateWarning, match="reach.* a weaker one counts"):
        proved = certify(bound)
    assert [step["kind"] for step in proved.certificate["proof"]] == ["lengths"]


def test_a_plan_whose_routes_pass_servers_has_a_certificate_that_holds_for_it():
    line = gw.topology.from_spec("mesh:3")
    demand = demand_of(line, [Job("all_gather", 3 * 10**6)])
    through = Group(gw.schedulers.ParameterServer()).schedule(line, demand)
    bound = demand_bound(line, demand)
    assert checker.PASSED in certify(bound).forbids  # which proves more
    file = json.loads(to_bytes(gw.bounds.with_certificates(through)))
    assert [good for good, *_ in checker.check(file)] == [True, True]


@pytest.mark.parametrize("stage", ["all_gather", "reduce_scatter"])
def test_a_distance_is_proved_for_the_farthest_server_and_for_the_narrowest(stage: str):
    """Four servers in a row: server 0 is at an end, server 2 is slow in that direction."""
    row = gw.Topology.from_links("row", servers=4, switches=0, links=[(0, 1), (1, 2), (2, 3)])
    ends = row.source if stage == "all_gather" else row.target
    slow = dataclasses.replace(row, bandwidth_bytes_per_s=np.where(ends == 2, 1e3, 1e9))
    steps = distance_steps(slow, stage, np.zeros(4))
    assert {step["server"] for step in steps} == {0, 2}
    narrow_end = dataclasses.replace(row, bandwidth_bytes_per_s=np.where(ends == 0, 1e3, 1e9))
    steps = distance_steps(narrow_end, stage, np.zeros(4))
    assert {step["server"] for step in steps} == {0}
