"""The least time where servers are ready late: closed forms, an independent linear program over
hops, duals recounted, and schedules that never take less."""

import dataclasses
import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gradweave as gw
from gradweave.bounds import Duals, least_seconds
from gradweave.errors import OptionError
from gradweave.schedulers.solving.timing import timing_of
from gradweave.topology import Topology
from tests.bounds.test_bounds_least_seconds import NO_LATENCY, hops_of, slow_star
from tests.simulator.random_networks import networks


def late_by(topology: Topology, seconds: dict[int, float]) -> list[float]:
    return [seconds.get(rank, 0.0) for rank in range(topology.num_servers)]


@pytest.mark.parametrize(
    ("network", "late", "time"),
    [
        # All of the late server's gradient leaves it, once it is ready: 1 GB at 12.5 GB/s.
        (slow_star(8, []), {0: 0.07}, 0.15),
        (slow_star(8, []), {0: 1.0}, 1.08),
        # A little late: 14 GB leave eight servers, one of which sends for a moment less.
        (slow_star(8, []), {0: 0.001}, (14 / 12.5 + 0.001) / 8),
        # Sums with the late server's gradient enter the slow one.
        (slow_star(8, [1 / 2]), {3: 0.08}, 0.24),
        (gw.topology.complete(8, link=NO_LATENCY), {2: 0.01}, 0.01 + 1 / 87.5),
        # Two late servers, the second one later; and all of them.
        (slow_star(4, []), {1: 0.3, 2: 0.5}, 0.58),
        (slow_star(4, []), dict.fromkeys(range(4), 2.0), 2.12),
    ],
)
def test_closed_forms(network, late, time):
    least = least_seconds(network, 1e9, ready_at_s=late_by(network, late))
    assert least.seconds == pytest.approx(time, rel=1e-9)
    assert least.volumes is not None and least.volumes.attained


def hop_linear_program(network: Topology, gradient_bytes: float, ready: list[float]) -> float:
    """The same least time from flows over hops, in the windows in which they may send."""
    from ortools.linear_solver import pywraplp

    solver = pywraplp.Solver.CreateSolver("GLOP")
    servers, scale = network.servers.tolist(), float(network.bandwidth_bytes_per_s.max())
    hops = hops_of(network)
    starts = sorted({0.0, *ready})
    share = {server: solver.NumVar(0, 1, "") for server in servers}
    solver.Add(sum(share.values()) == 1)
    last = solver.NumVar(0, solver.infinity(), "")
    lengths = [(b - a) * scale / gradient_bytes for a, b in itertools.pairwise(starts)] + [last]
    copies = {hop: solver.NumVar(0, solver.infinity(), "") for hop in hops}
    sums = [{hop: solver.NumVar(0, solver.infinity(), "") for hop in hops} for _ in lengths]

    def carries(target: int, room: dict, towards: bool) -> None:
        """A unit from the shares to a server, or from it to the shares, within what is sent."""
        flow = {hop: solver.NumVar(0, solver.infinity(), "") for hop in hops}
        for hop in hops:
            solver.Add(flow[hop] <= room[hop])
        for server in servers:
            out = sum(flow[hop] for hop in hops if hop[0] == server)
            into = sum(flow[hop] for hop in hops if hop[-1] == server)
            gained = into - out if towards else out - into
            solver.Add(gained == share[server] - (1 if server == target else 0))

    for server, time in zip(servers, ready, strict=True):
        carries(server, copies, towards=False)
        since = starts.index(time)
        carries(server, {hop: sum(z[hop] for z in sums[since:]) for hop in hops}, towards=True)
    for a, b, bandwidth in zip(
        network.source.tolist(),
        network.target.tolist(),
        (network.bandwidth_bytes_per_s / scale).tolist(),
        strict=True,
    ):
        over = [hop for hop in hops if (a, b) in itertools.pairwise(hop)]
        for window, length in enumerate(lengths):
            load = sum(sums[window][hop] for hop in over)
            if window == len(lengths) - 1:
                load += sum(copies[hop] for hop in over)
            solver.Add(load <= bandwidth * length)
    solver.Minimize(last)
    assert solver.Solve() == pywraplp.Solver.OPTIMAL
    return starts[-1] + solver.Objective().Value() * gradient_bytes / scale


ready_times = st.lists(st.sampled_from([0.0, 0.0, 0.05, 0.3, 2.0]), min_size=6, max_size=6)


@settings(max_examples=30, deadline=None)
@given(network=networks(max_servers=5, max_switches=2), ready=ready_times)
def test_the_same_as_flows_over_hops(network, ready):
    """Where switches are, hops keep balance in each window, and the bound in all of them."""
    ready = ready[: network.num_servers]
    network = dataclasses.replace(network, latency_s=np.zeros(len(network.source)))
    least = least_seconds(network, 1e9, ready_at_s=ready)
    expected = hop_linear_program(network, 1e9, ready)
    assert least.bandwidth_s <= expected * (1 + 1e-7)
    if not len(network.switches):
        assert least.bandwidth_s == pytest.approx(expected, rel=1e-7)


