"""Links of any bandwidth, latency and capacity beside each other: bounds hold, and nothing fails.

Bandwidths are drawn from twelve decades, each direction by itself. That a bound is the least time
is shown from both sides: its duals are exact, and volumes that take no more cross every cut.
"""

import dataclasses
import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gradweave as gw
from gradweave.bounds import LeastSeconds, free_trees, least_seconds, scale
from gradweave.bounds.seconds import cut_linear_program
from gradweave.schedulers.packing.straggler_packing import pack_straggler_trees
from gradweave.schedulers.packing.tree_program import pack_trees
from gradweave.schedulers.packing.tuning import TUNING
from gradweave.topology import Link, Topology
from tests.bounds.test_bounds_least_seconds import CASES, recounted
from tests.simulator.random_networks import networks

NEAR = (1 + TUNING.tolerance) * (1 + TUNING.slack)
GIGABYTE = 1e9
MOST_CAPACITY = 2**31 - 1
MODELS = ("rounds", "events", "fair")


@st.composite
def wide_networks(draw: st.DrawFn, *, max_switches: int = 2, delays: bool = False) -> Topology:
    """Bandwidths of 10³ to 10¹⁵ bytes/s and any capacities, alike both ways or not.

    Args:
        draw: Hypothesis's.
        max_switches: most switches.
        delays: whether links have latencies and overheads, of twelve decades, too.
    """
    network = draw(networks(max_servers=5, max_switches=max_switches))
    links = len(network.source)

    def column(powers: st.SearchStrategy[int], base: int) -> np.ndarray:
        one = np.array(draw(st.lists(powers, min_size=links, max_size=links)))
        return float(base) ** (one if one_way else np.minimum(one, one[network.opposite]))

    one_way = draw(st.booleans())
    none = np.zeros(links)
    capacity = np.minimum(column(st.integers(0, 31), 2), MOST_CAPACITY).astype(np.int64)
    return dataclasses.replace(
        network,
        bandwidth_bytes_per_s=column(st.integers(3, 15), 10),
        latency_s=column(st.integers(-11, 1), 10) if delays else none,
        overhead_s=column(st.integers(-11, 1), 10) if delays else none,
        capacity=capacity,
    )


def crosses_every_cut(network: Topology, least: LeastSeconds) -> bool:
    """Whether the volumes bring what is rooted inside out of each set, and sums into it."""
    volumes = least.volumes
    assert volumes is not None
    nodes, ranks = np.arange(network.num_nodes), network.servers
    for sides in itertools.product((False, True), repeat=network.num_nodes):
        inside = np.array(sides)[nodes]
        rooted = volumes.shares[inside[ranks]].sum()
        if inside[ranks].all():
            continue
        out = inside[network.source] & ~inside[network.target]
        into = ~inside[network.source] & inside[network.target]
        for stage, crossing, volume in (
            ("all_gather", out, volumes.copies),
            ("reduce_scatter", into, volumes.sums),
        ):
            if stage in least.duals.stages and volume[crossing].sum() < rooted - 1e-6:
                return False
    return True


@settings(max_examples=40, deadline=None)
@given(network=wide_networks(), case=st.sampled_from(CASES), data=st.data())
def test_the_bound_is_the_least_time_whatever_the_bandwidths(network, case, data):
    collective, overlap, equal = case
    shares = "equal" if equal else "any"
    if data.draw(st.booleans(), label="given"):
        powers = st.lists(st.integers(0, 8), min_size=network.num_servers, max_size=5)
        drawn = [Fraction(1, 10**power) for power in data.draw(powers)[: network.num_servers]]
        shares = [one / sum(drawn) for one in drawn]
    least = least_seconds(network, GIGABYTE, collective, overlap=overlap, shares=shares)
    assert recounted(least.duals) == least.duals.seconds_per_byte
    assert least.kind == "programme" and least.volumes is not None
    assert float(least.duals.seconds_per_byte) == pytest.approx(
        least.volumes.seconds_per_byte, rel=1e-6
    )
    loads = np.stack([least.volumes.copies, least.volumes.sums])
    most = loads.sum(axis=0) if overlap else loads.max(axis=0)
    if overlap:
        taken = most / network.bandwidth_bytes_per_s
        assert taken.max() <= least.volumes.seconds_per_byte * (1 + 1e-6)
    assert crosses_every_cut(network, least)


def three_links(*bandwidths: float) -> Topology:
    """Servers 1 to 3 around server 0, by a link of each bandwidth."""
    star = Topology.from_links("star", servers=4, switches=0, links=[(0, 1), (0, 2), (0, 3)])
    rate = np.array([0.0, *bandwidths])[np.maximum(star.source, star.target)]
    no_time = np.zeros(len(rate))
    return dataclasses.replace(
        star, bandwidth_bytes_per_s=rate, latency_s=no_time, overhead_s=no_time
    )


def test_seven_decades_by_hand():
    """All of the gradient crosses the slow link, both ways at once."""
    network = three_links(1e12, 1e9, 1e5)
    least = least_seconds(network, GIGABYTE)
    assert least.duals.seconds_per_byte == Fraction(1, 10**5) and least.kind == "programme"
    solved = gw.solve(
        network,
        objective="seconds",
        gradient_bytes=GIGABYTE,
        schedulers=[gw.schedulers.Packed(pieces=64)],
    )
    assert solved.timing is not None and solved.timing.bound.seconds == 1e4
    assert solved.timing.gap < 0.05


