"""Bandwidths of nccl-tests next to a network: limits and bounds worked out by hand."""

import dataclasses

import pytest

import gradweave as gw
from gradweave.errors import OptionError
from gradweave.probe.calibration import calibrated_by_nccl_tests
from gradweave.probe.nccl_tests import Measurement, Point
from gradweave.report.busbw import explain
from gradweave.schedulers.textbook.ring import Ring
from gradweave.simulator.bandwidths import bus_bandwidth, bus_factor
from gradweave.topology.topology import Topology

GB = 10**9


def star(servers: int, latency_s: float = 0.0) -> Topology:
    """Links of 10 GB/s."""
    return gw.topology.star(
        servers,
        link=gw.topology.Link(bandwidth_bytes_per_s=10.0 * GB, latency_s=latency_s, overhead_s=0.0),
    )


def measured(collective: str, ranks: int, seconds: float, size: int = GB) -> Measurement:
    algorithm = size / seconds
    point = Point(size, seconds, algorithm, algorithm * bus_factor(collective, ranks))
    root = 0 if collective in ("broadcast", "reduce", "gather", "scatter") else None
    return Measurement(collective, ranks, (point,), root)


LEAST = {
    "all_reduce": 0.15,  # 2 · 3/4 of a GB out of each server
    "all_gather": 0.075,
    "reduce_scatter": 0.075,
    "all_to_all": 0.075,
    "hypercube": 0.075,
    "broadcast": 0.1,
    "reduce": 0.1,
    "gather": 0.075,
    "scatter": 0.075,
}
"""Seconds of 1 GB among four servers at 10 GB/s, without latency."""


@pytest.mark.parametrize("collective", LEAST)
def test_the_bound_permits_the_links_rate(collective: str):
    """On a star, links are the only limit, so that all three agree."""
    found = explain(measured(collective, 4, 0.2), star(4))
    assert found.bounds[0] is not None
    assert found.bounds[0].seconds == pytest.approx(LEAST[collective], rel=1e-3)
    assert found.bound_bus_bytes_per_s(0) == pytest.approx(10 * GB, rel=1e-3)
    assert found.link_bus_bytes_per_s == pytest.approx(10 * GB)
    assert f"measured: {0.2 / LEAST[collective]:.2f} times the bound at 1 GB" in found.lines()


@pytest.mark.parametrize(
    ("collective", "least"),
    [
        ("all_reduce", 0.1),  # a GB out of each host: 2 · 1/2
        ("all_gather", 0.05),
        ("all_to_all", 0.2),  # four ranks send half a GB each to the other host
        ("broadcast", 0.1),
    ],
)
def test_hosts_as_servers(collective: str, least: float):
    """Two hosts of four ranks each."""
    found = explain(measured(collective, 8, 1.0), star(2))
    assert found.bounds[0] is not None
    assert found.bounds[0].seconds == pytest.approx(least, rel=1e-3)
    permitted = bus_factor(collective, 8) * GB / least
    assert found.bound_bus_bytes_per_s(0) == pytest.approx(permitted, rel=1e-3)
    assert found.link_bus_bytes_per_s == pytest.approx(permitted)
    assert any("the ranks of a server count as one" in line for line in found.lines())


def test_unequal_links():
    """The mean limits an all-reduce, the slowest an all-gather: 10, 10, 10 and 2 GB/s."""
    fast = star(4)
    bandwidth = fast.bandwidth_bytes_per_s.copy()
    bandwidth[(fast.source == 3) | (fast.target == 3)] = 2 * GB
    net = dataclasses.replace(fast, bandwidth_bytes_per_s=bandwidth)
    assert explain(measured("all_reduce", 4, 1), net).link_bus_bytes_per_s == 8 * GB
    assert explain(measured("all_gather", 4, 1), net).link_bus_bytes_per_s == 2 * GB
    found = explain(measured("all_reduce", 4, 1), net)
    assert found.bounds[0] is not None
    assert found.bounds[0].seconds >= 0.5  # all of a GB leaves the slow server


def test_times_below_the_bound_are_explained():
    lines = explain(measured("all_reduce", 4, 0.1), star(4)).lines()
    (fast,) = [line for line in lines if line.startswith("faster")]
    assert "0.67 of it" in fast
    assert "NVLS" in fast


