"""The bound on small messages: by hand, and never above what any schedule takes."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gradweave as gw
from benchmarks.exhaustive_messages import least_time
from gradweave.bounds import latency_bound
from gradweave.bounds.seconds.latency import MessageTimes, spread_times
from gradweave.bounds.seconds_bound import seconds_bound
from gradweave.schedulers import (
    Binomial,
    CentralParameterServer,
    Grown,
    HalvingDoubling,
    Merged,
    ParameterServer,
    RecursiveDoubling,
    Ring,
)
from gradweave.schedulers.solving.timing import timing_of
from gradweave.schedules.schedule import COLLECTIVES
from gradweave.topology import Topology
from tests.simulator.random_networks import networks

net = gw.topology.from_spec
STRATEGIES = (
    RecursiveDoubling(),
    RecursiveDoubling(order="near"),
    Binomial(),
    Binomial(order="near"),
    HalvingDoubling(),
    Ring(),
    ParameterServer(),
    CentralParameterServer(),
    Merged(tries=1),
    Grown(restarts=2),
)
"""Those that send partial sums both ways, to one root, and to all."""


@settings(max_examples=60, deadline=None)
@given(
    network=networks(max_servers=9),
    collective=st.sampled_from(COLLECTIVES),
    size=st.sampled_from([0.0, 1e3, 1e6]),
    strategy=st.sampled_from(STRATEGIES),
    seed=st.integers(0, 3),
)
def test_no_schedule_takes_less(network, collective, size, strategy, seed):
    """Unequal bandwidths, latencies, overheads and capacities, either way of a link."""
    made = strategy.schedule(network, collective=collective, seed=seed)
    timing = timing_of(made, size)
    for taken in (timing.seconds, timing.barrier_seconds, gw.simulator.seconds(made, size, "fair")):
        assert timing.bound.seconds <= taken * (1 + 1e-9), timing.bound


@pytest.mark.parametrize(
    ("spec", "kind", "microseconds"),
    [
        # 20 us and 1 of overhead a message. A server and one that it hears of have six
        # contributions each after five messages, and exchange them: 25 + 21.
        ("star:12,latency=10us", "meeting", 46),
        # Half of the two-way exchanges of three are impossible: one in a row with another.
        ("star:3,latency=10us", "relay", 42),
        ("star:2,latency=10us", "distance", 21),
        ("mesh:3x5,latency=10us", "distance", 61),
        # Inside a box 2 links, between boxes 4 over one card: in the box, then across.
        ("a100:boxes=2", "relay", 6),
    ],
)
def test_by_hand(spec, kind, microseconds):
    bound = latency_bound(net(spec))
    assert bound.seconds == pytest.approx(microseconds * 1e-6)
    assert bound.kind == kind
    assert "since" in str(bound)


def test_without_latency_messages_double_those_who_know():
    assert latency_bound(net("star:16,latency=0s")).seconds == pytest.approx(4e-6)


def test_an_exchange_meets_it():
    for spec in ("star:2,latency=10us", "star:4,latency=10us", "star:8,latency=0s"):
        network = net(spec)
        made = RecursiveDoubling().schedule(network)
        assert gw.simulator.seconds(made, 0.0, "events") == pytest.approx(
            latency_bound(network).seconds
        )


@pytest.mark.parametrize(
    ("spec", "optimum", "met"),
    [
        ("star:3,latency=0us", 3, False),
        ("star:3,latency=1us", 6, True),
        ("star:3,latency=10us", 42, True),
        ("star:4,latency=1us", 6, True),
        ("ring:4,latency=10us", 22, True),
        ("mesh:1x3", 4, True),
        ("mesh:1x4", 5, False),
        ("complete:3", 2, True),
    ],
)
def test_beside_the_optimum(spec, optimum, met):
    """By exhaustive search of all-reduces in one piece; the bound meets most and is above none."""
    network = net(spec)
    seconds, proved = least_time(network, (optimum + 1) * 1e-6)  # finds less than given
    assert proved and seconds == pytest.approx(optimum * 1e-6)
    bound = latency_bound(network).seconds
    assert bound <= seconds * (1 + 1e-9)
    assert (bound == pytest.approx(seconds)) == met


def test_every_server_is_a_root_unless_told_otherwise():
    """Three servers in a row: 2 us from end to end, and 1 us from the middle."""
    link = gw.topology.Link(bandwidth_bytes_per_s=1e9, latency_s=1e-6, overhead_s=0.0)
    row = gw.topology.Topology.from_links(
        "row", servers=3, switches=0, links=[(0, 1), (1, 2)], link=link
    )
    assert latency_bound(row, "all_gather").seconds == pytest.approx(2e-6)
    assert latency_bound(row, "all_gather", every_root=False).seconds == pytest.approx(1e-6)


def test_a_stage_to_one_root_need_not_bring_all_everywhere():
    """To the middle of five in a row it takes two links; between the ends four."""
    row = net("mesh:1x5")
    made = CentralParameterServer(server=2).schedule(row, collective="reduce_scatter")
    timing = timing_of(made, 0.0)
    assert timing.bound.seconds <= timing.seconds
    assert timing.bound.seconds_by("distance") == pytest.approx(3e-6)
    assert seconds_bound(row, "reduce_scatter", 0.0).seconds_by("distance") == pytest.approx(5e-6)
    ends = seconds_bound(row, "all_gather", 0.0, equal_roots=False, roots=np.array([0]))
    assert ends.seconds_by("distance") == pytest.approx(5e-6)


def test_bytes_leave_before_they_travel():
    """Of a ring of eight: 4 links of 10 us, 1 us of overhead, 100 KB over two ports."""
    bound = seconds_bound(net("ring:8,latency=10us"), "all_reduce", 1e5)
    assert bound.seconds == pytest.approx(41e-6 + 1e5 / 25e9)


def test_the_least_overhead_on_the_way_counts():
    """Two paths: short with a dear link, and longer without."""
    network = gw.topology.Topology.from_links(
        "two paths", servers=2, switches=2, links=[(0, 2), (2, 1), (0, 3), (3, 1)]
    )
    dear = (network.source == 2) | (network.target == 2)
    network = dataclasses.replace(
        network,
        latency_s=np.where(dear, 1e-6, 5e-6),
        overhead_s=np.where(dear, 20e-6, 1e-6),
    )
    assert MessageTimes.of(network).message[0, 1] == pytest.approx(11e-6)


def test_who_knows_doubles_without_latency():
    assert spread_times(0.0, 1.0, 1.0, 8).tolist() == [0, 1, 2, 2, 3, 3, 3, 3]


@pytest.mark.parametrize("servers", [65, 129])
def test_many_servers_have_a_bound_too(servers):
    network = net(f"star:{servers},latency=0s")
    assert latency_bound(network).seconds >= 7e-6 * (1 - 1e-6)


def test_sets_around_a_server_are_the_farthest_ones():
    """A row of seven: all servers, and those at least four, five or six hops away."""
    row = Topology.from_links(
        "row", servers=7, switches=0, links=[(place, place + 1) for place in range(6)]
    )
    for gathering in (False, True):
        sets = MessageTimes.of(row).sets_around(0, gathering)
        assert [np.flatnonzero(one).tolist() for one in sets] == [
            [*range(7)], [4, 5, 6], [5, 6], [6]
        ]  # fmt: skip
    near = MessageTimes.of(net("complete:4")).sets_around(0, False)
    assert [one.tolist() for one in near] == [[True] * 4]