def test_a_stage_that_is_far_faster_is_timed_as_well():
    """Out of server 0 a gradient takes 10 µs, and back a million times as long.

    Apart, the times add up; of the all-gather alone the unit must be its own.
    """
    network = three_links(1e12, 1e12, 1e12)
    rate = np.where(network.target == 0, 1e6, 1e12)
    network = dataclasses.replace(network, bandwidth_bytes_per_s=rate)
    shares = [1, 0, 0, 0]
    gather = least_seconds(network, 1e7, "all_gather", shares=shares)
    assert gather.duals.seconds_per_byte == Fraction(1, 10**12)
    apart = least_seconds(network, 1e7, overlap=False, shares=shares)
    assert apart.seconds == pytest.approx(10 + 1e-5, rel=1e-12)
    assert apart.volumes is not None
    assert apart.volumes.seconds_per_byte == pytest.approx(apart.seconds / 1e7, rel=1e-9)


def test_a_unit_that_hides_bandwidth_is_replaced(monkeypatch):
    """Counted in the slowest link's bandwidth, which nothing needs, all others seem alike."""
    network = three_links(1e15, 1e14, 1e13)
    unit = (1.0,)
    monkeypatch.setattr(cut_linear_program, "units_of", lambda *_: unit)
    found = cut_linear_program.solve_linear_program(
        network, ("reduce_scatter", "all_gather"), False, None
    )
    assert found is not None
    volumes, duals = found
    assert duals.seconds_per_byte == Fraction(1, 10**13)
    assert volumes.seconds_per_byte == pytest.approx(1e-13, rel=1e-9)


def test_widest_trees_by_hand():
    """0 → 1 → 2 at 8 and 5; the way back at 1 and 3; a switch between 0 and 2 at 2 and 9."""
    links = [(0, 1), (1, 2), (0, 3), (3, 2)]
    network = Topology.from_links("ring", servers=3, switches=1, links=links, link=Link())
    rates = {(0, 1): 8, (1, 2): 5, (2, 1): 1, (1, 0): 3}
    rates |= {(0, 3): 2, (3, 2): 9, (2, 3): 7, (3, 0): 4}
    ends = zip(network.source.tolist(), network.target.tolist(), strict=True)
    bandwidth = np.array([rates[end] for end in ends], float)
    network = dataclasses.replace(network, bandwidth_bytes_per_s=bandwidth)
    assert scale.widest_trees(network, "all_gather").tolist() == [5, 4, 4]
    assert scale.widest_trees(network, "reduce_scatter").tolist() == [4, 4, 5]


def test_bandwidths_in_units_are_neither_tiny_nor_huge():
    """Of four servers: 400 units at most, and nothing below 1e-9 of the smaller unit."""
    network = three_links(1e15, 1e13, 1e2)
    in_units = scale.in_units(network, (1e12, 1e14))
    first = [400, 400, 10, 10, 0, 0]
    assert sorted(in_units[0], reverse=True) == first
    assert sorted(in_units[1], reverse=True) == [10, 10, 0.1, 0.1, 0, 0]


@settings(max_examples=15, deadline=None)
@given(network=wide_networks(max_switches=0), size=st.sampled_from([1.0, 1e6, 1e12]))
def test_trees_are_packed_into_the_least_time(network, size):
    least = float(least_seconds(network, 1.0).duals.seconds_per_byte)
    packing = pack_trees(network, gradient_bytes=size)
    assert least * (1 - 1e-9) <= pack_trees(network).seconds_per_byte
    assert packing.seconds_per_byte <= least * NEAR


@settings(max_examples=8, deadline=None)
@given(
    network=wide_networks(),
    ready=st.lists(st.sampled_from([0.0, 1e-6, 1.0, 1e6]), min_size=5, max_size=5),
)
def test_trees_for_late_servers_take_no_less_than_is_proved(network, ready):
    ready = np.array(ready[: network.num_servers])
    if ready.any():
        least = least_seconds(network, GIGABYTE, ready_at_s=ready)
        packing = pack_straggler_trees(network, GIGABYTE, ready)
        assert packing.seconds_per_byte * GIGABYTE >= least.bandwidth_s * (1 - 1e-9)


@settings(max_examples=10, deadline=None)
@given(network=wide_networks(delays=True), size=st.sampled_from([1.0, 1e6, 1e12]))
def test_no_schedule_takes_less_than_the_bound(network, size):
    grown = gw.schedulers.Grown(restarts=1).schedule(network)
    packed = gw.schedulers.Packed(gradient_bytes=size, pieces=8).schedule(network)
    least = least_seconds(network, size)
    for schedule, model in itertools.product((grown, packed), MODELS):
        taken = gw.simulator.seconds(schedule, size, model)
        assert least.seconds <= taken * (1 + 1e-9), (schedule.scheduler.name, model)
    assert free_trees(network).rounds <= grown.rounds
    doubling = gw.schedulers.RecursiveDoubling().schedule(network)
    assert gw.verify(doubling, forwarding_servers=True).valid
