"""The least time for parts of any size: closed forms, an independent linear program over hops,
duals recounted in fractions, and schedules that never take less."""

import dataclasses
import itertools
import math
from fractions import Fraction

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gradweave as gw
from gradweave.bounds import Duals, least_seconds, throughput
from gradweave.bounds.seconds import cut_linear_program as linear_program_module
from gradweave.errors import OptionError
from gradweave.schedules.schedule import COLLECTIVES, REDUCE, Schedule
from gradweave.topology import Link, Topology, from_spec
from tests.conformance.strategies import STRATEGIES
from tests.simulator.random_networks import networks

NO_LATENCY = Link(bandwidth_bytes_per_s=12.5e9, latency_s=0.0)


def slow_star(servers: int, speeds: list[float], link: Link = NO_LATENCY) -> Topology:
    """A star whose first servers have links of lower speed."""
    star = gw.topology.star(servers, link=link)
    bandwidth = star.bandwidth_bytes_per_s.copy()
    for server, speed in enumerate(speeds):
        bandwidth[(star.source == server) | (star.target == server)] *= speed
    return dataclasses.replace(star, bandwidth_bytes_per_s=bandwidth)


@pytest.mark.parametrize(
    ("servers", "speeds", "time"),
    [
        (8, [], "0.14"),
        (8, [7 / 8], Fraction(32, 225)),
        (8, [1 / 2], "0.16"),
        (8, [1 / 4], "0.32"),
        (16, [], "0.15"),
        (16, [1 / 2], "0.16"),
        (16, [1 / 4, 1 / 4], "0.32"),
    ],
)
def test_a_star_with_slow_servers(servers, speeds, time):
    """The whole gradient leaves a slow server; or 2(N−1) transfers leave all."""
    network = slow_star(servers, speeds)
    least = least_seconds(network, 1e9)
    assert least.duals.seconds_per_byte * 10**9 == Fraction(time)
    assert least.seconds == throughput(network, "all_reduce", overlap=True).seconds(1e9)
    assert least.kind == "programme" and least.latency_s == 0.0


def test_what_only_unequal_parts_can_do_on_two_stages_apart():
    """Equal parts bring 7/8 of the gradient into a slow server, and out of it, one by one."""
    network = slow_star(8, [1 / 4])
    assert least_seconds(network, 1e9, overlap=False).seconds == pytest.approx(0.32)
    equal = least_seconds(network, 1e9, overlap=False, shares="equal")
    assert equal.duals.seconds_per_byte * 10**9 == Fraction(56, 100)
    assert equal.seconds == throughput(network, "all_reduce").seconds(1e9)
    unlike = least_seconds(network, 1e9, "all_gather", shares=[1, 0, 0, 0, 0, 0, 0, 0])
    assert unlike.seconds == pytest.approx(0.32)  # all of it leaves the slow server


def hops_of(network: Topology) -> list[tuple[int, ...]]:
    """All routes from server to server through switches."""
    graph = nx.DiGraph(zip(network.source.tolist(), network.target.tolist(), strict=True))
    hops = []
    for a, b in itertools.permutations(network.servers.tolist(), 2):
        inside = graph.subgraph([a, b, *network.switches.tolist()])
        hops += [tuple(route) for route in nx.all_simple_paths(inside, a, b)]
    return hops