def test_wrong_results_are_named():
    point = Point(GB, 1.0, GB, 1.5 * GB, wrong=3)
    lines = explain(Measurement("all_reduce", 4, (point,))).lines()
    assert lines[-1] == "wrong results at 1 GB: do not use these times"
    assert any("--network" in line for line in lines)


def test_every_figure_has_its_condition():
    found = explain(measured("all_reduce", 4, 0.2), star(4))
    for begins, condition in {
        "algb": "on this number of ranks",
        "busbw": "only if all ranks' links are equal and equally loaded, and if no switch adds",
        "hardware's limit": "if each server's links (10 GB/s in each direction) are busy",
        "lower bound": "for schedules that",
    }.items():
        (line,) = [line for line in found.lines() if line.startswith(begins)]
        assert condition in line


def test_latency_is_told_from_bandwidth():
    points = [
        Point(size, 50e-6 + size / (10 * GB), size, size) for size in (8, 1 << 18, 1 << 20, 1 << 30)
    ]
    lines = explain(Measurement("all_reduce", 4, tuple(points))).lines()
    (line,) = [line for line in lines if line.startswith("latency")]
    assert "50 us at least" in line and "up to 256 KiB" in line


@pytest.mark.parametrize(("servers", "says"), [(3, "expected 8 servers"), (16, "expected 8")])
def test_other_networks_are_refused(servers: int, says: str):
    with pytest.raises(OptionError, match=says):
        explain(measured("all_reduce", 8, 1), star(servers))


def test_hosts_must_be_those_of_the_output():
    one = Measurement("all_reduce", 4, (Point(1, 1, 1, 1),), hosts=("a", "a", "b", "b"))
    assert explain(one, star(2)).ranks_per_server == 2
    with pytest.raises(OptionError, match="4 servers, one for each rank or 2 hosts, got 3"):
        explain(one, star(3))


def test_costs_are_found_from_times():
    """Rings of four ranks: 30 us to start, and per message 5 us and the time at 10 GB/s."""
    sizes = [4 * size for size in (64, 4096, 1 << 20)]
    runs = []
    for kind, steps in (("all_reduce", 6), ("all_gather", 3), ("reduce_scatter", 3)):
        points = [
            Point(size, 30e-6 + steps * (5e-6 + size / 4 / (10 * GB)), 1, 1) for size in sizes
        ]
        runs.append(Measurement(kind, 4, tuple(points), device="A100"))
    profile = calibrated_by_nccl_tests(star(4), runs)
    assert profile.name == "nccl"
    assert profile.source == (
        "fitted to nccl-tests: all_reduce, all_gather and reduce_scatter of 4 ranks, A100"
    )
    assert profile.executor.start_s == pytest.approx(30e-6, rel=1e-3)
    assert profile.executor.bytes == (0, 64, 4096, 1 << 20)
    costs = [5e-6 + size / (10 * GB) for size in (0, 64, 4096, 1 << 20)]
    assert profile.executor.seconds == pytest.approx(costs, rel=3e-3)
    ring = Ring().schedule(star(4))
    for point in runs[0].points:
        assert profile.own_seconds(ring, point.bytes) == pytest.approx(point.seconds, rel=0.02)
        assert profile.seconds(ring, point.bytes) == pytest.approx(point.seconds, rel=0.02)


def test_one_collective_does_not_separate_the_start():
    one = Measurement("all_reduce", 4, (Point(256, 60e-6, 1, 1), Point(1 << 22, 1e-3, 1, 1)))
    profile = calibrated_by_nccl_tests(star(4), [one])
    assert profile.executor.start_s == 0
    assert profile.executor.seconds == pytest.approx((10e-6, 10e-6, 1e-3 / 6), rel=2e-3)


def test_a_profile_needs_an_all_reduce_of_the_network():
    for run in (measured("all_gather", 4, 1), measured("all_reduce", 8, 1)):
        with pytest.raises(OptionError, match="expected an all_reduce among 4 ranks"):
            calibrated_by_nccl_tests(star(4), [run])


def test_the_bus_bandwidth_is_that_of_nccl_tests():
    """`all_reduce_perf` of 8 A100: 8 GiB in 63,896 us, 134.44 GB/s and 235.26 GB/s."""
    assert bus_bandwidth(1 << 33, 63896e-6, 8) == pytest.approx(235.26e9, rel=1e-4)