def recounted(duals: Duals, gradient_bytes: float, seconds: float) -> float:
    """What links can charge until then over what is due, byte by byte and window by window."""
    network, ready = duals.topology, duals.ready_at_s
    for one in duals.crossings:
        outside = set(network.servers.tolist()) - set(one.servers)
        latest = max(ready[network.rank[v]] for v in outside)
        assert one.since_s <= (latest if one.stage == "reduce_scatter" else max(ready))
    paid = min(
        sum(one.dual for one in duals.crossings if v in one.servers)
        for v in network.servers.tolist()
    )
    starts = sorted({0.0, *ready})
    charged = 0.0
    for start, end in itertools.pairwise([*starts, seconds]):
        for a, b, bandwidth in zip(
            network.source.tolist(),
            network.target.tolist(),
            network.bandwidth_bytes_per_s.tolist(),
            strict=True,
        ):
            dearest = 0
            for stage in ("reduce_scatter", "all_gather"):
                if stage == "all_gather" and start < max(ready):
                    continue
                dual = sum(
                    toll.dual * ((a == toll.switch) - (b == toll.switch))
                    for toll in duals.tolls
                    if toll.stage == stage
                )
                for one in duals.crossings:
                    inside = {*one.servers, *one.switches}
                    first, then = (a, b) if stage == "all_gather" else (b, a)
                    crosses = first in inside and then not in inside
                    if one.stage == stage and crosses and one.since_s <= start:
                        dual += one.dual
                dearest = max(dearest, dual)
            charged += (end - start) * bandwidth * dearest
    return charged / (gradient_bytes * paid)


@settings(max_examples=30, deadline=None)
@given(network=networks(max_servers=6, max_switches=3), ready=ready_times)
def test_duals_prove_what_the_linear_program_finds(network, ready):
    ready = ready[: network.num_servers]
    least = least_seconds(network, 1e9, ready_at_s=ready)
    assert least.volumes is not None
    found = float(least.duals.seconds_without_latency(1e9))
    assert found == pytest.approx(1e9 * least.volumes.seconds_per_byte, rel=1e-9)
    if any(ready):
        assert recounted(least.duals, 1e9, found) == pytest.approx(1)
    assert least.seconds >= least_seconds(network, 1e9).seconds * (1 - 1e-9)
    assert least.seconds >= max(ready)


def test_a_charge_without_its_reason_counts_nothing():
    """Duals prove what they say whoever made them: here no server outside is that late."""
    least = least_seconds(slow_star(4, []), 1e9, ready_at_s=[0.5, 0, 0, 0])
    forged = [dataclasses.replace(one, since_s=0.7) for one in least.duals.crossings]
    assert dataclasses.replace(least.duals, crossings=tuple(forged)).paid == Fraction(0)


@settings(max_examples=30, deadline=None)
@given(
    network=networks(max_servers=6, max_switches=3),
    ready=ready_times,
    collective=st.sampled_from(("all_reduce", "reduce_scatter", "all_gather")),
    gradient_bytes=st.sampled_from([1e4, 1e9]),
)
def test_no_schedule_takes_less(network, ready, collective, gradient_bytes):
    ready = ready[: network.num_servers]
    schedule = gw.schedulers.Grown(restarts=1).schedule(network, collective=collective)
    if collective == "all_reduce":
        schedule = gw.schedules.overlap(schedule)
    taken = gw.simulator.seconds(schedule, gradient_bytes, "events", ready_at_s=ready)
    shares = "equal"
    least = least_seconds(network, gradient_bytes, collective, shares=shares, ready_at_s=ready)
    assert least.seconds <= taken * (1 + 1e-9), str(least)
    timing = timing_of(schedule, gradient_bytes, ready)
    assert timing.bound.seconds <= taken * (1 + 1e-9), str(timing.bound)


@pytest.mark.parametrize(("late", "least_us"), [({}, 2), ({2: 5e-6}, 7), ({1: 3e-6}, 4)])
def test_latency_counts_from_when_a_server_is_ready(late, least_us):
    """A row of three, 1 us apart: contributions meet at a root, and the sum returns to all."""
    link = gw.topology.Link(bandwidth_bytes_per_s=1e9, latency_s=1e-6, overhead_s=0.0)
    row = Topology.from_links("row", servers=3, switches=0, links=[(0, 1), (1, 2)], link=link)
    least = least_seconds(row, 1.0, ready_at_s=late_by(row, late))
    assert least.latency_s == pytest.approx(least_us * 1e-6)


def test_large_networks_have_the_bound_of_the_last_server(monkeypatch):
    network, ready = slow_star(8, []), [0.0] * 7 + [0.07]
    monkeypatch.setitem(least_seconds.__globals__, "MAX_NODES", 4)
    least_seconds.__globals__["_without_latency"].cache_clear()
    least = least_seconds(network, 1e9, ready_at_s=ready)
    assert least.kind == "cuts" and least.seconds == pytest.approx(0.15)
    assert str(least).endswith(
        "since the links around server 0 let at most 100 Gbit/s of gradient past, part of it after "
        "70 ms, when late servers are ready"
    )
    least_seconds.__globals__["_without_latency"].cache_clear()


def test_with_a_barrier_it_is_not_known():
    with pytest.raises(OptionError, match="expected stages that overlap"):
        least_seconds(slow_star(4, []), 1e9, overlap=False, ready_at_s=[1, 0, 0, 0])