def hop_linear_program(network: Topology, stages: tuple, apart: bool, equal: bool) -> float:
    """The same least time from flows over hops: routes from server to server through switches."""
    from ortools.linear_solver import pywraplp

    solver = pywraplp.Solver.CreateSolver("GLOP")
    servers, scale = network.servers.tolist(), float(network.bandwidth_bytes_per_s.max())
    hops = hops_of(network)
    count = len(servers)
    low, high = (1 / count, 1 / count) if equal else (0.0, 1.0)
    share = {server: solver.NumVar(low, high, "") for server in servers}
    solver.Add(sum(share.values()) == 1)
    times = [solver.NumVar(0, solver.infinity(), "") for _ in range(2 if apart else 1)]
    volumes = []
    for stage in stages:
        volume = {hop: solver.NumVar(0, solver.infinity(), "") for hop in hops}
        volumes.append(volume)
        for target in servers:
            flow = {hop: solver.NumVar(0, solver.infinity(), "") for hop in hops}
            for hop in hops:
                solver.Add(flow[hop] <= volume[hop])
            for server in servers:
                out = sum(flow[hop] for hop in hops if hop[0] == server)
                into = sum(flow[hop] for hop in hops if hop[-1] == server)
                gained = out - into if stage == "all_gather" else into - out
                if server == target:
                    solver.Add(gained == share[server] - 1)
                else:
                    solver.Add(gained == share[server])
    for a, b, bandwidth in zip(
        network.source.tolist(),
        network.target.tolist(),
        (network.bandwidth_bytes_per_s / scale).tolist(),
        strict=True,
    ):
        loads = [
            sum(x for hop, x in volume.items() if (a, b) in itertools.pairwise(hop))
            for volume in volumes
        ]
        for time, load in zip(times, loads if apart else [sum(loads)], strict=True):
            solver.Add(load <= bandwidth * time)
    solver.Minimize(sum(times))
    assert solver.Solve() == pywraplp.Solver.OPTIMAL
    return solver.Objective().Value() / scale


CASES = [
    (collective, overlap, equal)
    for collective in COLLECTIVES
    for overlap in ((True, False) if collective == "all_reduce" else (True,))
    for equal in (True, False)
]


def stages_of(collective: str) -> tuple:
    return ("reduce_scatter", "all_gather") if collective == "all_reduce" else (collective,)


@settings(max_examples=40, deadline=None)
@given(network=networks(max_servers=5, max_switches=3), case=st.sampled_from(CASES))
def test_the_same_as_flows_over_hops_from_server_to_server(network, case):
    collective, overlap, equal = case
    apart = collective == "all_reduce" and not overlap
    expected = hop_linear_program(network, stages_of(collective), apart, equal)
    shares = "equal" if equal else "any"
    least = least_seconds(network, 1e9, collective, overlap=overlap, shares=shares)
    assert float(least.duals.seconds_per_byte) == pytest.approx(expected, rel=1e-7)
    assert least.volumes is not None and least.volumes.attained


def recounted(duals: Duals) -> Fraction:
    """Seconds a byte, from the sets and the tolls, link by link and byte by byte."""
    network = duals.topology
    charged = dict.fromkeys(duals.stages, Fraction(0))
    shared = Fraction(0)
    for a, b, bandwidth in zip(
        network.source.tolist(),
        network.target.tolist(),
        network.bandwidth_bytes_per_s.tolist(),
        strict=True,
    ):
        dearest = 0
        for stage in duals.stages:
            dual = 0
            for one in duals.crossings:
                inside = {*one.servers, *one.switches}
                start, end = (a, b) if stage == "all_gather" else (b, a)
                if one.stage == stage and start in inside and end not in inside:
                    dual += one.dual
            for toll in duals.tolls:
                assert not network.is_server[toll.switch]
                if toll.stage == stage:
                    dual += toll.dual * ((a == toll.switch) - (b == toll.switch))
            charged[stage] += Fraction(bandwidth) * max(dual, 0)
            dearest = max(dearest, dual)
        shared += Fraction(bandwidth) * dearest
    servers = network.servers.tolist()
    for one in duals.crossings:
        assert one.dual > 0 and not set(servers) <= set(one.servers)
    paid = [sum(o.dual for o in duals.crossings if v in o.servers) for v in servers]
    least = Fraction(min(paid))
    if duals.shares is not None:
        assert sum(duals.shares) == 1
        least = sum(map(Fraction.__mul__, duals.shares, map(Fraction, paid)), Fraction(0))
    return least / (max(charged.values()) if duals.apart else shared)


@settings(max_examples=40, deadline=None)
@given(network=networks(max_servers=6, max_switches=3), case=st.sampled_from(CASES))
def test_duals_prove_in_fractions_what_the_linear_program_finds_in_floats(network, case):
    collective, overlap, equal = case
    shares = "equal" if equal else "any"
    least = least_seconds(network, 1e9, collective, overlap=overlap, shares=shares)
    assert recounted(least.duals) == least.duals.seconds_per_byte
    assert least.volumes is not None
    found = least.volumes.seconds_per_byte
    assert float(least.duals.seconds_per_byte) == pytest.approx(found, rel=1e-9)
    loads = np.stack([least.volumes.copies, least.volumes.sums])
    most = (loads.sum(axis=0) if overlap else loads.max(axis=0)) / network.bandwidth_bytes_per_s
    assert most.max() <= found * (1 + 1e-6)
    assert least.volumes.shares.sum() == pytest.approx(1)


def rooted(schedule: Schedule) -> bool:
    """Whether each piece is summed at its root: a root sends its own sum to nobody."""
    roots = schedule.root[schedule.piece]
    return not ((schedule.op == REDUCE) & (schedule.source == roots)).any()


def never_less(schedule: Schedule, gradient_bytes: float) -> None:
    network, collective = schedule.topology, schedule.collective
    counts = np.bincount(network.rank[schedule.root], minlength=network.num_servers)
    shares = [Fraction(int(count), schedule.pieces) for count in counts]
    taken = min(gw.simulator.seconds(schedule, gradient_bytes, model) for model in MODELS)
    for chosen in ("any", shares):
        least = least_seconds(network, gradient_bytes, collective, shares=chosen)
        assert least.seconds <= taken * (1 + 1e-9), (chosen, str(least))


MODELS = ("events", "rounds")


@settings(max_examples=40, deadline=None)
@given(
    network=networks(max_servers=6, max_switches=3),
    collective=st.sampled_from(COLLECTIVES),
    pieces=st.integers(1, 3),
    gradient_bytes=st.sampled_from([1.0, 1e4, 1e7, 1e9]),
)
def test_no_grown_schedule_takes_less(network, collective, pieces, gradient_bytes):
    scheduler = gw.schedulers.Grown(pieces_per_server=pieces, restarts=1)
    schedule = scheduler.schedule(network, collective=collective)
    never_less(schedule, gradient_bytes)
    if collective == "all_reduce":
        never_less(gw.schedules.overlap(schedule), gradient_bytes)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", ["star:5", "ring:8", "jellyfish:reference=J10"])
def test_no_strategy_takes_less(name, strategy):
    if name in STRATEGIES[strategy].none_on:
        pytest.skip("no schedule of this strategy")
    network = from_spec(name)
    schedule = STRATEGIES[strategy].make(network).schedule(network)
    if not rooted(schedule):
        # Partners exchange sums, and several complete them at once.
        assert "doubling" in strategy or strategy.startswith("postal")
        return
    for gradient_bytes in (1.0, 1e6, 1e9):
        never_less(schedule, gradient_bytes)


def test_latency_counts_while_bytes_wait_for_it():
    """The first and last hundredth of a second a star's links carry nothing useful."""
    slow = slow_star(4, [], Link(bandwidth_bytes_per_s=1e9, latency_s=0.005))
    least = least_seconds(slow, 1e9)
    assert least.seconds == pytest.approx(1.5 + 0.01) and least.latency_s == pytest.approx(0.02)
    apart = least_seconds(slow, 1e9, overlap=False)
    assert apart.seconds == pytest.approx(1.5 + 0.02)
    tiny = least_seconds(slow, 1.0)
    assert tiny.seconds == pytest.approx(0.02) and tiny.kind == "latency"


def test_links_of_long_latency_are_idle_for_as_long():
    """Two links of 1 GB/s into a server; the slower starts to bring bytes a second late."""
    links = [(0, 1), (0, 2), (1, 2)]
    network = Topology.from_links("three", servers=3, switches=0, links=links, link=NO_LATENCY)
    bandwidth = np.where(network.source + network.target == 3, 1e12, 1e9)
    latency = np.where(network.source + network.target == 2, 1.0, 0.0)
    network = dataclasses.replace(network, bandwidth_bytes_per_s=bandwidth, latency_s=latency)
    assert least_seconds(network, 4e9, "all_gather", shares=[1, 0, 0]).seconds == pytest.approx(2.5)
    assert least_seconds(network, 5e8, "all_gather", shares=[1, 0, 0]).seconds == pytest.approx(0.5)


def test_large_networks_have_the_bound_of_single_servers(monkeypatch):
    network = slow_star(8, [1 / 2])
    monkeypatch.setitem(least_seconds.__globals__, "MAX_NODES", 4)
    least_seconds.__globals__["_without_latency"].cache_clear()
    least = least_seconds(network, 1e9)
    assert least.kind == "cuts" and least.volumes is None
    assert least.duals.seconds_per_byte * 10**9 == Fraction("0.16")
    assert recounted(least.duals) == least.duals.seconds_per_byte
    apart = least_seconds(network, 1e9, overlap=False, shares="equal")
    assert apart.duals.seconds_per_byte * 10**9 == Fraction("0.28")
    least_seconds.__globals__["_without_latency"].cache_clear()


def test_without_a_solution_single_servers_bound_it(monkeypatch):
    """Neither solver finds one: the bound is that of the slow server alone."""
    program = linear_program_module._LinearProgram
    monkeypatch.setattr(program, "_result", lambda self: None)
    least_seconds.__globals__["_without_latency"].cache_clear()
    least = least_seconds(slow_star(8, [1 / 2]), 1e9)
    assert (least.kind, least.volumes) == ("cuts", None)
    assert least.duals.seconds_per_byte * 10**9 == Fraction("0.16")
    least_seconds.__globals__["_without_latency"].cache_clear()


def test_a_search_that_is_ended_early_says_so(monkeypatch):
    monkeypatch.setattr(linear_program_module, "MAX_PASSES", 1)
    network = from_spec("torus:4x4")
    rng = np.random.default_rng(0)
    network = dataclasses.replace(
        network, bandwidth_bytes_per_s=rng.uniform(1e9, 1e10, len(network.source))
    )
    early = least_seconds(network, 1e9)
    assert early.kind == "cuts"
    monkeypatch.undo()
    least_seconds.__globals__["_without_latency"].cache_clear()
    assert early.seconds <= least_seconds(network, 1e9).seconds


def test_the_certificate_in_words():
    star = slow_star(8, [1 / 4])
    assert str(least_seconds(star, 1e9)) == (
        "at least 320 ms (linear program) for schedules that sum each piece at one server and add "
        "at servers alone, since the links around server 0 let at most 25 Gbit/s "
        "of gradient past"
    )
    named = dataclasses.replace(star, labels=tuple("abcdefghi"))
    assert "around server a let at most" in str(least_seconds(named, 1e9))
    alike = str(least_seconds(slow_star(6, []), 1e9))
    assert "around servers 0, 1, 2, 3 and 2 more together let at most 60 Gbit/s" in alike


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"collective": "reduce"}, "collective: expected one of"),
        ({"gradient_bytes": math.nan}, "gradient_bytes: expected a finite number"),
        ({"gradient_bytes": -1.0}, "gradient_bytes: expected a finite number"),
        ({"gradient_bytes": math.inf}, "gradient_bytes: expected a finite number"),
        ({"shares": "most"}, "shares: expected any, equal or numbers, got 'most'"),
        ({"shares": [1.0]}, "shares: expected 4, one for each server, got 1"),
        ({"shares": [0.5, 0.5, -0.5, 0.5]}, "shares: expected a number from 0 to 1"),
        ({"shares": [0.5, 0.5, math.nan, 0.0]}, "for the server of rank 2, got nan"),
        ({"shares": [0.5, 0.5, None, 0.0]}, "for the server of rank 2, got None"),
        ({"shares": [0.5, 0.5, math.inf, 0.0]}, "for the server of rank 2, got inf"),
        ({"shares": [0.5, 0.5, 0.5, 0.0]}, "shares: expected a sum of 1, got 1.5"),
        ({"shares": [Fraction(1, 10**999_999), 1, 0, 0]}, "of at most 2048 bits"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(change, expected):
    arguments = {"gradient_bytes": 1e9} | change
    with pytest.raises(OptionError, match=expected) as refused:
        least_seconds(from_spec("ring:4"), **arguments)
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 200
